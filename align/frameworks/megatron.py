"""Megatron-LM and MindSpeed-LLM: what they call things."""

from __future__ import annotations

from align.frameworks import megatron_config

NAME = "megatron"
CONFIG = megatron_config
