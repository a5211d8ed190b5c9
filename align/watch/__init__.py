"""Follow a running job against a finished reference, and say when it leaves it."""
