"""The run that the tests of TRL share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.trl.grpo_process import captured_run, run


@pytest.fixture(scope="session")
def grpo_runs(
    tmp_path_factory: pytest.TempPathFactory, reference_runs: Path
) -> tuple[Any, Any, Path]:
    """Give what both runs logged, and the folder of the captured one."""
    folder = tmp_path_factory.mktemp("trl")
    model = reference_runs / "tiny_model_tokenizer_data" / "model"
    run([], model, folder / "plain.json")
    captured = captured_run(model, folder)
    logged = [json.loads((folder / f"{name}.json").read_text()) for name in ("plain", "run")]
    return logged[0], logged[1], captured
