"""Reads flawed runs, one after the other, and says of each what happened. Run as a process by the tests.

A line before each flaw (its number) and one after it (JSON) tell the parent which one a crash belongs to.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import traceback
from pathlib import Path

from layerscope.errors import LayerscopeError
from layerscope.store.compaction import compact
from tests.damage.flaws import Counts, flawed, flaws
from tests.damage.reading import Answers, read_all

MEMORY_BYTES = 3 << 30  # address space: what asks for more gets a MemoryError, which is a failure
COMPACT_EVERY = 5  # of as many flaws, one is compacted too


def main(folder: str, copies: str, seed: int, counts: Counts, numbers: range) -> None:
    """Read the flaws of some numbers."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    runs = {name: Path(folder) / name for name in ("uncompacted", "compacted")}
    targets = {name: Path(copies) / name for name in runs}
    for name, run in runs.items():
        shutil.copytree(run, targets[name], dirs_exist_ok=True)
    sound = {name: read_all(run) for name, run in targets.items()}
    listed = flaws(runs, seed, counts)
    for number in numbers:
        _say(str(number))
        flaw = listed[number]
        with flawed(flaw, runs[flaw.run], targets[flaw.run]) as target:
            known = None if flaw.forged else sound[flaw.run]
            faults = _faults(target, known, with_compaction=number % COMPACT_EVERY == 0)
        _say(json.dumps({"number": number, "flaw": flaw.text, "faults": faults, "peak_mb": _peak_mb()}))


def _faults(target: Path, sound: Answers | None, *, with_compaction: bool) -> list[str]:
    """What went wrong with one flaw: nothing, if all is well."""
    faults = []
    try:
        found = read_all(target)
        if sound is not None and (silent := found.silently_other(sound)):
            faults.append(f"silently different: {', '.join(silent)}")
        if with_compaction:
            faults += _compacted(target, sound)
    except Exception:  # noqa: BLE001  what the test is about: whatever is not one of our errors
        faults.append(traceback.format_exc(limit=-4))
    return faults


def _compacted(target: Path, sound: Answers | None) -> list[str]:
    copy = target.with_name("copy")
    shutil.copytree(target, copy)
    try:
        compact(copy)
        said = ""
    except LayerscopeError as error:
        said = str(error)
    found = read_all(copy)
    shutil.rmtree(copy)
    silent = [] if said or sound is None else found.silently_other(sound)
    return [f"silently different after compaction: {', '.join(silent)}"] if silent else []


def _peak_mb() -> int:
    """Of this process alone: what getrusage says begins with the peak of the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        tuple(int(word) for word in sys.argv[4].split(",")),  # type: ignore[arg-type]  # four of them
        range(int(sys.argv[5]), int(sys.argv[6])),
    )
