"""The environment variables that carry a capture from process to process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dumps.capture.plan import VARIABLE

STARTUP = Path(__file__).resolve().parent / "startup"
"""Folder that holds nothing but our ``sitecustomize``."""

EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"
INSTALLER = "dumps.capture.install_now"
REPLAY_INSTALLER = "dumps.inject.install_now"

PLANS = (VARIABLE, "ALIGN_REPLAY")
"""Variables that name a plan: of a capture, of a replay."""


def child_environment(plan_file: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return a command's environment, which its children inherit."""
    return {
        **inherited,
        VARIABLE: str(plan_file),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(STARTUP), inherited.get("PYTHONPATH")])),
        EXTERNAL_MODULES: ",".join(filter(None, [inherited.get(EXTERNAL_MODULES), INSTALLER])),
    }


def worker_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a Ray job's ``env_vars`` must hold besides those given.

    ``${PYTHONPATH}`` is the worker node's own, which Ray fills in. verl's variable is left out: on
    a node without this package it would stop the worker.
    """
    plans = {name: os.environ[name] for name in PLANS if os.environ.get(name)}
    if not plans:
        return {}
    rest = given.get("PYTHONPATH", "${PYTHONPATH}")
    return {**plans, "PYTHONPATH": f"{STARTUP}{os.pathsep}{rest}"}


def without_ours(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it would be without a capture."""
    rest = {name: value for name, value in variables.items() if name not in PLANS}
    for name, separator, own in (
        ("PYTHONPATH", os.pathsep, (str(STARTUP),)),
        (EXTERNAL_MODULES, ",", (INSTALLER, REPLAY_INSTALLER)),
    ):
        parts = [part for part in rest.pop(name, "").split(separator) if part and part not in own]
        if parts:
            rest[name] = separator.join(parts)
    return rest
