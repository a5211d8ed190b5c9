"""Compare two tokenizers: ids, special tokens and templates."""
