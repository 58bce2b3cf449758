"""The two runs of the tutorial, trained once for all tests, whichever process they run in."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAWS = bool(os.environ.get("LAYERSCOPE_SCREENSHOTS"))  # the pictures of the documentation show the whole trainings
STEPS = 1200 if DRAWS else 600


def recorded_lesson(folders: pytest.TempPathFactory) -> Path:
    """The folder of both runs."""
    base = folders.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with (shared / "lesson.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "lesson").exists():
            words = ("demo", "recurrent-bug", "--no-serve", "--steps", str(STEPS), "--to", "lesson")
            line = [sys.executable, "-m", "layerscope.cli", *words]
            said = subprocess.run(line, cwd=shared, capture_output=True, text=True)
            assert said.returncode == 0, said.stderr
            assert said.stderr == ""
            assert "layerscope ui lesson --view" in said.stdout
    return shared / "lesson"
