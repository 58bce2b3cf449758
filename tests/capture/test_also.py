"""Sinks besides the run folder: each gets the same records, and one that fails or is slow harms nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layerscope as ls
from layerscope.errors import ArgumentError, LayerscopeWarning
from layerscope.model.records import (
    CustomStatistics,
    Event,
    Metric,
    NumberedSeries,
    Series,
    SinkRecord,
    Summaries,
    TensorValues,
)
from layerscope.model.summary_spec import MOMENTS
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.capture.models import Mlp


class JsonLines:
    """Writes summaries, custom statistics, metrics and events to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._series: dict[int, Series] = {}

    def write(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            if isinstance(record, NumberedSeries):
                self._series[record.number] = record.series
            elif isinstance(record, Summaries):
                self._write_summaries(record)
            elif isinstance(record, CustomStatistics):
                for number, name, value in zip(record.series.tolist(), record.names, record.values, strict=True):
                    self._line("custom", record.step, self._series[number].site, name, float(value))
            elif isinstance(record, Metric):
                self._line("metric", record.step, record.name, record.value)
            elif isinstance(record, Event):
                self._line("event", record.step, record.level, record.text)

    def _write_summaries(self, record: Summaries) -> None:
        rows = {number: row for row, number in enumerate(record.series.tolist())}
        for number, alias in zip(record.series.tolist(), record.alias.tolist(), strict=True):
            moments = record.moments[rows[number if alias < 0 else alias]]
            series = self._series[number]
            self._line("summary", record.step, series.site, series.kind.value, moments[MOMENTS.index("max")])

    def _line(self, *values: object) -> None:
        self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        self._line("closed")
        self._file.close()


class Failing:
    """Takes one load, then fails."""

    def __init__(self) -> None:
        self.calls = self.closed = 0

    def write(self, records: Sequence[SinkRecord]) -> None:
        self.calls += 1
        raise ConnectionError("no route to host")

    def close(self) -> None:
        self.closed += 1


class Slow:
    """Takes nothing until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.records: list[SinkRecord] = []

    def write(self, records: Sequence[SinkRecord]) -> None:
        self.released.wait(30)
        self.records += records

    def close(self) -> None:
        pass


def lines(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(model: nn.Module, folder: Path, also: Sequence[object], steps: int = 6) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"statistics": lambda tensor: {"first": tensor.flatten()[0]}, "kinds": "all"}
    with ls.watch(model, optimizer, to=folder, every=2, also=also, **options) as run:  # type: ignore[arg-type]
        for step in range(steps):
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                run.note("half")
            run.step(loss=loss)


def test_another_sink_receives_what_the_folder_holds(tmp_path: Path) -> None:
    train(Mlp(), tmp_path / "run", [JsonLines(tmp_path / "a.jsonl"), JsonLines(tmp_path / "b.jsonl")])
    run, received = ls.open(tmp_path / "run"), lines(tmp_path / "a.jsonl")
    assert received == lines(tmp_path / "b.jsonl")
    assert received[-1] == ["closed"]
    table = run.stats(stat="max", kind="*")
    stored = sorted(zip(table["step"], table["site"], table["kind"], table["max"], strict=True))
    assert sorted(tuple(line[1:]) for line in received if line[0] == "summary") == stored
    metrics = run.metrics()
    assert [line[1:] for line in received if line[0] == "metric"] == [
        [step, "loss", loss] for step, loss in zip(metrics["step"], metrics["loss"], strict=True)
    ]
    assert ["event", 3, "note", "half"] in received
    custom = run.stats(stat="first", kind="*")
    stored_custom = sorted(zip(custom["step"], custom["site"], custom["first"], strict=True))
    assert (
        sorted((line[1], line[2], line[4]) for line in received if line[0] == "custom" and line[3] == "first")
        == stored_custom
    )


def test_a_training_with_two_more_sinks_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    states = []
    for also in ((), (JsonLines(tmp_path / "a.jsonl"), JsonLines(tmp_path / "b.jsonl"))):
        torch.manual_seed(3)
        model = Mlp()
        train(model, tmp_path / f"run{len(also)}", also)
        states.append([*model.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


def test_a_sink_that_fails_is_reported_once_and_nothing_else_is_lost(tmp_path: Path) -> None:
    failing = Failing()
    with pytest.warns(LayerscopeWarning, match="The sink Failing failed .*no route to host") as caught:
        train(Mlp(), tmp_path / "run", [failing, JsonLines(tmp_path / "a.jsonl")])
    assert len([warning for warning in caught if "Failing" in str(warning.message)]) == 1
    assert (failing.calls, failing.closed) == (1, 1)
    run = ls.open(tmp_path / "run")
    assert run.metrics()["step"] == list(range(6))
    events = run.events()
    assert len([text for text in events["text"] if "The sink Failing failed" in text]) == 1
    assert len([line for line in lines(tmp_path / "a.jsonl") if line[0] == "metric"]) == 6


def test_a_slow_sink_drops_values_first_and_the_folder_counts_them(tmp_path: Path) -> None:
    slow = Slow()
    sink = FolderSink(create(tmp_path / "run"), queue_bytes=1 << 20, also=[slow])
    for step in range(8):
        values = np.zeros((4, 25_000), np.float32)
        sink.put(TensorValues.one(step, 0, np.arange(4, dtype=np.int32), values), Metric(step, "loss", 1.0, 0.0))
    slow.released.set()
    sink.close()
    received = [record.step for record in slow.records if isinstance(record, TensorValues)]
    assert [record.step for record in slow.records if isinstance(record, Metric)] == list(range(8))
    assert 0 < len(received) < 8
    run = ls.open(tmp_path / "run")
    assert run.metrics()["step"] == list(range(8))
    (text,) = [text for text in run.events()["text"] if "the sink Slow was slower than the recording" in text]
    assert f"{8 - len(received)} rows of values" in text


def test_closing_does_not_wait_forever_for_a_sink_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSink.close, "__defaults__", (0.2,))
    slow = Slow()
    with pytest.warns(LayerscopeWarning, match="The sink Slow did not finish in time"):
        train(Mlp(), tmp_path / "run", [slow])
    slow.released.set()
    assert ls.open(tmp_path / "run").metrics()["step"] == list(range(6))


@pytest.mark.parametrize("also", [[print], "runs", ["runs/second"], 3])
def test_what_is_not_a_list_of_sinks_is_refused_before_a_folder_is_made(also: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"is not a sink: it needs the methods write\(records\) and close\(\)"):
        ls.watch(Mlp(), to=tmp_path / "run", also=also)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


UNCLOSED = """
import sys
from pathlib import Path
import torch
import layerscope as ls
from tests.capture.test_also import JsonLines
model = torch.nn.Linear(2, 2)
run = ls.watch(model, to=Path(sys.argv[1]) / "run", every=1, also=[JsonLines(Path(sys.argv[1]) / "a.jsonl")])
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    run.step(loss=1.0)
"""


def test_a_program_that_ends_without_close_closes_its_sinks(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", UNCLOSED, str(tmp_path)], check=True, timeout=120)
    received = lines(tmp_path / "a.jsonl")
    assert [line[1] for line in received if line[0] == "metric"] == [0, 1, 2]
    assert received[-1] == ["closed"]
