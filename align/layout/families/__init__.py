"""One file a family of models, declarations alone; the folder is the registry."""
