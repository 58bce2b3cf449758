"""The samples of named tensors, read over many steps at once."""

from __future__ import annotations

import numpy as np

from layerscope.query.run import Run
from layerscope.query.selection import Found
from layerscope.records import Dependencies, Kind, Part, gradient_port, named_site
from layerscope.viz.samples import Kept, Row, RunSamples, points, sample_column

MOST_STEPS = 200  # whose samples make the points


def sampled(graph: Dependencies) -> tuple[str, ...]:
    """Keys of the tensors of an iteration that may have samples: `name@role`, or the name alone."""
    return tuple(
        f"{node.name}@{role}" if role else node.name
        for node in graph.nodes
        if node.part is not Part.PARAMETER
        for role, shape in node.roles
        if shape
    )


def first_two(there: Found, choices: tuple[str, ...]) -> tuple[str, ...]:
    """What to begin with: the selected tensor, and the loss of each sample."""
    chosen = there.selection
    own = f"{chosen.node}@{chosen.role}" if chosen.role else chosen.node
    wanted = [own if own in choices else "", *(key for key in choices if "loss" in key.lower()), *choices]
    return tuple(dict.fromkeys(filter(None, wanted)))[:2]


def no_samples(run: str, problem: str) -> RunSamples:
    """What is told of a run without any."""
    nothing = np.zeros(0)
    return RunSamples(run, problem, 0, (), (), (), nothing, nothing, nothing.astype(int), nothing.astype(int), 0)


def run_samples(run: Run, there: Found, keys: list[str], statistic: str) -> RunSamples:
    """The tensors at the selected step, and the first two of them in the newest steps of the type."""
    chosen, choices = there.selection, there.choices
    at = int(np.searchsorted(choices.steps, chosen.step))
    steps = choices.steps[max(0, at + 1 - MOST_STEPS) : at + 1]  # up to the selected one
    kept = [_kept(run, there, key, steps) for key in keys]
    rows: list[Row] = [(chosen.step, sample) for sample in choices.samples]
    x, y, point_steps, point_samples = points(kept[0], kept[1], statistic) if len(kept) > 1 else points({}, {}, "")
    return RunSamples(
        run=chosen.run,
        problem="",
        step=chosen.step,
        samples=choices.samples,
        categories=choices.categories,
        columns=tuple(sample_column(key, one, rows, statistic) for key, one in zip(keys, kept, strict=True)),
        x=x,
        y=y,
        point_steps=point_steps,
        point_samples=point_samples,
        steps=len(set(point_steps.tolist())),
    )


def _kept(run: Run, there: Found, key: str, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Kept:
    """The kept values of one tensor by step and sample."""
    chosen = there.selection
    name, _, role = key.partition("@")
    kind = Kind.TENSOR if chosen.loss is None else Kind.TENSOR_GRAD
    table = run.values(named_site(name, chosen.iteration), kind=kind.value, steps=steps).arrow()
    port = gradient_port(role, chosen.loss or "")
    found: dict[Row, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for row in table.filter(np.array(table.column("port").to_pylist()) == port).to_pylist():
        values = np.array(row["value"]).reshape(len(row["samples"]) or 1, -1)
        found |= {(row["step"], sample): values[at] for at, sample in enumerate(row["samples"])}
    return found
