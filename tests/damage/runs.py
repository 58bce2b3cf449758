"""Two runs with every kind of file: one as a training leaves it, one compacted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from layerscope.model.records import CallEdge, CallGraph, CallNode, Event, ModuleNode
from layerscope.model.trace_record import TraceRecord
from layerscope.runs import Run
from layerscope.store import segments
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.traces import StoredTrace, write_trace
from layerscope.store.writer import FolderSink
from tests.store.runs import put_named, put_steps, summaries
from tests.views.graphs import transformer

ROLL_BYTES = 4_000  # several segments of each table


def make_runs(folder: Path) -> dict[str, Path]:
    """The runs by name: `uncompacted` has segments alone, `compacted` parts and the segments of a later session."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "ROLL_BYTES", ROLL_BYTES)
        segmented, parts = folder / "uncompacted", folder / "compacted"
        _record(segmented, range(6), rank=0)
        _record(segmented, range(6), rank=1)
        shutil.copytree(segmented, parts)
        assert compact(parts).done
        for run in (segmented, parts):
            _record(run, range(6, 9), rank=0)
            Run(run).add_curves({"step": [0, 1, 2], "accuracy": [0.5, 0.25, 0.125]})
            for step in (3, 7):
                write_trace(run, _trace(step))
    return {"uncompacted": segmented, "compacted": parts}


def _record(folder: Path, steps: range, rank: int) -> None:
    sink = FolderSink(create(folder, resume=True, rank=rank), compact=False)
    sink.put(_graph())
    for step in steps:
        ids = put_steps(sink, [step], width=6)
        sink.put(summaries(step + 100, ids[:3], alias=[-1, ids[0], -1]))
        put_named(sink, [step])
        sink.put(Event(step, "note", f"step {step} of rank {rank}", 10.0 * step))
        assert sink.flush()
    sink.close()


def _graph() -> CallGraph:
    layers = (ModuleNode(f"layer.{at}", "Linear", 12 * at, f"in={at}") for at in range(3))
    modules = (ModuleNode("(model)", "Net", 0, ""), ModuleNode("layer", "ModuleList", 0, ""), *layers)
    ports = tuple(((f"output.{at}", (at, 3)),) for at in range(3))
    calls = tuple(CallNode(f"layer.{at}", f"layer.{at}", "", ports[at], ports[at]) for at in range(3))
    edges = tuple(CallEdge(f"layer.{at}", "output.0", f"layer.{at + 1}", "input.0") for at in range(2))
    return CallGraph(modules, calls, edges)


def _trace(step: int) -> StoredTrace:
    record: TraceRecord = transformer(1)
    values = {at: np.arange(6.0).reshape(2, 3) * step + at for at in range(4)}
    gradients = {at: np.arange(4, dtype=np.float32) - at for at in range(2)}
    return StoredTrace(record, values, gradients, {("model.py", 3): (2, ("def f():", "    return 1"))}, step)
