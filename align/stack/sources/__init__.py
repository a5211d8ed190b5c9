"""One module a data format: from a file to rows."""
