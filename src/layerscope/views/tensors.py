"""One named tensor of one step: its graph, statistics and values, cut to the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.errors import LayerscopeError, SelectError
from layerscope.model.records import Floats, Ints, Kind, NamedNode, TensorType, call_site, gradient_port
from layerscope.model.text import shape_text
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.tensor_query import ResolvedQuery, TensorQuery, TensorSelection, resolve_query
from layerscope.stats import derived
from layerscope.views.compare import Curves, RunCurve
from layerscope.views.dependencies import DependencyView, NodePositions, ProjectGraphs, dependency_view
from layerscope.views.open_run import OpenRun, Runs
from layerscope.views.scalar import Screen, scalar_view
from layerscope.views.values import ValueView, cut, value_view

SHOWN = ("mean", "mean_abs", "std", "abs_max", "min", "max", "rms", "zero_share")
NOT_FINITE = ("nan", "pos_inf", "neg_inf")
FORMS = ("numbers", "bars", "image")
MOST_NEURONS, MOST_SAMPLES = 100, 8  # of the table of numbers
PICTURE = (512, 256)
DEFAULT_STAT = "mean"
NOTHING_NAMED = (
    'No tensor of this run has a name. Name them while training: `run.record("memory", h)`, with '
    "`with run.iteration():` around each pass of a step."
)


@dataclass(frozen=True, slots=True)
class Neurons:
    """The values of a tensor, neuron by neuron: a column for each sample that was kept."""

    samples: tuple[int, ...]  # none where the tensor has no batch
    shape: tuple[int, ...]  # of one sample
    dtype: str
    shown: int  # neurons in the table, of all in the shape
    numbers: Floats  # neuron by neuron, the samples of each
    means: Floats  # over the samples
    picture: ValueView | None  # where another form than numbers is asked for


@dataclass(frozen=True, slots=True)
class TensorPanel:
    """What a run has of a selection; where it lacks something the nearest is shown, and `differences` says so."""

    run: str
    problem: str  # why there is nothing to show
    differences: tuple[str, ...]  # from what was asked for
    type: str  # of the steps to choose from, "" for any
    step_type: str
    step: int
    iteration: int
    node: str
    role: str
    sample: int | None  # None also where one is chosen, but the tensor has no batch
    loss: str | None
    batch: int
    reason: str  # why the step was kept
    types: tuple[str, ...]
    steps: Ints
    iterations: tuple[int, ...]
    roles: tuple[str, ...]
    shapes: tuple[str, ...]
    samples: tuple[int, ...]
    categories: tuple[str, ...]
    losses: tuple[str, ...]
    graph: DependencyView | None
    site: str  # where the other views have its history, "" where there is none
    port: str
    kind: str
    stat_names: tuple[str, ...]
    stats: Floats
    neurons: Neurons | None
    lacking: str  # why there are no statistics or no values


@dataclass(frozen=True, slots=True)
class TensorsView:
    """The same selection in one run or several, and one statistic of it over the steps in each of them."""

    panels: tuple[TensorPanel, ...]
    stat: str
    curves: Curves
    custom_view: str  # name of the user's file with a custom view, "" without one


@dataclass(frozen=True, slots=True)
class TensorsRequest:
    """Which tensor to show of each run, which statistic of it, and how."""

    query: TensorQuery = field(default_factory=TensorQuery)
    stat: str = DEFAULT_STAT
    panels: int = 1  # runs of which more than a curve is shown
    form: str = FORMS[0]
    index: Sequence[int] = ()  # of an image: where on the axes that are not shown


def tensors_view(
    runs: Runs, request: TensorsRequest, graphs: ProjectGraphs, screen: Screen, custom_view: str = ""
) -> TensorsView:
    """The selection in the first runs, and one statistic of it over the steps in all of them."""
    panels, curves = [], []
    for at, one in enumerate(runs):
        is_panel = at < request.panels
        try:
            if one.run is None:
                raise SelectError(one.problem)
            panel, curve = _of_run(one.run, request, graphs, screen, is_panel=is_panel)
        except (LayerscopeError, OSError) as error:  # one run that cannot be read must not hide the other
            panel, curve = empty_panel(one.name, str(error)), RunCurve(one.name, None, str(error))
        curves.append(curve)
        panels += [panel] if panel and is_panel else []
    return TensorsView(tuple(panels), request.stat, Curves(request.stat, tuple(curves)), custom_view)


def named_tensor(run: OpenRun, query: TensorQuery) -> ResolvedQuery:
    """The tensor of a run that comes nearest to a query."""
    resolved = resolve_query(run.named(), run.name, query)
    if resolved is None:
        raise SelectError(NOTHING_NAMED)
    return resolved


def _of_run(
    run: OpenRun, request: TensorsRequest, graphs: ProjectGraphs, screen: Screen, *, is_panel: bool
) -> tuple[TensorPanel | None, RunCurve]:
    named, resolved = run.named(), named_tensor(run, request.query)
    panel = None
    if is_panel:
        positions = graphs.positions(resolved.graph, narrow=request.panels > 1)
        panel = tensor_panel(named, resolved, positions, request.form, request.index)
    return panel, _curve(named, resolved, request.stat, screen)


def _curve(named: NamedTensors, resolved: ResolvedQuery, stat: str, screen: Screen) -> RunCurve:
    chosen = resolved.selection
    # Of one sample there is a statistic of its values, and nothing over the batch.
    stat = stat if chosen.sample is None else stat.rpartition("_of_sample_")[2]
    try:
        steps, values = named.history(
            chosen.node,
            stat,
            chosen.role,
            chosen.iteration,
            loss=chosen.loss,
            sample=chosen.sample,
            type=resolved.choices.type or None,
        )
    except SelectError as error:
        return RunCurve(chosen.run, None, str(error))
    if not len(steps):
        return RunCurve(chosen.run, None, f"the run has no {stat} of {chosen.node!r} there")
    return RunCurve(chosen.run, scalar_view(stat, np.asarray(steps), np.asarray(values), screen), "")


def empty_panel(run: str, problem: str) -> TensorPanel:
    """The panel of a run that has nothing to show, and why."""
    nothing = np.zeros(0)
    return TensorPanel(
        run, problem, (), "", "", 0, 0, "", "", None, None, 0, "",
        (), nothing.astype(np.int64), (), (), (), (), (), (), None, "", "", "", (), nothing, None, "",
    )  # fmt: skip


def tensor_panel(
    named: NamedTensors, resolved: ResolvedQuery, places: NodePositions, form: str, at: Sequence[int] = ()
) -> TensorPanel:
    """Everything about a selection but its history."""
    chosen, choices = resolved.selection, resolved.choices
    stats = statistics(named, chosen) if resolved.exists else {}
    neurons = neurons_of(named, chosen, form, at) if resolved.exists else None
    node = next((one for one in resolved.graph.nodes if one.name == chosen.node), None)
    return TensorPanel(
        run=chosen.run,
        problem="",
        differences=resolved.differences,
        type=choices.type,
        step_type=chosen.type,
        step=chosen.step,
        iteration=chosen.iteration,
        node=chosen.node,
        role=chosen.role,
        sample=chosen.sample if resolved.has_samples else None,
        loss=chosen.loss,
        batch=resolved.batch,
        reason=resolved.reason,
        types=choices.types,
        steps=choices.steps,
        iterations=choices.iterations,
        roles=choices.roles,
        shapes=tuple(shape_text(shape) for _, shape in node.roles) if node else (),
        samples=choices.samples,
        categories=choices.categories,
        losses=choices.losses,
        graph=dependency_view(resolved.graph, places, chosen.node, chosen.role),
        **_place(named, chosen, node if stats else None),
        stat_names=tuple(stats),
        stats=np.array(list(stats.values()), np.float64),
        neurons=neurons,
        lacking=_lacking(named, resolved, has_stats=bool(stats), has_values=neurons is not None),
    )


def _place(named: NamedTensors, chosen: TensorSelection, node: NamedNode | None) -> dict[str, str]:
    """Site, port and kind of the tensor's history."""
    if node is None:
        return {"site": "", "port": "", "kind": ""}
    if node.type is TensorType.PARAMETER:
        site, port, kind = named.of_parameter(chosen.node, chosen.role, chosen.loss)
        return {"site": site, "port": port, "kind": kind}
    kind = (Kind.TENSOR if chosen.loss is None else Kind.TENSOR_GRAD).value
    port = gradient_port(chosen.role, chosen.loss or "")
    return {"site": call_site(chosen.node, chosen.iteration), "port": port, "kind": kind}


