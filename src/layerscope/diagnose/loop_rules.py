"""Rules about the training loop: a growing loss, and skipped updates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.evidence import BEGINNING, FEWEST_STEPS, RunEvidence
from layerscope.diagnose.findings import Evidence, Finding, Severity, figure
from layerscope.diagnose.not_finite_rules import broken_gradients
from layerscope.model.records import Floats, Ints

FEWEST_LOSSES = 2 * FEWEST_STEPS  # a loss is known at every step
GROWN = 3.0  # times the loss at the start: an untrained network is rarely so much better than one that learns
DIVERGED = 30.0  # no schedule, curriculum or change of data explains it
#: Words in the name of a metric of data that is not trained on.
HELD_OUT = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
IN_A_ROW = 17  # GradScaler begins with 2**16 and halves: it has found a scale after 16 skipped steps, or never
FEWEST_SKIPPED = 5  # recorded ones: two recorded steps far apart may both happen to be skipped


def loss_growing(recording: RunEvidence) -> Iterator[Finding]:
    """Losses that end far above their start; a term of a sum may grow while the sum does not."""
    known = {name: course for name, (steps, loss) in recording.losses.items() if (course := _course(steps, loss))}
    trained = [course for name, course in known.items() if not _is_held_out(name)]
    learning = sum(each.last for each in trained) <= GROWN * sum(each.start for each in trained)
    for name, course in known.items():
        if course.last > GROWN * course.start and not (learning and not _is_held_out(name)):
            yield _growing(name, course, overfits=learning and bool(trained))


class Course(NamedTuple):
    """How a loss went: medians of its beginning and of its last quarter, and all of it."""

    start: float
    last: float
    steps: Ints
    values: Floats


def _course(steps: Ints, values: Floats) -> Course | None:
    """The course of a loss; None if it is too short or has no floor."""
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if len(values) < FEWEST_LOSSES or values.min() <= 0:
        return None
    last = float(np.median(values[-max(len(values) // 4, BEGINNING) :]))
    return Course(float(np.median(values[:BEGINNING])), last, steps, values)


def _is_held_out(name: str) -> bool:
    return not HELD_OUT.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def _growing(name: str, course: Course, *, overfits: bool) -> Finding:
    start, last, steps, values = course
    best = steps[values.argmin()]
    return Finding(
        rule="loss_growing",
        severity=Severity.ERROR if last > DIVERGED * start and not overfits else Severity.WARNING,
        site="",
        kind="metric",
        step=int(steps[np.flatnonzero(values > GROWN * start)[0]]),
        title=f"The metric {name} grows",
        why=f"{name} was {figure(start)} at the start and is {figure(last)} at the end (medians), "
        f"{figure(last / start)} times as much; at best it was {figure(values.min())}, at step {best}."
        + (" What is trained on does not grow: the network learns it by heart." if overfits else ""),
        advice=f"Stop near step {best}, or use more data, augmentation, dropout, weight decay or a smaller network."
        if overfits
        else "Lower the learning rate; check the sign of the loss, and that the gradient is reset every step "
        "(optimizer.zero_grad()).",
        evidence=(Evidence("", name, int(steps[-1]), "value", last),),
    )


def skipped_updates(recording: RunEvidence) -> Iterator[Finding]:
    """Recorded steps in a row in which no update was made."""
    steps = recording.steps
    skipped = np.array([step in recording.skipped for step in steps.tolist()], np.bool_)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], skipped, [False])).astype(np.int8)))
    for first, end in edges.reshape(-1, 2).tolist():
        since, until = int(steps[first]), int(steps[end - 1])
        if end - first >= FEWEST_SKIPPED and until - since + 1 >= IN_A_ROW:
            yield _skipped(recording, since, until, end - first)
            return


def _skipped(recording: RunEvidence, since: int, until: int, times: int) -> Finding:
    goes_on = "up to the last one" if until == recording.recorded[-1] else f"up to step {until}"
    broken = broken_gradients(recording, since, until)
    origin = broken[0] if broken else None
    where = f": {origin.what} in the {origin.kind.value} of {recording.called(origin.site)}" if origin else ""
    return Finding(
        rule="skipped_updates",
        severity=Severity.ERROR,
        site=origin.site if origin else "",
        kind=origin.kind.value if origin else "event",
        step=since,
        title=f"Updates are skipped, step after step{where}",
        why=f"In {times} recorded steps in a row, {goes_on}, no update was made: “{recording.skipped[since]}”",
        advice="With GradScaler, gradients are not finite at any scale: look for a derivative that does not exist (a "
        "root of 0) or a float16 overflow; bfloat16 needs no scaler. Without one, call optimizer.step().",
        evidence=(Evidence("", "event", since, "skipped steps", float(times)), *(each.evidence for each in broken)),
    )
