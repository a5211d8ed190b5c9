"""Linear sketches of a model's tensors, keyed by what the tokens and features are."""
