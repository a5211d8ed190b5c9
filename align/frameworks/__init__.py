"""One file a framework: spellings, defaults by version, hook points. The folder is the registry."""
