"""vLLM, 0.6 to 0.1x, and vllm-ascend: the engine that generates responses for a trainer."""

from __future__ import annotations

from align.frameworks import vllm_config

NAME = "vllm"
CONFIG = vllm_config

METRIC_KEYS: dict[str, str] = {}  # it trains nothing by itself
