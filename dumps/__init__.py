"""Record, read and store what a training run leaves behind."""
