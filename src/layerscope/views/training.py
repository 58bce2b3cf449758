"""What is told of a training beside its tensors: its metrics by group and type of step, its notes, its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.graph.module_blocks import MODEL
from layerscope.model.records import CallGraph, Floats, Ints
from layerscope.model.text import shape_text
from layerscope.views.scalar import ScalarView


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """One metric of one run in steps of one type."""

    run: str
    type: str
    view: ScalarView


@dataclass(frozen=True, slots=True)
class MetricChart:
    """One metric: `group/name` is called by its group and its name."""

    group: str
    name: str
    curves: tuple[MetricCurve, ...]


@dataclass(frozen=True, slots=True)
class MetricsView:
    """The metrics of several runs by group; what one of the runs lacks is just not there."""

    first_step: int | None
    last_step: int | None
    types: tuple[str, ...]
    charts: tuple[MetricChart, ...]


@dataclass(frozen=True, slots=True)
class NotesView:
    """Everything that was noted, in the order of time."""

    run: str
    steps: Ints
    times: Floats  # seconds since the epoch
    levels: tuple[str, ...]
    texts: tuple[str, ...]
    left_out: int  # older ones


@dataclass(frozen=True, slots=True)
class NetworkView:
    """Modules and parameters as a tree, parents before children: columns of its lines."""

    run: str
    names: tuple[str, ...]
    depths: tuple[int, ...]
    classes: tuple[str, ...]  # of a parameter its shape
    counts: Floats  # parameters, those of children included
    total: int


def split_metric(name: str) -> tuple[str, str]:
    """Group and name of a metric.

    >>> split_metric("accuracy/last"), split_metric("loss")
    (('accuracy', 'last'), ('', 'loss'))
    """
    group, _, rest = name.rpartition("/")
    return group, rest


def in_groups(names: Iterable[str]) -> list[str]:
    """Metrics by group, those without one first, losses before others."""
    return sorted(
        names, key=lambda name: (split_metric(name)[0] != "", "loss" not in name.lower(), split_metric(name)[0])
    )


def network_view(run: str, graph: CallGraph | None, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> NetworkView:
    """The tree of a run's modules, with what is known of its parameters: their names and shapes."""
    own: dict[str, int] = {"": 0}  # elements of each line without its children
    classes = {"": "model"}
    for module in graph.modules if graph else ():
        path = "" if module.path == MODEL else module.path
        for above in _chain(path):
            own.setdefault(above, 0)
            classes.setdefault(above, "")
        own[path], classes[path] = module.parameters, module.class_name
    for name, shape in parameters:
        owner = name.rpartition(".")[0]
        size = math.prod(shape)
        for path in _chain(owner):
            own.setdefault(path, 0)
            classes.setdefault(path, "")
        own[owner] = max(0, own[owner] - size)  # what has a line of its own is counted there
        own[name], classes[name] = size, shape_text(shape)
    total = dict.fromkeys(own, 0)
    for path, count in own.items():
        for above in _chain(path):
            total[above] = total.get(above, 0) + count
    order = {path: at for at, path in enumerate(own)}
    lines = sorted(own, key=lambda path: [order[above] for above in _chain(path)])
    return NetworkView(
        run=run,
        names=tuple(path.rpartition(".")[2] for path in lines),
        depths=tuple(path.count(".") + 1 if path else 0 for path in lines),
        classes=tuple(classes[path] for path in lines),
        counts=np.array([total[path] for path in lines], np.float64),
        total=total[""],
    )


def _chain(path: str) -> list[str]:
    """A path and all above it, the model first."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: at + 1]) for at in range(len(parts)))]
