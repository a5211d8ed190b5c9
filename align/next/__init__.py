"""The cheapest experiment that narrows an unknown cause down, as commands to run."""
