"""Hashes of the states that random numbers come from; reading them draws none."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any


def rng_line(step: int) -> dict[str, Any]:
    """Return the states' hashes at this moment of a step."""
    return {"step": step, **rng_hashes()}


def rng_hashes() -> dict[str, str]:
    """Return a short hash of each generator's state, of those that are in use in this process."""
    hashes = {"python": _short(repr(random.getstate()).encode())}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        hashes["numpy"] = _short(repr((name, rest)).encode() + keys.tobytes())
    if torch is not None:
        hashes["torch"] = _short(torch.get_rng_state().numpy().tobytes())
        from dumps.capture.device import KINDS

        for kind in KINDS:
            device = getattr(torch, kind, None)
            if device is not None and device.is_available() and device.is_initialized():
                hashes[kind] = _short(device.get_rng_state().numpy().tobytes())
    return hashes


def _short(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
