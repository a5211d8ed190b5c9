"""Where two runs' activations, gradients, updates and weights first differ beyond rounding."""
