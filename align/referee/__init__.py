"""Does a run compute what its configuration declares? Recomputed in float64 from what it recorded."""
