"""Hugging Face transformers: a model's own configuration files."""

from __future__ import annotations

from align.frameworks import huggingface_config

NAME = "huggingface"
CONFIG = huggingface_config

METRIC_KEYS: dict[str, str] = {}  # it trains nothing by itself
