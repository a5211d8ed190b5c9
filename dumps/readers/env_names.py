"""Which environment variables are facts of a run. No other is ever stored, and no secret is."""

from __future__ import annotations

import re

FAMILIES = (
    *("HCCL_", "ASCEND_", "NCCL_", "CUDA_", "CUBLAS_", "CUDNN_", "TORCH_", "PYTORCH_", "VLLM_"),
    *("VERL_", "RAY_", "TORCHINDUCTOR_", "TRITON_", "NVTE_", "NVIDIA_TF32_", "ATB_", "LCCL_"),
    *("ACL_", "ACLNN_", "FLASH_ATTENTION_", "SGLANG_", "SGL_", "ACCELERATE_", "TRANSFORMERS_"),
    *("HF_HUB_", "OMP_", "MKL_", "GLOO_", "MINDSPEED_", "MEGATRON_"),
)
NAMES = frozenset(
    {
        *("TASK_QUEUE_ENABLE", "COMBINED_ENABLE", "CPU_AFFINITY_CONF", "CLOSE_MATMUL_K_SHIFT"),
        *("MULTI_STREAM_MEMORY_REUSE", "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE"),
        *("STREAMS_PER_DEVICE", "DISABLE_L2_CACHE", "P2P_HCCL_BUFFSIZE", "USE_OPTIMIZED_MODEL"),
        *("LD_PRELOAD", "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM", "HYDRA_FULL_ERROR"),
        *("COMPILE_CUSTOM_KERNELS", "SOC_VERSION", "NPU_ASD_ENABLE", "DETERMINISTIC"),
    }
)
_SECRET = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|SECRETS?|TOKENS?|PASS\w*|CREDENTIALS?|AUTH|COOKIE|LICEN[CS]E)(?:_|$)"
)
# Where something lies differs between any two machines.
_PLACE = re.compile(r"_(?:HOME|PATH|DIR|ROOT|FILE|CACHE|ADDRESS|IP|HOST|PORT)$")
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s@]*@")


def is_fact(name: str, value: str) -> bool:
    """Tell whether a variable may be stored as a fact of the run."""
    if name in NAMES:
        return True
    known = name.startswith(FAMILIES) and not _SECRET.search(name) and not _PLACE.search(name)
    return known and not _CREDENTIALS_IN_URL.search(value)
