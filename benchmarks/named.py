"""How long questions about named tensors take, on a run of 200 steps × 20 iterations × 30 tensors and their gradients.

    python -m benchmarks.named [FOLDER]        makes the run in FOLDER (or a temporary one) and asks

Values of 5 samples × 64 numbers are kept of every tensor: 240,000 arrays, 307 MB.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from layerscope.model import summary_spec
from layerscope.model.records import (
    BATCH_STATISTICS,
    CustomStatistics,
    DependencyLink,
    Floats,
    Ids,
    Kind,
    Metric,
    Mode,
    NamedNode,
    Phase,
    Series,
    StepInfo,
    Summaries,
    TensorType,
    TensorValues,
    call_site,
)
from layerscope.runs import Run
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink

STEPS, ITERATIONS, NODES, SAMPLES, WIDE = 200, 20, 30, 5, 64
_KINDS = ((Kind.TENSOR, Phase.FORWARD), (Kind.TENSOR_GRAD, Phase.BACKWARD))
_BITS = summary_spec.encode(summary_spec.BitCounts(3, np.array([8600, 8601], np.int32), np.array([160, 160])))


def make(folder: Path) -> Path:
    """The run, compacted."""
    sink = FolderSink(create(folder), queue_bytes=1 << 30)
    names = [f"node{k:02}" for k in range(NODES)]
    nodes = tuple(NamedNode(name, TensorType.INTERMEDIATE, (("", (SAMPLES, WIDE)),)) for name in names)
    links = tuple(DependencyLink(a, "", 0, b, "") for a, b in pairwise(names))
    ids = np.array(
        [
            sink.series_id(
                Series(call_site(name, iteration), "tensor", kind, Mode.TRAIN, reading, "float32", (SAMPLES, WIDE))
            )
            for iteration in range(1, ITERATIONS + 1)
            for name in names
            for kind, reading in _KINDS
        ],
        np.int32,
    )
    chosen, chance = np.arange(SAMPLES, dtype=np.int32), np.random.default_rng(0)
    for step in range(STEPS):
        arrays = chance.normal(size=(len(ids), SAMPLES, WIDE)).astype(np.float32)
        sink.put(summaries(step, ids, arrays.reshape(len(ids), -1).astype(np.float64)))
        owners = np.repeat(ids, len(BATCH_STATISTICS))
        sink.put(CustomStatistics(step, owners, BATCH_STATISTICS * len(ids), chance.normal(size=len(owners))))
        for number, array in zip(ids.tolist(), arrays, strict=True):
            sink.put(TensorValues.one(step, number, chosen, array))
        sink.put(Metric(step, "loss", 1.0 / (step + 1), float(step), f"type {step % 5}"))
        graphs = (-1, *[sink.dependencies_id(nodes, links)] * ITERATIONS)
        told = (tuple(range(SAMPLES)), (), ("",))
        sink.put(StepInfo(step, f"type {step % 5}", ITERATIONS, SAMPLES, graphs, *told, "schedule"))
        sink.flush()
    sink.close(300.0)
    return sink.run.path


def summaries(step: int, ids: Ids, rows: Floats) -> Summaries:
    """Summaries of rows of numbers, with bit-counts that stand for any."""
    counts = np.zeros((len(ids), len(summary_spec.COUNTS)))
    counts[:, :2] = rows.shape[1]
    powers = [rows, np.abs(rows), *(rows**power for power in (2, 3, 4, 8))]
    magnitude = np.abs(rows)
    extremes = [rows.min(1), rows.max(1), magnitude.min(1), magnitude.max(1)]
    moments = np.column_stack([counts, *(power.sum(1) for power in powers), *extremes])
    return Summaries(
        step=step,
        series=ids,
        moments=moments,
        m=np.full(len(ids), 3, np.uint8),
        offsets=np.arange(len(ids) + 1) * len(_BITS),
        bits=np.frombuffer(_BITS * len(ids), np.uint8).copy(),
        alias=np.full(len(ids), -1, np.int32),
        scale=np.ones(len(ids)),
        merged=np.ones(len(ids), np.int32),
    )


def page(run: Run, step: int, node: str, iteration: int, sample: int | None) -> None:
    """All that the page asks of one selection."""
    named = run.named()
    named.types()
    named.steps("type 1")
    named.graph(step, iteration)
    for loss in (None, ""):
        named.statistics(step, node, "", iteration, loss, sample)
        named.values(step, node, "", iteration, loss)
    named.history(node, "std", "", iteration, sample=sample)


def timed(action: Callable[[int], object], times: int = 15) -> tuple[float, float]:
    """Median milliseconds of an action, which is told its turn: of time and of computing time."""
    taken, computed = [], []
    for turn in range(times):
        start, computing = time.perf_counter(), time.process_time()
        action(turn)
        taken.append(1000 * (time.perf_counter() - start))
        computed.append(1000 * (time.process_time() - computing))
    return statistics.median(taken), statistics.median(computed)


def measure(folder: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds of each question: of time and of computing time."""
    run = Run(folder)
    page(run, 0, "node00", 1, None)
    return {
        "cold: open the run and show one tensor": timed(lambda k: page(Run(folder), 7 * k, "node05", 1 + k, None), 5),
        "another step": timed(lambda k: page(run, 5 + k, "node01", 2, None)),
        "another tensor": timed(lambda k: page(run, 7, f"node{k:02}", 3, None)),
        "another iteration": timed(lambda k: page(run, 9, "node03", 4 + k, None)),
        "another tensor, one sample": timed(lambda k: page(run, 9, f"node{k:02}", 5, 2)),
        "another sample": timed(lambda k: page(run, 9, "node05", 6, k % SAMPLES)),
        "the same again": timed(lambda _: page(run, 9, "node05", 6, 1)),
    }


def main(folder: Path) -> None:
    path = folder / "named"
    if not path.exists():
        start = time.perf_counter()
        make(path)
        print(f"made in {time.perf_counter() - start:.1f} s")
    raw = STEPS * ITERATIONS * NODES * 2 * SAMPLES * WIDE * 4
    sizes = {
        table.name: sum(file.stat().st_size for file in table.iterdir())
        for table in sorted((path / "tables").iterdir())
    }
    print({name: f"{size / raw:.3f} of the raw bytes" for name, size in sizes.items() if size > raw / 1000})
    for question, (taken, computed) in measure(path).items():
        print(f"{question:42} {taken:7.1f} ms, computing {computed:.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
