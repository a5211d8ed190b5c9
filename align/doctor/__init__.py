"""One run alone: what is known to be wrong with it, what it runs on, and what would speed it up."""
