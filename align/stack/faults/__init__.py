"""Known faults, one file a rung: each a few lines that change a run in exactly one way."""
