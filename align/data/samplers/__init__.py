"""Row orders of the frameworks' samplers, predicted exactly; one sampler a file."""
