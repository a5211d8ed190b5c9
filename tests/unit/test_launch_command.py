"""A training command gives the overrides it sets, and says what only the shell knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import ProvenanceKind
from align.core.errors import AlignError, ConfigError
from dumps.readers.launch_command import READER, read_launch_command
from dumps.readers.printed_config import read_printed_config
from dumps.readers.reader import Glimpse, no_progress

SCRIPT = """#!/bin/bash
set -x
# python3 -m verl.trainer.main_ppo data.seed=9
MODEL=/m/Qwen2.5-7B
n=4
n=8
GPUS=$(nvidia-smi -L | wc -l)
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    +actor_rollout_ref.rollout.n=${n} \\
    'data.val_files=["/a.parquet","/b.parquet"]' \\
    trainer.n_gpus_per_node=$GPUS \\
    data.max_prompt_length='${data.x}' \\
    ~trainer.logger \\
    trainer.nnodes=1 $@
echo done trainer.nnodes=7
"""


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def test_overrides_are_read_with_the_line_that_sets_them(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text(SCRIPT)
    assert READER.sniff(glimpse(path))
    config = read_launch_command(path, no_progress)
    assert {key: (v.value, v.provenance.line) for key, v in config.values.items()} == {
        "algorithm.adv_estimator": ("grpo", 9),
        "actor_rollout_ref.model.path": ("/m/Qwen2.5-7B", 10),
        "actor_rollout_ref.actor.optim.lr": (1e-6, 11),
        "data.val_files": (("/a.parquet", "/b.parquet"), 13),
        "trainer.nnodes": (1, 17),
    }
    assert config.framework == "verl"
    assert {v.provenance.kind for v in config.values.values()} == {ProvenanceKind.OVERRIDE}
    assert [note.en for note in config.notes] == [
        "line 12: the value of actor_rollout_ref.rollout.n is not known from here",
        "line 14: the value of trainer.n_gpus_per_node is not known from here",
        "line 15: the value of data.max_prompt_length is not known from here",
        "line 16 deletes trainer.logger",
    ]


def test_what_set_x_traced_is_what_the_run_printed(corpus: Path) -> None:
    names = {
        "dapo_gpu_v05_201steps_invalid_utf8.out",
        "grpo_gpu_v08_110steps_tqdm.txt",
        "no_step_crash_a.log",
        "no_step_crash_b.log",
    }
    logs = list((corpus / "verl_logs").iterdir())
    assert {path.name for path in logs if READER.sniff(glimpse(path))} == names
    for name in sorted(names):
        path = corpus / "verl_logs" / name
        command = read_launch_command(path, no_progress)
        printed = read_printed_config(path, no_progress)
        assert len(command.values) >= 37
        assert command.notes == ()
        for key, value in command.values.items():
            assert printed.values[key].value == value.value, key


@pytest.mark.parametrize(
    "text",
    [
        "# How to run\n\n```bash\npython3 -m verl.trainer.main_ppo data.seed=1\n```\n",
        "#!/bin/bash\necho hello\n",
        "step:1 - actor/lr:1e-6\n",
        "",
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert not READER.sniff(glimpse(path))


def test_a_command_without_overrides_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text("#!/bin/sh\npython -m verl.trainer.main_ppo \\\n")
    with pytest.raises(ConfigError, match="no training command with overrides"):
        read_launch_command(path, no_progress)


@given(st.integers(0, len(SCRIPT)), st.text("'\"\\$`~+=\n {}[]#", max_size=30))
def test_a_cut_script_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, end: int, tail: str
) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.sh"
    path.write_text(SCRIPT[:end] + tail)
    READER.sniff(glimpse(path))
    try:
        read_launch_command(path, no_progress)
    except AlignError:
        return


ARRAYS = """#!/bin/bash
data=(data.seed=3 "data.train_files=[/a.parquet,/b.parquet]")
overrides=(
  algorithm.adv_estimator=grpo  # rl_config.adv_estimator
  '+actor_rollout_ref.actor.optim.betas=[0.9,0.95]'
  # a line that sets nothing
)
overrides+=(data.train_batch_size=32)
python3 -m verl.trainer.main_ppo "${data[@]}" "${overrides[@]}" trainer.nnodes=2 "$@"
"""


def test_bash_arrays_give_the_words_that_bash_itself_passes(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(ARRAYS, encoding="utf-8")
    bash = ARRAYS.replace("python3 -m verl.trainer.main_ppo", "printf '%s\\n'")
    printed = subprocess.run(["bash", "-c", bash], capture_output=True, text=True, check=True)
    keys = [word.lstrip("+").partition("=")[0] for word in printed.stdout.splitlines()]
    config = read_launch_command(script, no_progress)
    assert list(config.values) == keys
    assert config.values["data.train_batch_size"].provenance.line == 8
    assert config.values["algorithm.adv_estimator"].value == "grpo"
