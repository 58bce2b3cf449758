"""The samples of named tensors, read over many steps at once."""

from __future__ import annotations

import numpy as np

from layerscope.query.run import Run
from layerscope.query.selection import Found
from layerscope.records import Dependencies, Ints, Part
from layerscope.viz.samples import NOTHING, Kept, Row, RunSamples, points, sample_column

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
    kept = [_kept(run, there, key, steps, statistic) for key in keys]
    rows: list[Row] = [(chosen.step, sample) for sample in choices.samples]
    first, second = [*kept, NOTHING, NOTHING][:2]
    x, y, point_steps, point_samples = points(first, second, statistic)
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


def _kept(run: Run, there: Found, key: str, steps: Ints, statistic: str) -> Kept:
    """What was kept of one tensor by step and sample."""
    chosen = there.selection
    name, _, role = key.partition("@")
    values, (told_steps, told_samples, columns) = run.named().samples(steps, name, role, chosen.iteration, chosen.loss)
    flat = {
        (step, sample): kept.array[at].ravel()
        for step, kept in values.items()
        for at, sample in enumerate(kept.samples.tolist())
    }
    rows = zip(told_steps.tolist(), told_samples.tolist(), strict=True)
    told = dict(zip(rows, columns[statistic].tolist(), strict=True))
    return Kept(flat, {row: number for row, number in told.items() if row not in flat})
