"""One address for every number: Hugging Face name and feature index, whatever the framework."""
