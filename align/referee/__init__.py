"""Recompute a recorded step in float64: does the run compute what its configuration declares?"""
