"""Closing a large run: who waits in a terminal sees how far it is, and nobody else sees anything."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.runs import ROOT

CLOSING = """
import sys
from layerscope.store import writer
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.store.runs import put_steps
writer.PATIENCE_S = float(sys.argv[2])
sink = FolderSink(create(sys.argv[1]))
put_steps(sink, range(20))
sink.close()
assert ("rich" in sys.modules) == bool(sys.argv[3:])
"""


def closed(folder: Path, patience_s: float, stderr: int, *shown: str) -> None:
    command = [sys.executable, "-c", CLOSING, str(folder), str(patience_s), *shown]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TERM": "xterm"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize(("patience_s", "shown"), [(0.0, ["shown"]), (60.0, [])])
def test_a_terminal_shows_a_line_if_it_takes_long(tmp_path: Path, patience_s: float, shown: list[str]) -> None:
    ours, theirs = pty.openpty()
    try:
        closed(tmp_path / "run", patience_s, theirs, *shown)
        os.set_blocking(ours, False)
        try:
            seen = os.read(ours, 1 << 16)
        except BlockingIOError:
            seen = b""
    finally:
        os.close(ours)
        os.close(theirs)
    assert (b"Compacting run" in seen) == bool(shown)
    assert shown or seen == b""


def test_what_is_no_terminal_gets_nothing(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as file:
        closed(tmp_path / "run", 0.0, file.fileno())
    assert (tmp_path / "stderr").read_bytes() == b""
