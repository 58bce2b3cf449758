"""What the benchmark of the page looks at: a long run of many sites, and a trace of many operations."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import layerscope
from benchmarks.make_run import Recipe, shifted, steps_of
from layerscope.model.records import CallEdge, CallGraph, CallNode, Kind, Metric, Mode, ModuleNode, Phase, Series
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink

RUN, TRACE = "long", "traced"
SITES, STEPS, MADE = 2000, 1000, 100  # steps that are made, and counted on
STAGES, BLOCKS, OPERATIONS = 50, 100, 10  # 50,000 operations; with all stages open, 5,000 nodes
_SHAPE = (64, 128)


def make(project: Path) -> None:
    """The folder of runs that the page is shown on."""
    sink = FolderSink(create(project / RUN), compact=False)
    sink.put(module_graph())
    ids = np.array([sink.series_id(series) for series in sites()], np.int32)
    made = list(steps_of(Recipe(series=SITES, steps=MADE), ids))
    for step in range(1, STEPS + 1):
        sink.put(shifted(made[(step - 1) % MADE], (step - 1) // MADE * MADE))
        sink.put(loss(step))
        sink.flush()  # or the queue is full, and rows are dropped
    assert not any(sink.dropped.values())
    sink.close(timeout_s=600)
    compact(project / RUN)
    save_trace(project / TRACE)


def sites() -> list[Series]:
    """One output for each site."""
    return [
        Series(f"layers.{at // 8}.part{at % 8}", "output.0", Kind.OUTPUT, Mode.TRAIN, Phase.FORWARD, "float32", _SHAPE)
        for at in range(SITES)
    ]


def loss(step: int) -> Metric:
    """The loss of a step."""
    return Metric(step, "loss", 3.0 / np.sqrt(step), 1.7e9 + step)


def module_graph() -> CallGraph:
    """Layers one after another, each of eight parts with a skip connection around them."""
    ins, outs = (("input.0", _SHAPE),), (("output.0", _SHAPE),)
    modules, calls = [ModuleNode("(model)", "Network", 0, "")], [CallNode("(model)", "(model)", "", ins, outs)]
    edges, before = [], ("(model)", "input.0")
    for layer in range(SITES // 8):
        path = f"layers.{layer}"
        parts = [f"{path}.part{at}" for at in range(8)]
        modules += [ModuleNode(path, "Layer", 0, ""), *(ModuleNode(part, "Linear", 16512, "128") for part in parts)]
        calls += [CallNode(path, path, "(model)", ins, outs), *(CallNode(p, p, path, ins, outs) for p in parts)]
        edges += [CallEdge(*before, path, "input.0"), CallEdge(path, "input.0", parts[0], "input.0")]
        edges += [CallEdge(a, "output.0", b, "input.0") for a, b in pairwise(parts)]
        edges += [CallEdge(parts[-1], "output.0", path, "output.0"), CallEdge(path, "input.0", path, "output.0")]
        before = (path, "output.0")
    return CallGraph(tuple(modules), tuple(calls), (*edges, CallEdge(*before, "(model)", "output.0")))


class More:
    """Appends steps to the long run, as a training that goes on would."""

    def __init__(self, project: Path) -> None:
        self._sink = FolderSink(create(project / RUN, resume=True), compact=False)
        ids = np.array([self._sink.series_id(series) for series in sites()], np.int32)
        (self._made,) = steps_of(Recipe(series=SITES, steps=1), ids)
        self.step = layerscope.open(project / RUN).metrics().arrow()["step"].to_numpy().max()

    def append(self) -> int:
        """One more step; returns when it is flushed."""
        self.step += 1
        self._sink.put(shifted(self._made, self.step - self._made.step))
        self._sink.put(loss(self.step))
        self._sink.flush()
        return int(self.step)

    def close(self) -> None:
        """End the training."""
        self._sink.close()


class Block(nn.Module):
    """Ten operations, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """The input and what the block adds to it."""
        mean = x.mean(-1, keepdim=True)
        y = (x - mean) * self.scale
        y = torch.relu(y @ self.weight)
        gate = torch.sigmoid(y.sum(-1, keepdim=True))
        return x + (y * gate).tanh()


class Stages(nn.Module):
    """Stages of blocks side by side, so that all of it is in sight at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(*(Block() for _ in range(BLOCKS))) for _ in range(STAGES))

    def forward(self, x: Tensor) -> Tensor:
        """What all stages make of the input, added up."""
        return torch.stack([stage(x) for stage in self.stages]).sum(0)


def save_trace(folder: Path) -> None:
    """A pass through all stages, with every value."""
    with torch.no_grad():
        trace = layerscope.trace(Stages().eval(), torch.randn(4, 4))
    expected = STAGES * BLOCKS * OPERATIONS
    assert expected <= len(trace.record.operations) <= expected + 10, len(trace.record.operations)
    trace.save(folder)
