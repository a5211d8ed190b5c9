"""Data rung: the same rows, the same prompt text, in the same order."""
