"""What all tests share."""

from __future__ import annotations

import pytest

from tests.repo.source import size_line


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(size_line())
