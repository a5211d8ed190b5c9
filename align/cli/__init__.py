"""The command line: one command group a file, imported when it is called."""
