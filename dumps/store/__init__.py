"""Runs on disk: discovery, manifests, loading, atomic writing."""
