"""What the training loop itself tells: its loss, and steps whose update was not made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerscope.diagnose.finding import Evidence, Finding, Severity, figure
from layerscope.diagnose.recording import BEGINNING, FEWEST_STEPS, Recording

FEWEST_LOSSES = 2 * FEWEST_STEPS  # a loss is known at every step
GROWN = 3.0  # times the loss at the start: an untrained network is rarely so much better than one that learns
DIVERGED = 30.0  # no schedule, curriculum or change of data explains it
IN_A_ROW = 17  # GradScaler begins with 2**16 and halves: it has found a scale after 16 skipped steps, or never
FEWEST_SKIPPED = 5  # recorded ones: two recorded steps far apart may both happen to be skipped


def loss_growing(recording: Recording) -> Iterator[Finding]:
    """A loss that ends far above where it began."""
    for name, (steps, values) in recording.losses.items():
        finite = np.isfinite(values)
        steps, values = steps[finite], values[finite]
        if len(values) < FEWEST_LOSSES or values.min() <= 0:  # of a loss without a floor nothing can be said
            continue
        start = float(np.median(values[:BEGINNING]))
        last = float(np.median(values[-max(len(values) // 4, BEGINNING) :]))
        if last > GROWN * start:
            onset = int(steps[np.flatnonzero(values > GROWN * start)[0]])
            yield Finding(
                rule="loss_growing",
                severity=Severity.ERROR if last > DIVERGED * start else Severity.WARNING,
                site="",
                kind="kpi",
                step=onset,
                title=f"The KPI {name} grows",
                why=f"{name} was {figure(start)} at the start and is {figure(last)} at the end (medians), "
                f"{figure(last / start)} times as much; at best it was {figure(values.min())}, at step "
                f"{steps[values.argmin()]}.",
                advice="Lower the learning rate; check the sign of the loss, and that the gradient is reset every step "
                "(optimizer.zero_grad()).",
                evidence=(Evidence("", name, int(steps[-1]), "value", last),),
            )


def skipped_updates(recording: Recording) -> Iterator[Finding]:
    """Recorded steps in a row in which no update was made."""
    steps = recording.steps
    skipped = np.array([step in recording.skipped for step in steps.tolist()], np.bool_)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], skipped, [False])).astype(np.int8)))
    for first, end in edges.reshape(-1, 2).tolist():
        since, until = int(steps[first]), int(steps[end - 1])
        if end - first >= FEWEST_SKIPPED and until - since + 1 >= IN_A_ROW:
            goes_on = "up to the last one" if until == recording.recorded[-1] else f"up to step {until}"
            yield Finding(
                rule="skipped_updates",
                severity=Severity.ERROR,
                site="",
                kind="event",
                step=since,
                title="Updates are skipped, step after step",
                why=f"In {end - first} recorded steps in a row, {goes_on}, no update was made: "
                f"“{recording.skipped[since]}”",
                advice="With GradScaler, gradients are not finite at any scale: look for a derivative that does not "
                "exist (a root of 0) or a float16 overflow; bfloat16 needs no scaler. Without one, call "
                "optimizer.step().",
                evidence=(Evidence("", "event", since, "skipped steps", float(end - first)),),
            )
            return
