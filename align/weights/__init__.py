"""Weights of two checkpoints: compared and converted by the layout algebra."""
