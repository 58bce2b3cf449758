"""Compaction in a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from layerscope.errors import StoreError
from layerscope.server.aside import run_aside

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)


def compact_in_another_process(run: Path) -> None:
    """Compact a run without taking memory or time from the server; the error says what the other process said."""
    command = [sys.executable, "-m", "layerscope.cli", "compact", str(run)]
    done = run_aside(command)
    # Ctrl-C in a terminal reaches the other process too: nothing is lost, and there is nothing to tell.
    if done.returncode not in (0, *INTERRUPTED):
        raise StoreError(done.stderr.strip().removeprefix("layerscope: ") or f"exit code {done.returncode}")
