"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.repo.source import size_line

# A test may be slow on a busy machine: time is measured by benchmarks.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(size_line())
