"""Shows how far our objective and the frameworks' differ, after the parity tests."""

from __future__ import annotations

import sys

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    parity = sys.modules.get("tests.frameworks.parity")
    if parity is None or not parity.TABLE.rows:
        return
    terminalreporter.section("parity with the installed frameworks")
    for line in parity.TABLE.lines():
        terminalreporter.write_line(line)
