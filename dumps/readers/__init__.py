"""Readers, one file format each. The folder is the registry: see `registry.py`."""
