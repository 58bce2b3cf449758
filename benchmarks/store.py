"""What the run folder costs: the writer beside a training, the bytes on disk, the reader on two million summaries.

    python -m benchmarks.store [--json PATH] [--series 2000] [--steps 200] [--repeat 5]

Reader figures are given twice: of a reader just opened, and the median of further calls. The files are in the
system's cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.make_run import Recipe, series_of, shifted, steps_of
from layerscope.model.records import Summaries
from layerscope.stats import derived
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.reader import Reader, encoded
from layerscope.store.writer import FolderSink

CALLS = 9


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and the most it should be."""

    what: str
    value: float
    unit: str
    at_most: float | None = None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path)
    options.add_argument("--series", type=int, default=2000)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--repeat", type=int, default=5, help="how often the steps are counted on for the reader")
    chosen = options.parse_args()
    recipe = Recipe(series=chosen.series, steps=chosen.steps)
    made = list(steps_of(recipe, np.arange(recipe.series, dtype=np.int32)))
    with tempfile.TemporaryDirectory() as folder:
        figures = writing(Path(folder) / "written", recipe, made)
        figures += reading(Path(folder) / "read", recipe, made, chosen.repeat)
    show(figures)
    if chosen.json:
        chosen.json.write_text(json.dumps([row(figure) for figure in figures], indent=1))


def row(figure: Figure) -> dict[str, str]:
    """The figure as a row of the documentation's table."""
    limit = "" if figure.at_most is None else f"{figure.at_most:g} {figure.unit}"
    return {"what": figure.what, "measured": f"{figure.value:.3g} {figure.unit}", "limit": limit}


def show(figures: list[Figure]) -> None:
    for figure in figures:
        bound = "" if figure.at_most is None else f"  (at most {figure.at_most:g})"
        late = "  LATE" if figure.at_most is not None and figure.value > figure.at_most else ""
        print(f"{figure.what:<58} {figure.value:>10.3f} {figure.unit}{bound}{late}")


def writing(folder: Path, recipe: Recipe, made: list[Summaries]) -> list[Figure]:
    """One put every 50 ms, as a training would do it: hand-over, CPU of the writer, bytes."""
    sink = FolderSink(create(folder), compact=False)
    for series in series_of(recipe):
        sink.series_id(series)
    handed: list[float] = []
    for summaries in made:
        started = time.perf_counter()
        sink.put(summaries)
        handed.append((time.perf_counter() - started) * 1e3)
        time.sleep(0.05)
    sink.flush()
    cpu_ms = sink.cpu_s * 1e3 / len(made)
    sink.close()
    rows = recipe.series * len(made)
    before = size_of(folder)
    started_cpu = time.process_time()
    report = compact(folder)
    return [
        Figure("writer: hand-over per step, median", statistics.median(handed), "ms", 0.3),
        Figure("writer: hand-over per step, longest", max(handed), "ms", 5),
        Figure("writer: CPU of its thread per step", cpu_ms, "ms", 3),
        Figure("the machine: CPU of appending as many bytes to a file", append_ms(folder, before // len(made)), "ms"),
        Figure("writer: bytes per summary while training", before / rows, "bytes"),
        Figure("writer: bytes per summary compacted", size_of(folder) / rows, "bytes", 500),
        Figure("writer: bytes per summary compacted, moments", size_of(folder / "tables/moments") / rows, "bytes"),
        Figure("compaction: time", report.elapsed_s, "s"),
        Figure("compaction: CPU per 1,000 summaries", (time.process_time() - started_cpu) * 1e6 / rows, "ms"),
        Figure("writer: rows dropped", float(sum(sink.dropped.values())), "rows", 0),
    ]


def append_ms(folder: Path, size: int) -> float:
    """The least a step can cost: its bytes in one plain append."""
    content, spent = bytes(size), []
    with (folder / "plain").open("ab", buffering=0) as file:
        for _ in range(50):
            started = time.thread_time()
            file.write(content)
            spent.append((time.thread_time() - started) * 1e3)
    (folder / "plain").unlink()
    return statistics.median(spent)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def reading(folder: Path, recipe: Recipe, made: list[Summaries], repeat: int) -> list[Figure]:
    sink = FolderSink(create(folder), compact=False)
    for series in series_of(recipe):
        sink.series_id(series)
    for turn in range(repeat):
        for summaries in made:
            sink.put(shifted(summaries, turn * recipe.steps))
            sink.flush()  # one batch for each step: the most a reader has to walk
    sink.close()
    steps = repeat * recipe.steps
    figures = queries(folder, "not compacted", recipe.series, steps, (100, None, None, 250))
    report = compact(folder)
    figures.append(Figure(f"compaction of {recipe.series * steps} summaries", report.elapsed_s, "s"))
    return figures + queries(folder, "compacted", recipe.series, steps, (20, 100, 250, 25))


def queries(folder: Path, state: str, series: int, steps: int, at_most: tuple[float | None, ...]) -> list[Figure]:
    one = np.array([series // 2], np.int32)
    every = np.arange(1, steps + 1, max(steps // 200, 1))

    def decoded(reader: Reader) -> object:
        return derived.decode_bits(*encoded(reader.moments(one, columns=[], bits=True)))

    calls: list[tuple[str, Callable[[Reader], object], float | None]] = [
        ("one series", lambda reader: reader.moments(one), at_most[0]),
        ("one step of all series", lambda reader: reader.moments(steps=(steps // 2, steps // 2)), at_most[1]),
        ("heat map, 200 steps", lambda reader: reader.moments(steps=every, columns=["finite", "sum2"]), at_most[2]),
        ("bit-counts of one series, read", lambda reader: reader.moments(one, columns=[], bits=True), at_most[3]),
        ("bit-counts of one series, read and decoded", decoded, at_most[3]),
    ]
    figures = []
    for what, call, bound in calls:
        reader = Reader(folder)
        first, *further = [elapsed_ms(call, reader) for _ in range(CALLS)]
        figures.append(Figure(f"{state}: {what}, first", first, "ms"))
        figures.append(Figure(f"{state}: {what}", statistics.median(further), "ms", bound))
    return figures


def elapsed_ms(call: Callable[[Reader], object], reader: Reader) -> float:
    started = time.perf_counter()
    call(reader)
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
