"""Run folders with named tensors: a recurrent network with made up numbers, its graphs as in `tests.views.naming`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.model.records import (
    BATCH_STATISTICS,
    ONLY_ROLE,
    CallGraph,
    CustomStatistics,
    Event,
    Floats,
    Kind,
    Metric,
    Mode,
    ModuleNode,
    NamedNode,
    Phase,
    Series,
    StepInfo,
    TensorType,
    TensorValues,
    call_site,
    gradient_port,
)
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries
from tests.views.naming import BATCH, FIRST, INITIAL, KEPT, LAST

LOSSES = ("loss_a", "loss_b")
TYPES = {"long": 3, "short": 2}  # iterations


class NamedWriting:
    """A run that is being written: steps 0, 10, 20 … of two types in turn; the last iteration has the loss."""

    def __init__(self, folder: Path, scale: float = 1.0) -> None:
        self.sink = FolderSink(create(folder))
        self._scale = scale
        self._numbers = {
            graph: self.sink.dependencies_id(content.nodes, content.links)
            for graph, content in (("initial", INITIAL), ("first", FIRST), ("last", LAST))
        }

    def step(self, step: int) -> None:
        """Write one step, to the disk."""
        type_ = "long" if step % 20 == 0 else "short"
        last = TYPES[type_]
        graphs = [self._numbers["initial"], *[self._numbers["first"]] * (last - 1), self._numbers["last"]]
        for iteration, graph in enumerate((INITIAL, *[FIRST] * (last - 1), LAST)):
            for node in graph.nodes:
                if node.type is not TensorType.PARAMETER or iteration == 1:
                    self._node(step, node, iteration)
        for name, at in (("loss", 1.0), ("accuracy/near", 0.5), ("accuracy/far", 0.2)):
            self.sink.put(Metric(step, name, at * self._scale / (step + 1), 1.7e9 + step, type_))
        categories = ("hard", "easy", "easy")
        self.sink.put(StepInfo(step, type_, last, BATCH, tuple(graphs), KEPT, categories, LOSSES, "schedule"))
        assert self.sink.flush()

    def _node(self, step: int, node: NamedNode, iteration: int) -> None:
        for role, shape in node.roles:
            rng = np.random.default_rng([step, iteration, len(node.name), len(role)])
            whole = rng.normal(step / 50, self._scale, shape)
            if node.type is TensorType.PARAMETER:
                self._put(step, Series(f"{node.name}.{role}", "weight", *_ordinary(Kind.WEIGHT, shape)), whole)
                continue
            site = call_site(node.name, iteration)
            self._put(step, Series(site, role or ONLY_ROLE, *_ordinary(Kind.TENSOR, shape)), whole, keeps=True)
            if node.type is not TensorType.TARGET:
                for loss in LOSSES:
                    port = gradient_port(role, loss)
                    self._put(step, Series(site, port, *_ordinary(Kind.TENSOR_GRAD, shape)), -whole, keeps=True)

    def _put(self, step: int, series: Series, whole: Floats, *, keeps: bool = False) -> None:
        number = self.sink.series_id(series)
        self.sink.put(summaries(step, [number], [whole]))
        if not keeps:
            return
        batched = whole.ndim > 0
        if batched:
            flat = whole.reshape(len(whole), -1)
            of = (flat.mean(1), np.abs(flat).mean(1), flat.std(1), np.abs(flat).max(1))
            over = [f(numbers) for numbers in of for f in (np.mean, np.std, lambda x: np.abs(x).max())]
            self.sink.put(
                CustomStatistics(step, np.full(len(over), number, np.int32), BATCH_STATISTICS, np.array(over))
            )
        samples = np.array(KEPT if batched else (), np.int32)
        self.sink.put(TensorValues.one(step, number, samples, whole[list(KEPT)] if batched else whole))


def _ordinary(kind: Kind, shape: tuple[int, ...]) -> tuple[Kind, Mode, Phase, str, tuple[int, ...]]:
    return kind, Mode.TRAIN, Phase.FORWARD, "float64", shape


def write_named(folder: Path, steps: int = 6, scale: float = 1.0) -> Path:
    """A finished run with named tensors, notes and a model of two layers."""
    writing = NamedWriting(folder, scale)
    writing.sink.put(
        CallGraph(
            (
                ModuleNode("", "Net", 0, ""),
                ModuleNode("pre", "Sequential", 0, ""),
                ModuleNode("pre.0", "Linear", 48, ""),
            )
        )
    )
    for step in range(0, 10 * steps, 10):
        writing.step(step)
    writing.sink.put(Event(10, "note", "a new <b>learning rate</b>", 1.7e9))
    writing.sink.close()
    return folder
