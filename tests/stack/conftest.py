"""One thread for every test of the stack, as its runs have: faster for tiny models, and exact."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch = pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
    torch.set_num_threads(1)
