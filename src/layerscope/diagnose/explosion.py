"""Gradients that explode or spike over time, and where in the forward it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.finding import Evidence, Finding, Severity, figure
from layerscope.diagnose.gradients import applied
from layerscope.diagnose.recording import BEGINNING, FEWEST_STEPS, Histories, Recording, medians
from layerscope.records import Floats, Kind

SPIKE = 100.0  # against the run's own past: noise of small batches reaches 10
GROWTH = 100.0  # of the last quarter against the beginning; gradients of a sound training fall
RISEN = 1.5  # times the level at the start, below it is noise; not later than a loss of squares is at 3 times its own
PAST = 50  # recorded steps that a gradient is compared with
SHORTEST = 3  # recorded steps of a growth that ended in NaN or Inf
SMALLEST = 1e-30  # a gradient of 0 is no level to compare with
LARGER = 10.0  # times its own past: an output that has grown with the gradients
ALONG = 3.0  # what is this much larger by then grows with it: it is a matter of noise which of them is first at LARGER
MOST_EVIDENCE = 5
SPIKE_ADVICE = (
    "Look at the batch of this step; torch.nn.utils.clip_grad_norm_ before optimizer.step() keeps one bad batch from "
    "undoing many good ones."
)
GROWTH_ADVICE = (
    "Lower the learning rate, warm it up, or clip gradients by torch.nn.utils.clip_grad_norm_ before optimizer.step()."
)


class Origin(NamedTuple):
    """What to look at first, why it is this, and the numbers that tell."""

    site: str
    kind: str
    why: str
    evidence: tuple[Evidence, ...]
    context: str = ""


class Rise(NamedTuple):
    """By how much the norm of all gradients rose: from a column on, as the numbers at another show."""

    column: int
    at: int
    times: float
    last: float | None  # norm at the end of a growth; a spike has none


def exploding_over_time(recording: Recording) -> Iterator[Finding]:
    """Gradients far above the run's own past: for good, or for a moment."""
    found = applied(recording)
    squares = found.moments["sum2"]
    some = ~np.isnan(squares).all(axis=0)  # a skipped step has none
    norms = np.sqrt(np.nansum(squares[:, some], axis=0))
    ended = recording.until is not None  # by what is not finite, however short the growth was
    if len(norms) < (SHORTEST if ended else FEWEST_STEPS):
        return
    rise = _rise(norms, np.flatnonzero(some).tolist(), ended=ended)
    if rise is not None:
        yield _over_time(recording, found, rise)


def _rise(norms: Floats, columns: list[int], *, ended: bool) -> Rise | None:
    """A growth that lasts to the end, or else the first spike."""
    start = float(np.median(norms[: min(BEGINNING, 1 + len(norms) // 4)]))
    past = np.array([np.median(norms[max(0, at - PAST) : max(at, 1)]) for at in range(len(norms))])
    level = max(start, float(np.min(past)))
    last = float(norms[-1] if ended else np.median(norms[-max(len(norms) // 4, BEGINNING) :]))
    if last > GROWTH * level > 0:
        grown = np.flatnonzero(norms > GROWTH * level)
        low = np.flatnonzero(norms[: grown[0]] <= RISEN * level)  # it may be low again later
        onset = low[-1] + 1 if len(low) else grown[0]
        return Rise(columns[onset], columns[grown[-1]], last / level, last)
    spikes = np.flatnonzero((norms > SPIKE * past) & (norms > SPIKE / 10 * start) & (past > 0))
    spikes = spikes[spikes >= BEGINNING]
    if not len(spikes):
        return None
    at = columns[spikes[0]]
    return Rise(at, at, float(norms[spikes[0]] / past[spikes[0]]), None)


def _over_time(recording: Recording, found: Histories, rise: Rise) -> Finding:
    step = int(found.steps[rise.column])
    origin = _first_output(recording, step, int(found.steps[rise.at])) or _most_grown(recording, found, rise)
    if rise.last is None:
        rule, title = "gradient_spike", f"A spike of the gradients at step {step}"
        why = f"The norm of all gradients is {figure(rise.times)} times the median of the {PAST} recorded steps before"
    else:
        rule, title = "exploding_gradients", "Gradients explode"
        why = f"From step {step} on the norm of all gradients grows {figure(rise.times)} times, to {figure(rise.last)}"
    return Finding(
        rule=rule,
        severity=Severity.WARNING if rise.last is None else Severity.ERROR,
        site=origin.site,
        context=origin.context,
        kind=origin.kind,
        step=step,
        title=f"{title}: {recording.called(origin.site, origin.context)}",
        why=f"{why}; {origin.why}",
        advice=SPIKE_ADVICE if rise.last is None else GROWTH_ADVICE,
        evidence=origin.evidence,
    )


def _first_output(recording: Recording, since: int, until: int) -> Origin | None:
    """The first output in the order of execution that grew when the first of them did; None where none is known to.

    A weight that grows enlarges the gradients of all layers but its own: those after it by what goes into them, those
    before it on the way back. So the largest gradient is at a neighbor, and outputs tell.
    """
    if Kind.OUTPUT not in recording.kinds:
        return None
    found = recording.histories(Kind.OUTPUT)
    before, during = found.steps < since, (found.steps >= since) & (found.steps <= until)
    sizes = np.sqrt(found.moments["sum2"] / np.maximum(found.moments["count"], 1))
    usual = medians(sizes[:, before])[:, None]
    times = np.nan_to_num(np.divide(sizes, usual, out=np.zeros_like(sizes), where=usual > SMALLEST))
    larger = np.flatnonzero(during & (times > LARGER).any(axis=0))
    if not len(larger):
        return None
    at = int(larger[0])
    rows = sorted(np.flatnonzero(times[:, at] > ALONG).tolist(), key=lambda row: found.places[row].number)
    first, grown = found.places[rows[0]], float(times[rows[0], at])
    called = recording.called(first.site, first.context)
    others = f": of {len(rows)} outputs that grew it is the first in the order of execution" if len(rows) > 1 else ""
    return Origin(
        first.site,
        first.kind.value,
        f"at step {found.steps[at]} the output of {called} is {figure(grown)} times as large as before{others}.",
        tuple(found.evidence(row, at, "rms", sizes[row, at]) for row in rows[:MOST_EVIDENCE]),
        first.context,
    )


def _most_grown(recording: Recording, found: Histories, rise: Rise) -> Origin:
    """The gradient that grew most."""
    sizes = np.sqrt(found.moments["sum2"])
    times = np.nan_to_num(sizes[:, rise.at] / np.maximum(medians(sizes[:, : rise.column]), SMALLEST))
    worst = np.argsort(-times)[:MOST_EVIDENCE].tolist()
    place = found.places[worst[0]]
    return Origin(
        place.site,
        place.kind.value,
        f"most of all in {recording.called(place.site)} ({figure(times[worst[0]])} times). Its cause may be a "
        "neighbor: no output was seen to grow.",
        tuple(found.evidence(row, rise.at, "norm", sizes[row, rise.at]) for row in worst),
    )
