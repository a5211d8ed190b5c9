"""Find which link of an RL training chain breaks first between two runs."""

__version__ = "0.1.0"
