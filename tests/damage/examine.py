"""Starts children that read flawed runs; a crash, a hang and a traceback are each laid to the flaw that caused them."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.damage.flaws import Counts
from tests.store.runs import ROOT

HANG_S = 30.0
AT_ONCE = 500  # flaws for each child


@dataclass(slots=True)
class Examined:
    """What became of all flaws."""

    seen: int = 0
    faults: list[str] = field(default_factory=list)
    peak_mb: int = 0


def examine(folder: Path, seed: int, counts: Counts, numbers: range) -> Examined:
    """Read every flaw of the numbers."""
    result, start = Examined(), numbers.start
    while start < numbers.stop:
        start = _examine_some(folder, seed, counts, range(start, min(start + AT_ONCE, numbers.stop)), result)
    return result


def _examine_some(folder: Path, seed: int, counts: Counts, numbers: range, result: Examined) -> int:
    """Let one child read; the number to go on with."""
    done, began = numbers.start, False
    with _copies() as copies:
        given = (folder, copies, seed, ",".join(map(str, counts)), numbers.start, numbers.stop)
        with _child(given) as child:
            for line in _lines(child):
                said, began = json.loads(line), True
                if isinstance(said, dict):
                    result.seen += 1
                    result.peak_mb = max(result.peak_mb, said["peak_mb"])
                    result.faults += [f"{said['flaw']} ({said['number']}): {fault}" for fault in said["faults"]]
                    done = said["number"] + 1
        if child.returncode == 0:
            assert done == numbers.stop
            return done
        assert began, child.stderr_text
        how = "hung" if child.returncode == HUNG else f"ended the process with {child.returncode}"
        result.faults.append(f"flaw {done} of seed {seed} {how}: {(child.stderr_text or '').strip()[-300:]}")
        result.seen += 1
        return done + 1


HUNG = -9


class _Child(subprocess.Popen[str]):
    stderr_text: str = ""


@contextmanager
def _child(given: tuple[object, ...]) -> Iterator[_Child]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.damage.child", *map(str, given)]
    with tempfile.TemporaryFile("w+") as errors:
        with _Child(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
            try:
                yield child
            finally:
                child.wait()
        errors.seek(0)
        child.stderr_text = errors.read()


def _lines(child: _Child) -> Iterator[str]:
    """What the child says, line by line; it is killed when it says nothing for long."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(child.stdout, selectors.EVENT_READ)
        rest = ""
        while True:
            if not waiting.select(HANG_S):
                child.kill()
                return
            read = os.read(child.stdout.fileno(), 1 << 16).decode()
            if not read:
                return
            *whole, rest = (rest + read).split("\n")
            yield from whole


@contextmanager
def _copies() -> Iterator[Path]:
    """A folder for copies, in memory where there is such a disk: every flaw writes."""
    memory = Path("/dev/shm")
    copies = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield copies
    finally:
        shutil.rmtree(copies)
