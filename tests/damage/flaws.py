"""Flaws of a run folder, chosen by a seed: flipped bits, cut, deleted and exchanged files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.damage import signing

FLIPS, CUTS, MOVES, FORGERIES = 10_000, 2_000, 500, 2_000
Counts = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing done to a run, and how it is called in a report."""

    run: str
    text: str
    apply: Callable[[Path], None]  # takes the folder of the run
    touched: tuple[str, ...]  # files below the run
    forged: bool = False  # its checksums are right: numbers may differ, nothing else may happen


def flaws(runs: dict[str, Path], seed: int, counts: Counts) -> list[Flaw]:
    """As many flips, cuts, moves and forgeries as asked for; every kind of file is as likely as any other."""
    chooser = random.Random(seed)
    kinds = {name: by_kind(folder) for name, folder in runs.items()}
    made: list[Flaw] = []
    for make, count in zip((_flip, _cut, _move, _forge), counts, strict=True):
        for at in range(count):
            name = list(runs)[at % len(runs)]
            made.append(make(chooser, name, runs[name], kinds[name]))
    return made


def by_kind(folder: Path) -> dict[str, list[str]]:
    """The files of a run that hold anything, by what they are."""
    kinds: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.stat().st_size:
            below = file.relative_to(folder)
            first, *rest = below.parts
            table = f"{first}/{rest[0]}" if first in ("segments", "tables") else first
            kinds.setdefault(f"{first}/{rest[-1]}" if first == "traces" else table, []).append(below.as_posix())
    return kinds


def _chosen(chooser: random.Random, kinds: dict[str, list[str]]) -> str:
    return chooser.choice(kinds[chooser.choice(list(kinds))])


def _flip(chooser: random.Random, run: str, folder: Path, kinds: dict[str, list[str]]) -> Flaw:
    file = _chosen(chooser, kinds)
    at, bit = chooser.randrange((folder / file).stat().st_size), chooser.randrange(8)

    def apply(target: Path) -> None:
        content = bytearray((target / file).read_bytes())
        content[at] ^= 1 << bit
        (target / file).write_bytes(content)

    return Flaw(run, f"{run}: bit {bit} of byte {at} of {file} flipped", apply, (file,))


def _cut(chooser: random.Random, run: str, folder: Path, kinds: dict[str, list[str]]) -> Flaw:
    file = _chosen(chooser, kinds)
    size = (folder / file).stat().st_size
    left = chooser.choice(
        (0, chooser.randrange(size), size - 1, max(size - 8, 0), size - size % 8 - 8 * (size % 8 == 0))
    )

    def apply(target: Path) -> None:
        with (target / file).open("r+b") as opened:
            opened.truncate(max(left, 0))

    return Flaw(run, f"{run}: {file} cut from {size} to {left} bytes", apply, (file,))


def _move(chooser: random.Random, run: str, folder: Path, kinds: dict[str, list[str]]) -> Flaw:
    how = chooser.choice(("deleted", "exchanged", "exchanged", "copied"))
    file = _chosen(chooser, kinds)
    if how == "deleted":
        return Flaw(run, f"{run}: {file} deleted", lambda target: (target / file).unlink(), (file,))
    alike = [kind for kind in kinds if Path(kinds[kind][0]).suffix == Path(file).suffix]
    same = next(files for files in kinds.values() if file in files)
    pool = same if len(same) > 1 and chooser.random() < 0.5 else kinds[chooser.choice(alike)]
    other = chooser.choice(pool)

    def exchange(target: Path) -> None:
        ours, theirs = (target / file).read_bytes(), (target / other).read_bytes()
        (target / file).write_bytes(theirs)
        if how == "exchanged":
            (target / other).write_bytes(ours)

    text = f"{run}: {file} and {other} exchanged" if how == "exchanged" else f"{run}: {file} replaced by {other}"
    return Flaw(run, text, exchange, (file, other))


def _forge(chooser: random.Random, run: str, folder: Path, kinds: dict[str, list[str]]) -> Flaw:
    """A flipped bit, with checksums that are right again."""
    made = _flip(chooser, run, folder, {kind: files for kind, files in kinds.items() if not kind.endswith(".lock")})
    (file,) = made.touched
    parts = Path(file).parts
    first, last = parts[0], parts[-1]
    content = (folder / file).read_bytes()
    places = signing.frames(content) if first == "segments" else signing.chunks(content) if first == "tables" else []

    def apply(target: Path) -> None:
        made.apply(target)
        if last.endswith(".json"):
            signing.sign_json(target / file)
        elif first == "segments":
            signing.sign_segment(target / file, places)
        elif first == "tables":
            signing.sign_part(target, parts[1], last, places)
        else:
            signing.sign_trace_file((target / file).parent, last)

    others = (
        ("live.json",) if first == "tables" else (str(Path(file).parent / "trace.json"),) if first == "traces" else ()
    )
    return Flaw(run, f"{made.text}, checksums made right", apply, (file, *others), forged=True)


@contextmanager
def flawed(flaw: Flaw, sound: Path, target: Path) -> Iterator[Path]:
    """A copy of a run that has the flaw inside the block, and is sound again after it."""
    flaw.apply(target)
    try:
        yield target
    finally:
        for file in flaw.touched:
            shutil.copy2(sound / file, target / file)