def statistics(named: NamedTensors, chosen: TensorSelection) -> dict[str, float]:
    """The statistics of the selected tensor that are shown: of a sample, or of all values and over the batch."""
    known = named.statistics(
        chosen.step, chosen.node, chosen.role, chosen.iteration, loss=chosen.loss, sample=chosen.sample
    )
    shown = [name for name in SHOWN if name in known]
    shown += [name for name in NOT_FINITE if known.get(name, 0.0) > 0]
    return {name: known[name] for name in (*shown, *(name for name in known if name not in derived.STATS))}


def neurons_of(named: NamedTensors, chosen: TensorSelection, form: str, at: Sequence[int]) -> Neurons | None:
    """The values of the selected tensor, where they were kept."""
    kept = named.values(chosen.step, chosen.node, chosen.role, chosen.iteration, loss=chosen.loss)
    if kept is None:
        return None
    has_batch = len(kept.samples) > 0
    samples = tuple(map(int, kept.samples))
    rows = kept.array if has_batch else kept.array[None]
    if chosen.sample is not None and has_batch:
        if chosen.sample not in samples:
            return None
        rows, samples = rows[samples.index(chosen.sample)][None], (chosen.sample,)
    samples = samples[:MOST_SAMPLES]
    flat = rows[:MOST_SAMPLES].reshape(min(len(rows), MOST_SAMPLES), -1)
    real = np.abs(flat) if np.iscomplexobj(flat) else flat
    table = np.asarray(real[:, :MOST_NEURONS], np.float64).T
    return Neurons(
        samples=samples,
        shape=tuple(kept.array.shape[1:] if has_batch else kept.array.shape),
        dtype=str(kept.array.dtype),
        shown=len(table),
        numbers=table.ravel(),
        means=table.mean(1) if len(samples) > 1 else np.zeros(0),
        picture=None if form == "numbers" or not rows.size else _picture(rows, form, at),
    )


