"""Work of the server in other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from layerscope.errors import StoreError
from layerscope.store.format import TABLES
from layerscope.store.sources import segment_names

GIVES_WAY = 19  # priority of a process: the lowest
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)


def run_aside(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What a command said that gave way to the server and a browser: both have much to do when a page is opened."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="backslashreplace"
    ) as process:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, process.pid, GIVES_WAY)
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def compact_aside(run: Path) -> None:
    """Compact a run without taking memory or time from the server; the error says what the other process said."""
    if not any(segment_names(run, table) for table in TABLES):
        return  # starting a process for each of thousands of runs takes minutes
    done = run_aside([sys.executable, "-m", "layerscope.cli", "compact", str(run)])
    # Ctrl-C in a terminal reaches the other process too: nothing is lost, and there is nothing to tell.
    if done.returncode not in (0, *INTERRUPTED):
        raise StoreError(done.stderr.strip().removeprefix("layerscope: ") or f"exit code {done.returncode}")
