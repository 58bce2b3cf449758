"""One named tensor of one step: its graph, statistics and values, cut to the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layerscope.model.records import Floats, Ints, Kind, NamedNode, TensorType, call_site, gradient_port
from layerscope.model.text import shape_text
from layerscope.query.tensor_query import ResolvedQuery, TensorSelection
from layerscope.stats import derived
from layerscope.views.compare import Curves
from layerscope.views.dependencies import DependencyView, NodePositions, dependency_view
from layerscope.views.values import ValueView, cut, value_view

if TYPE_CHECKING:
    from layerscope.query.named_tensors import NamedTensors


SHOWN = ("mean", "mean_abs", "std", "abs_max", "min", "max", "rms", "zero_share")
NOT_FINITE = ("nan", "pos_inf", "neg_inf")
FORMS = ("numbers", "bars", "image")
MOST_NEURONS, MOST_SAMPLES = 100, 8  # of the table of numbers
PICTURE = (512, 256)


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
    """What a run has of a selection; where it lacks something the nearest is shown and `told` says so."""

    run: str
    problem: str  # why there is nothing to show
    told: tuple[str, ...]
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
    own_view: str  # name of the user's file with a view of their own, "" without one


def empty_panel(run: str, problem: str) -> TensorPanel:
    """The panel of a run that has nothing to show, and why."""
    nothing = np.zeros(0)
    return TensorPanel(
        run, problem, (), "", "", 0, 0, "", "", None, None, 0, "",
        (), nothing.astype(np.int64), (), (), (), (), (), (), None, "", "", "", (), nothing, None, "",
    )  # fmt: skip


def tensor_panel(
    named: NamedTensors, found: ResolvedQuery, places: NodePositions, form: str, at: Sequence[int] = ()
) -> TensorPanel:
    """Everything about a selection but its history."""
    chosen, choices = found.selection, found.choices
    stats = statistics(named, chosen) if found.exists else {}
    neurons = neurons_of(named, chosen, form, at) if found.exists else None
    node = next((one for one in found.graph.nodes if one.name == chosen.node), None)
    return TensorPanel(
        run=chosen.run,
        problem="",
        told=found.differences,
        type=choices.type,
        step_type=chosen.type,
        step=chosen.step,
        iteration=chosen.iteration,
        node=chosen.node,
        role=chosen.role,
        sample=chosen.sample if found.has_samples else None,
        loss=chosen.loss,
        batch=found.batch,
        reason=found.reason,
        types=choices.types,
        steps=choices.steps,
        iterations=choices.iterations,
        roles=choices.roles,
        shapes=tuple(shape_text(shape) for _, shape in node.roles) if node else (),
        samples=choices.samples,
        categories=choices.categories,
        losses=choices.losses,
        graph=dependency_view(found.graph, places, chosen.node, chosen.role),
        **_place(named, chosen, node if stats else None),
        stat_names=tuple(stats),
        stats=np.array(list(stats.values()), np.float64),
        neurons=neurons,
        lacking=_lacking(named, found, has_stats=bool(stats), has_values=neurons is not None),
    )


def _place(named: NamedTensors, chosen: TensorSelection, node: NamedNode | None) -> dict[str, str]:
    """Site, port and kind of the tensor's history."""
    if node is None:
        return {"site": "", "port": "", "kind": ""}
    if node.type is TensorType.PARAMETER:
        found = named.of_parameter(chosen.node, chosen.role, chosen.loss)
        return dict(zip(("site", "port", "kind"), found, strict=True))
    kind = (Kind.TENSOR if chosen.loss is None else Kind.TENSOR_GRAD).value
    port = gradient_port(chosen.role, chosen.loss or "")
    return {"site": call_site(chosen.node, chosen.iteration), "port": port, "kind": kind}


def statistics(named: NamedTensors, chosen: TensorSelection) -> dict[str, float]:
    """The statistics of the selected tensor that are shown: of a sample, or of all values and over the batch."""
    found = named.statistics(
        chosen.step, chosen.node, chosen.role, chosen.iteration, loss=chosen.loss, sample=chosen.sample
    )
    shown = [name for name in SHOWN if name in found]
    shown += [name for name in NOT_FINITE if found.get(name, 0.0) > 0]
    return {name: found[name] for name in (*shown, *(name for name in found if name not in derived.STATS))}


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


def _lacking(named: NamedTensors, found: ResolvedQuery, *, has_stats: bool, has_values: bool) -> str:
    chosen = found.selection
    if not found.exists:
        return f"{chosen.node} is not in iteration {chosen.iteration} of step {chosen.step}.{_elsewhere(named, found)}"
    if not has_stats and chosen.loss is not None:
        return "It has no gradient here: nothing that was differentiated depends on it, or it was not recorded."
    if not has_stats:
        return "Nothing was recorded of it here."
    if has_values:
        return ""
    if chosen.sample is not None and found.has_samples:
        return "The values of this sample were not kept."
    if any(node.name == chosen.node and node.type is TensorType.PARAMETER for node in found.graph.nodes):
        return "Of parameters statistics are kept, and their histogram: see the charts."
    return 'Its values were not kept, only its statistics: record it with `detail="samples"` or `"all"`.'


def _elsewhere(named: NamedTensors, found: ResolvedQuery) -> str:
    """In which iterations of the step the node is."""
    step, node = found.selection.step, found.selection.node
    there = []
    for iteration in found.choices.iterations:
        graph = named.graph(step, iteration)
        if graph is not None and any(one.name == node for one in graph.nodes):
            there.append(str(iteration))
    return f" It is in iteration {', '.join(there)}." if there else ""