def _picture(rows: npt.NDArray[Any], form: str, at: Sequence[int]) -> ValueView:
    """Bars of every neuron, over several samples of their mean; or the tensor as an image."""
    if form == "bars":
        one = rows.mean(0) if len(rows) > 1 else rows[0]
        return _cut(one.reshape(-1), "line", ())
    one = rows if len(rows) > 1 else rows[0]
    return _cut(one[None] if one.ndim < 2 else one, None, at)


def _cut(array: npt.NDArray[Any], picture: str | None, at: Sequence[int]) -> ValueView:
    chosen = cut(array.shape, picture, at)
    return value_view(chosen, array[chosen.part], *PICTURE)


def _lacking(named: NamedTensors, resolved: ResolvedQuery, *, has_stats: bool, has_values: bool) -> str:
    chosen = resolved.selection
    if not resolved.exists:
        return (
            f"{chosen.node} is not in iteration {chosen.iteration} of step {chosen.step}.{_elsewhere(named, resolved)}"
        )
    if not has_stats and chosen.loss is not None:
        return "It has no gradient here: nothing that was differentiated depends on it, or it was not recorded."
    if not has_stats:
        return "Nothing was recorded of it here."
    if has_values:
        return ""
    if chosen.sample is not None and resolved.has_samples:
        return "The values of this sample were not kept."
    if any(node.name == chosen.node and node.type is TensorType.PARAMETER for node in resolved.graph.nodes):
        return "Of parameters statistics are kept, and their histogram: see the charts."
    return 'Its values were not kept, only its statistics: record it with `detail="samples"` or `"all"`.'


def _elsewhere(named: NamedTensors, resolved: ResolvedQuery) -> str:
    """In which iterations of the step the node is."""
    step, node = resolved.selection.step, resolved.selection.node
    there = []
    for iteration in resolved.choices.iterations:
        graph = named.graph(step, iteration)
        if graph is not None and any(one.name == node for one in graph.nodes):
            there.append(str(iteration))
    return f" It is in iteration {', '.join(there)}." if there else ""
