"""Runs whose every number follows from series and step, so that any row read back can be checked."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.records import (
    SAMPLE_STATISTICS,
    CustomStatistics,
    DependencyLink,
    Floats,
    Ids,
    Kind,
    Metric,
    Mode,
    NamedNode,
    Overhead,
    Phase,
    SampleStats,
    Series,
    StepInfo,
    Summaries,
    TensorType,
    TensorValues,
)
from layerscope.store.format import Live
from layerscope.store.manifests import read_live, read_manifest, sealed
from layerscope.store.reader import Reader, arrays_of, numbers_of
from layerscope.store.writer import FolderSink

ROOT = Path(__file__).parents[2]
NO_SAMPLES: Ids = np.zeros(0, np.int32)
NAMED = 4  # tensors that a step of `put_named` names


def series_at(place: int) -> Series:
    """The series that is put at a place of a step."""
    return Series(f"layer.{place}", "output.0", Kind.OUTPUT, Mode.TRAIN, Phase.FORWARD, "float32", (place, 3))


def moments_at(series: npt.ArrayLike, step: npt.ArrayLike, salt: float = 0.0) -> Floats:
    """The moments of rows, (rows, moments): different for every series, step and moment."""
    column = np.arange(len(summary_spec.MOMENTS))[None, :]
    number, time = (np.asarray(value, np.float64).reshape(-1, 1) for value in (series, step))
    return np.asarray(number * 1000.0 + time * 7.0 + column + salt)


@functools.cache
def bits_at(series: int, step: int) -> bytes:
    """The encoded bit-counts of a row."""
    codes = np.array([-8600, 8600 + series % 50, 8700 + step % 90], np.int32)
    return summary_spec.encode(summary_spec.BitCounts(3, codes, np.array([step + 1, series + 1, 200])))


def summaries(step: int, ids: Sequence[int], *, alias: Sequence[int] | None = None, salt: float = 0.0) -> Summaries:
    """The summaries of some series at one step."""
    of = np.full(len(ids), -1, np.int32) if alias is None else np.array(alias, np.int32)
    encoded = [b"" if of[row] >= 0 else bits_at(number, step) for row, number in enumerate(ids)]
    return Summaries(
        step=step,
        series=np.array(ids, np.int32),
        moments=moments_at(ids, np.full(len(ids), step), salt),
        m=np.full(len(ids), 3, np.uint8),
        offsets=np.cumsum([0, *map(len, encoded)]),
        bits=np.frombuffer(b"".join(encoded), np.uint8).copy(),
        alias=of,
        scale=np.full(len(ids), 2.0),
        merged=np.ones(len(ids), np.int32),
    )


def value_at(series: int, step: int, name: str) -> float:
    """The custom statistic of a row."""
    return series * 10.0 + step / 8 + len(name)


def extras(step: int, ids: Sequence[int], names: Sequence[str] = ("own", "other")) -> CustomStatistics:
    """Custom statistics of some series at one step, one row for each series and name."""
    pairs = [(number, name) for number in ids for name in names]
    values = np.array([value_at(number, step, name) for number, name in pairs])
    return CustomStatistics(
        step, np.array([number for number, _ in pairs], np.int32), tuple(name for _, name in pairs), values
    )


def cost_at(step: int) -> Overhead:
    """What recording a step cost."""
    return Overhead(step, 0.5 + step, 0.1 * step, 3 * step, 1000 * step)


def put_steps(sink: FolderSink, steps: Sequence[int], width: int = 3, salt: float = 0.0) -> list[int]:
    """Puts some steps of the first `width` series, with custom statistics, metric and overhead; gives their numbers."""
    ids = [sink.series_id(series_at(place)) for place in range(width)]
    for step in steps:
        sink.put(summaries(step, ids, salt=salt))
        sink.put(extras(step, ids[:2]))
        sink.put(cost_at(step))
        sink.put(Metric(step, "loss", 1.0 / (step + 1), 100.0 + step))
    return ids


def array_at(step: int, place: int) -> npt.NDArray[np.float32]:
    """The value kept of a named tensor, two samples of it."""
    return (np.arange(2 * (1 + step % 5), dtype=np.float32) + step * 100 + place).reshape(2, -1)


def graph_at(step: int) -> tuple[tuple[NamedNode, ...], tuple[DependencyLink, ...]]:
    """The dependency graph of a step; there are seven different ones."""
    nodes = tuple(NamedNode(f"n{place}", TensorType.INTERMEDIATE, (("", (2, step % 7)),)) for place in range(NAMED))
    return nodes, tuple(DependencyLink(f"n{place}", "", 0, f"n{place + 1}", "") for place in range(NAMED - 1))


def named_series(place: int) -> Series:
    """The series of a named tensor."""
    return Series(f"n{place}", "tensor", Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, "float32", (place, 0))


def put_named(sink: FolderSink, steps: Sequence[int]) -> None:
    """Puts some steps with kept values, statistics of samples and a dependency graph."""
    series = [
        Series(f"n{k}", "tensor", Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, "float32", (k, 0)) for k in range(NAMED)
    ]
    ids, samples = [sink.series_id(one) for one in series], np.array([1, 4], np.int32)
    for step in steps:
        for place, number in enumerate(ids):
            sink.put(TensorValues.one(step, number, samples, array_at(step, place)))
            sink.put(SampleStats(step, number, samples, np.full((2, len(SAMPLE_STATISTICS)), step + place / 8)))
        graphs = (-1, sink.dependencies_id(*graph_at(step)))
        sink.put(StepInfo(step, "even" if step % 2 == 0 else "odd", 1, 8, graphs, (1, 4), (), ("",), "schedule"))


def check_named(reader: Reader) -> set[tuple[int, int]]:
    """Checks that of every step whose row is there all else is there and right; gives their sessions and steps."""
    steps = reader.steps(history=True).to_pylist()
    values, stats = reader.values(history=True), reader.sample_stats(history=True)
    graphs = {graph.number: (graph.nodes, graph.links) for graph in reader.dependencies()}
    place = {row["series"]: int(row["site"][1:]) for row in reader.series().to_pylist() if row["site"][0] == "n"}
    kept = dict(zip(keys_of(values), arrays_of(values), strict=True))
    for (_, _, step, series), array in kept.items():
        np.testing.assert_array_equal(array, array_at(step, place[series]))
    for (_, _, step, series), found in zip(keys_of(stats), numbers_of(stats), strict=True):
        assert (found == step + place[series] / 8).all()
    assert len(kept) == values.num_rows
    for row in steps:
        for number in place:
            assert (row["rank"], row["session"], row["step"], number) in kept
        assert graphs[json.loads(row["graphs"])[1]] == graph_at(row["step"])
    return {(row["session"], row["step"]) for row in steps}


def live_of(folder: Path) -> Live:
    """What live.json of a run says."""
    return read_live(folder, read_manifest(folder).id)


def forge(path: Path, **changes: object) -> None:
    """Changes keys of a JSON file of a run, and its checksum with them."""
    content = json.loads(path.read_bytes())
    del content["checksum"]
    path.write_bytes(sealed({**content, **changes}))


def keys_of(table: pa.Table) -> list[tuple[int, int, int, int]]:
    """Rank, session, step and series of every row."""
    columns = (table.column(name).to_pylist() for name in ("rank", "session", "step", "series"))
    return list(zip(*columns, strict=True))


def check_numbers(reader: Reader) -> list[tuple[int, int, int, int]]:
    """Reads everything, checks that every row is right and none is there twice; gives the keys of the moments."""
    moments = reader.moments(history=True)
    keys = keys_of(moments)
    assert len(keys) == len(set(keys))
    found = np.stack([moments.column(name).to_numpy().astype(np.float64) for name in summary_spec.MOMENTS], 1)
    np.testing.assert_array_equal(found, moments_at(moments["series"].to_numpy(), moments["step"].to_numpy()))
    bits = reader.moments(columns=[], bits=True, history=True)
    assert len(keys_of(bits)) == len(set(keys_of(bits)))
    for (_, _, step, series), counts in zip(keys_of(bits), bits["counts"].to_pylist(), strict=True):
        assert counts in (bits_at(series, step), None)  # null where the bit-counts were lost
    for row in reader.metrics(history=True).to_pylist():
        assert row["value"] == 1.0 / (row["step"] + 1)
        assert row["time_s"] == 100.0 + row["step"]
    found_extras = reader.custom_statistics(history=True).to_pylist()
    assert len({tuple(row.values()) for row in found_extras}) == len(found_extras)
    for row in found_extras:
        assert row["value"] == value_at(row["series"], row["step"], row["name"])
    for row in reader.overhead(history=True).to_pylist():
        assert Overhead(**{name: row[name] for name in Overhead.__slots__}) == cost_at(row["step"])
    for row in reader.series().to_pylist():
        assert row["site"] in (f"layer.{row['shape'][0]}", f"n{row['shape'][0]}")
    return keys


def start(module: str, *arguments: object, **options: str) -> subprocess.Popen[str]:
    """A process that runs a module of these tests, to be talked with line by line."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **options}
    command = [sys.executable, "-m", f"tests.store.{module}", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)


def close_quietly(sink: FolderSink) -> None:
    """Closes a sink whose troubles were told already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sink.close()
