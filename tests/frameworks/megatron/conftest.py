"""Trainings that several files of tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every case of `sketched`, once."""
    from tests.frameworks.megatron.sketched import train

    root = tmp_path_factory.mktemp("sketches")
    train(root)
    return root
