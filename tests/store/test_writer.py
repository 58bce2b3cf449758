"""The writer: what it takes, what it drops, what it says, what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.errors import LayerscopeWarning
from layerscope.model.records import CallGraph, Event, Metric, ModuleNode, TensorValues
from layerscope.store import segments
from layerscope.store.folder import create
from layerscope.store.format import TABLES
from layerscope.store.reader import Reader
from layerscope.store.write_queue import DROPPED_FIRST, WriteQueue, size_of
from layerscope.store.writer import FolderSink
from tests.store.runs import (
    NO_SAMPLES,
    check_numbers,
    close_quietly,
    cost_at,
    extras,
    put_steps,
    start,
    summaries,
)

NONE: dict[str, list[int]] = {queue: [] for queue in DROPPED_FIRST}


def value(step: int, kib: int = 1) -> TensorValues:
    return TensorValues.one(step, 0, NO_SAMPLES, np.zeros(kib * 128))


def test_what_was_put_is_read_back_after_a_flush(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, range(5))
    sink.put(Event(3, "note", "a note <b>", 4.0))
    sink.put(CallGraph((ModuleNode("", "Net", 12, "detail"), ModuleNode("a", "Linear", 3, ""))))
    assert sink.flush()
    reader = Reader(tmp_path / "run")
    assert len(check_numbers(reader)) == 15
    assert reader.events().to_pylist() == [
        {"rank": 0, "session": 1, "step": 3, "level": "note", "text": "a note <b>", "time_s": 4.0}
    ]
    assert reader.graph() == CallGraph((ModuleNode("", "Net", 12, "detail"), ModuleNode("a", "Linear", 3, "")))
    sink.close()


def test_closing_leaves_no_thread_no_lock_and_a_compacted_finished_run(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, range(5))
    sink.close()
    sink.close()
    assert set(threading.enumerate()) == before
    reader = Reader(tmp_path / "run")
    assert reader.status() == "finished"
    assert len(check_numbers(reader)) == 15
    assert not list((tmp_path / "run" / "segments").rglob("*.arrow"))


def test_a_closed_sink_takes_nothing_and_does_not_complain(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    sink.close()
    sink.put(Metric(1, "loss", 1.0, 1.0))
    assert Reader(tmp_path / "run").metrics().num_rows == 0


def test_segments_roll_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ROLL_BYTES", 1)
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    for step in range(4):
        put_steps(sink, [step])
        assert sink.flush()
    assert len(list((tmp_path / "run/segments/moments").iterdir())) == 4
    assert len(list((tmp_path / "run/segments/series").iterdir())) == 1
    sink.close()
    assert len(check_numbers(Reader(tmp_path / "run"))) == 12


def test_segments_roll_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ROLL_S", 0.0)
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    for step in range(3):
        put_steps(sink, [step])
        assert sink.flush()
    sink.close()
    assert len(list((tmp_path / "run/segments/metrics").iterdir())) == 3


def steps_waiting(backlog: WriteQueue) -> dict[str, list[int]]:
    """The steps that wait in each queue that may be dropped."""
    load = backlog.take(10**9)
    waiting = {queue: [getattr(item, "step", -1) for item in load.items[queue]] for queue in DROPPED_FIRST}
    backlog.give_back(load)
    return waiting


def test_the_backlog_drops_values_then_bits_then_extras_then_moments_and_never_metrics_or_costs() -> None:
    step, metric, own, cost = summaries(0, range(50)), Metric(0, "loss", 1.0, 0.0), extras(0, [1, 2]), cost_at(0)
    moments, bits = size_of("moments", step), size_of("bits", step)
    small = size_of("metrics", metric) + size_of("overhead", cost) + size_of("custom_statistics", own)
    backlog = WriteQueue(small + 3 * moments + 2 * bits - 1)
    backlog.add(metric)
    backlog.add(cost)
    backlog.add(own)
    backlog.add(TensorValues.one(0, 0, NO_SAMPLES, np.zeros(moments // 8 - 25)))
    backlog.add(summaries(1, range(50)))
    assert steps_waiting(backlog) == {**NONE, "values": [0], "bits": [1], "custom_statistics": [0], "moments": [1]}
    backlog.add(summaries(2, range(50)))
    assert steps_waiting(backlog) == {**NONE, "bits": [1, 2], "custom_statistics": [0], "moments": [1, 2]}
    backlog.add(summaries(3, range(50)))
    assert steps_waiting(backlog) == {**NONE, "bits": [3], "custom_statistics": [0], "moments": [1, 2, 3]}
    backlog.add(summaries(4, range(50)))
    assert steps_waiting(backlog) == {**NONE, "bits": [], "custom_statistics": [], "moments": [2, 3, 4]}
    left = backlog.take(0).items
    assert (left["metrics"], left["overhead"]) == ([metric], [cost])
    assert backlog.dropped == {"values": 1, "sample_stats": 0, "bits": 200, "custom_statistics": 4, "moments": 50}


def test_the_oldest_of_a_table_is_dropped_first() -> None:
    backlog = WriteQueue(2 * size_of("values", value(0)))
    for step in range(5):
        backlog.add(value(step))
    kept = backlog.take(10**9)
    assert [item.step for item in kept.items["values"] if isinstance(item, TensorValues)] == [3, 4]
    assert (kept.dropped["values"].first_step, kept.dropped["values"].last_step) == (0, 2)


def test_metrics_costs_and_events_are_kept_however_full_the_queue_is(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), queue_bytes=1)
    put_steps(sink, range(20))
    sink.put(Event(1, "note", "kept", 1.0))
    sink.put(value(3))
    sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.metrics().num_rows == reader.overhead().num_rows == 20
    assert reader.moments().num_rows == reader.custom_statistics().num_rows == 0
    assert sink.dropped == {"values": 1, "sample_stats": 0, "bits": 60, "custom_statistics": 80, "moments": 60}
    events = reader.events().to_pylist()
    assert "kept" in [event["text"] for event in events]
    told = " ".join(event["text"] for event in events if event["level"] == "drop")
    assert "rows of moments (steps 0 to" in told
    mark = json.loads((tmp_path / "run/sessions/r0-s1.json").read_bytes())
    assert mark["drops"] == sink.dropped


def test_a_forked_child_writes_nothing_and_closes_nothing(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        put_steps(sink, range(100, 200))
        sink.close()
        os._exit(0 if not sink.flush() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Reader(tmp_path / "run").status() == "running"
    put_steps(sink, [2])
    sink.close()
    assert {key[2] for key in check_numbers(Reader(tmp_path / "run"))} == {0, 1, 2}


def test_a_worker_that_outlives_a_killed_training_does_not_keep_the_run_locked(tmp_path: Path) -> None:
    with start("forking", tmp_path / "run") as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "forked\n"
        assert Reader(tmp_path / "run").status() == "running"
        training.kill()
        training.wait()
        assert Reader(tmp_path / "run").status() == "stopped"
        create(tmp_path / "run", resume=True).lock.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failure", [RuntimeError("a fault of ours"), SystemExit()])
def test_a_dead_writer_thread_is_told_once_by_the_next_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    sink = FolderSink(create(tmp_path / "run"))

    def die(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(sink._output, "write", die)
    sink.put(Metric(1, "loss", 1.0, 1.0))
    sink.flush()
    sink._thread.join()
    with pytest.warns(LayerscopeWarning, match=r"The thread that writes .*run.* Nothing more is recorded") as told:
        for step in range(10):
            put_steps(sink, [step])
    assert len(told) == 1
    assert told[0].filename.endswith("runs.py")  # where the training called put
    assert not sink.flush()
    sink.close()
    assert Reader(tmp_path / "run").status() == "stopped"


def test_every_series_row_is_written_before_the_rows_that_use_it(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    reader = Reader(tmp_path / "run")
    for step in range(40):
        put_steps(sink, [step], width=step + 1)
        if step % 4 == 0:
            assert sink.flush()
        reader.moments()
        assert set(reader.left_out.values()) == {0}
    sink.close()


def test_close_waits_for_what_is_queued(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    put_steps(sink, range(300), width=30)
    close_quietly(sink)
    assert len(check_numbers(Reader(tmp_path / "run"))) == 9000
    assert {path.parent.name for path in (tmp_path / "run/segments").rglob("*.arrow")} < set(TABLES)


def test_a_program_that_ends_without_closing_leaves_everything_it_recorded(tmp_path: Path) -> None:
    script = f"""
import time
from layerscope.model.records import Metric
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
sink = FolderSink(create({str(tmp_path / "run")!r}))
for step in range(1000):
    sink.put(Metric(step, "loss", 0.5, time.time()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    reader = Reader(tmp_path / "run")
    assert reader.metrics().num_rows == 1000
    assert reader.status() == "finished"


def test_drops_before_and_after_a_failed_write_are_counted_together() -> None:
    backlog = WriteQueue(0)
    backlog.add(summaries(1, [0]))
    load = backlog.take(1 << 20)
    assert load.dropped["bits"].rows
    backlog.add(summaries(2, [0]))
    backlog.give_back(load)
    again = backlog.take(1 << 20).dropped["bits"]
    assert (again.first_step, again.last_step) == (1, 2)
    assert again.rows == backlog.dropped["bits"]
