"""What both runs really do: read, normalise to one schema, derive, compare, judge by rules."""
