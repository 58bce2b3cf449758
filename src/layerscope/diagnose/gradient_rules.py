"""Gradients that vanish or explode, over the depth of the network or over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.evidence import BEGINNING, FEWEST_STEPS, KindHistories, RunEvidence, SeriesInfo, medians
from layerscope.diagnose.findings import Evidence, Finding, Severity, figure
from layerscope.model.records import Floats, Kind, Phase, name_in

FALL = 1e-5  # first layers against last ones: sound networks, however deep, were seen to stay above 1e-3
FEWEST_LAYERS = 5  # a line through fewer is no trend
TREND = 0.8  # correlation of depth and log gradient: a fall by a factor per layer has 0.95, one odd layer 0.6


class Profile(NamedTuple):
    """The size of the gradient at each layer, from the first executed to the last."""

    what: str
    sites: list[str]
    kind: Kind
    sizes: Floats
    context: str = ""


def gradients_over_depth(recording: RunEvidence) -> Iterator[Finding]:
    """Gradients that shrink from layer to layer on their way back, until the first layers learn nothing; or grow."""
    findings: dict[str, Finding] = {}
    for profile in _profiles(recording):
        fall, trend = _fall(profile.sizes)
        if (fall < FALL and trend > TREND) or (fall > 1 / FALL and trend < -TREND):
            finding = _over_depth(recording, profile, fall)
            findings.setdefault(finding.rule, finding)
    yield from findings.values()


def _over_depth(recording: RunEvidence, profile: Profile, fall: float) -> Finding:
    vanishes, step = fall < 1, int(recording.steps[-1])
    first, last = profile.sizes[0], profile.sizes[-1]
    towards, away = (recording.called(profile.sites[end], profile.context) for end in (0, -1))
    factor = fall ** (1 / max(len(profile.sizes) - 1, 1))
    verb = "vanish" if vanishes else "explode"
    cure = (
        "Use ReLU-like activations, normalization layers or residual connections, and an initialization that keeps "
        "the variance (Xavier for tanh, He for ReLU)."
        if vanishes
        else "Initialize with smaller weights (Xavier or He), add normalization layers, and clip gradients."
    )
    return Finding(
        rule="vanishing_gradients" if vanishes else "exploding_gradients",
        severity=Severity.ERROR,
        site=profile.sites[0],
        context=profile.context,
        kind=profile.kind.value,
        step=int(recording.steps[0]),
        title=f"Gradients {verb} towards {towards}",
        why=f"{profile.what} is {figure(first)} at {towards} and {figure(last)} at {away} "
        f"(medians over time): over {len(profile.sizes)} layers it changes by a factor of {figure(factor, 2)} per "
        "layer.",
        advice=cure,
        evidence=tuple(
            Evidence(site, profile.kind.value, step, profile.what, float(size), profile.context)
            for site, size in zip(profile.sites, profile.sizes, strict=True)
        ),
    )


def _fall(sizes: Floats) -> tuple[float, float]:
    """First quarter of the layers against the last, and how well depth explains it."""
    if len(sizes) < FEWEST_LAYERS:
        return 1.0, 0.0
    quarter, logs = max(len(sizes) // 4, 1), np.log(sizes)
    if np.ptp(logs) == 0:
        return 1.0, 0.0
    trend = np.corrcoef(np.arange(len(sizes)), logs)[0, 1]
    return float(np.exp(np.median(logs[:quarter]) - np.median(logs[-quarter:]))), float(trend)


def _profiles(recording: RunEvidence) -> Iterator[Profile]:
    """Sizes of gradients over depth: of outputs, else of biases, which are sums of the same gradients."""
    # The order of execution.
    order = {row["site"]: row["series"] for row in reversed(recording.series) if row["kind"] == Kind.OUTPUT.value}
    if Kind.OUTPUT_GRAD in recording.kinds:
        every = recording.histories(Kind.OUTPUT_GRAD)
        for context in dict.fromkeys(series.context for series in every.series):
            yield _output_profile(recording, every.where(series.context == context for series in every.series), order)
    if Kind.WEIGHT_GRAD in recording.kinds:
        histories = applied(recording)
        sizes = medians(np.sqrt(histories.moments["sum2"]))
        vectors = np.array([len(series.shape) == 1 for series in histories.series], np.bool_)
        yield _profile("The norm of the gradient", histories.where(vectors), sizes[vectors], order)
        if Kind.WEIGHT in recording.kinds:
            weights = recording.histories(Kind.WEIGHT)
            norms = dict(zip((p.site for p in weights.series), medians(np.sqrt(weights.moments["sum2"])), strict=True))
            sizes = sizes / np.array([norms.get(series.site) or np.nan for series in histories.series])
            yield _profile("‖gradient‖/‖weight‖", histories.where(~vectors), sizes[~vectors], order)


def _output_profile(recording: RunEvidence, histories: KindHistories, order: dict[str, int]) -> Profile:
    """Gradients of the outputs of first calls, in one context."""
    sites = [series.site for series in histories.series]
    first = {site: i for i, site in reversed(list(enumerate(sites))) if name_in(site, recording.classes) == site}
    histories = histories.where(first.get(site) == i for i, site in enumerate(sites))
    return _profile("The norm of the gradient", histories, medians(np.sqrt(histories.moments["sum2"])), order)


def _profile(what: str, histories: KindHistories, sizes: Floats, order: dict[str, int]) -> Profile:
    def turn(at: int) -> tuple[int, int]:
        series = histories.series[at]
        module = series.site if series.kind is Kind.OUTPUT_GRAD else series.site.rpartition(".")[0]
        return order.get(module, series.number), series.number

    kept = sorted(np.flatnonzero(np.nan_to_num(sizes) > 0).tolist(), key=turn)
    series = [histories.series[at] for at in kept]
    kind, context = (series[0].kind, series[0].context) if series else (Kind.WEIGHT_GRAD, "")
    return Profile(what, [each.site for each in series], kind, sizes[kept], context)


def applied(recording: RunEvidence) -> KindHistories:
    """Gradients of weights as an optimizer applied them; all of them where none was seen."""
    histories = recording.histories(Kind.WEIGHT_GRAD)
    seen = [series.phase == Phase.OPTIMIZER.value for series in histories.series]
    return histories.where(seen) if any(seen) else histories


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


#: The series where a growth began, the reason, and the evidence.
Origin = tuple[SeriesInfo, str, tuple[Evidence, ...]]


class Rise(NamedTuple):
    """A rise of the norm of all gradients: its first column, the column to show, and its factor."""

    column: int
    at: int
    times: float
    last: float | None  # norm at the end of a growth; a spike has none


def exploding_over_time(recording: RunEvidence) -> Iterator[Finding]:
    """Gradients far above the run's own past: for good, or for a moment."""
    histories = applied(recording)
    squares = histories.moments["sum2"]
    some = ~np.isnan(squares).all(axis=0)  # a skipped step has none
    norms = np.sqrt(np.nansum(squares[:, some], axis=0))
    ended = recording.until is not None  # by what is not finite, however short the growth was
    if len(norms) < (SHORTEST if ended else FEWEST_STEPS):
        return
    rise = _rise(norms, np.flatnonzero(some).tolist(), ended=ended)
    if rise is not None:
        yield _over_time(recording, histories, rise)


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


def _over_time(recording: RunEvidence, histories: KindHistories, rise: Rise) -> Finding:
    step = int(histories.steps[rise.column])
    until = int(histories.steps[rise.at])
    series, detail, evidence = _first_output(recording, step, until) or _most_grown(recording, histories, rise)
    if rise.last is None:
        rule, title = "gradient_spike", f"A spike of the gradients at step {step}"
        why = f"The norm of all gradients is {figure(rise.times)} times the median of the {PAST} recorded steps before"
    else:
        rule, title = "exploding_gradients", "Gradients explode"
        why = f"From step {step} on the norm of all gradients grows {figure(rise.times)} times, to {figure(rise.last)}"
    return Finding(
        rule=rule,
        severity=Severity.WARNING if rise.last is None else Severity.ERROR,
        site=series.site,
        context=series.context,
        kind=series.kind.value,
        step=step,
        title=f"{title}: {recording.called(series.site, series.context)}",
        why=f"{why}; {detail}",
        advice=SPIKE_ADVICE if rise.last is None else GROWTH_ADVICE,
        evidence=evidence,
    )


def _first_output(recording: RunEvidence, since: int, until: int) -> Origin | None:
    """The first output in the order of execution that grew when the first of them did; None where none is known to.

    A weight that grows enlarges the gradients of all layers but its own: those after it by what goes into them, those
    before it on the way back. So the largest gradient is at a neighbor, and outputs show it.
    """
    if Kind.OUTPUT not in recording.kinds:
        return None
    histories = recording.histories(Kind.OUTPUT)
    before, during = histories.steps < since, (histories.steps >= since) & (histories.steps <= until)
    sizes = np.sqrt(histories.moments["sum2"] / np.maximum(histories.moments["count"], 1))
    usual = medians(sizes[:, before])[:, None]
    times = np.nan_to_num(np.divide(sizes, usual, out=np.zeros_like(sizes), where=usual > SMALLEST))
    larger = np.flatnonzero(during & (times > LARGER).any(axis=0))
    if not len(larger):
        return None
    at = int(larger[0])
    rows = sorted(np.flatnonzero(times[:, at] > ALONG).tolist(), key=lambda row: histories.series[row].number)
    first, grown = histories.series[rows[0]], float(times[rows[0], at])
    called = recording.called(first.site, first.context)
    others = f": of {len(rows)} outputs that grew it is the first in the order of execution" if len(rows) > 1 else ""
    why = f"at step {histories.steps[at]} the output of {called} is {figure(grown)} times as large as before{others}."
    return first, why, tuple(histories.evidence(row, at, "rms", sizes[row, at]) for row in rows[:MOST_EVIDENCE])


def _most_grown(recording: RunEvidence, histories: KindHistories, rise: Rise) -> Origin:
    """The gradient that grew most."""
    sizes = np.sqrt(histories.moments["sum2"])
    times = np.nan_to_num(sizes[:, rise.at] / np.maximum(medians(sizes[:, : rise.column]), SMALLEST))
    worst = np.argsort(-times)[:MOST_EVIDENCE].tolist()
    series = histories.series[worst[0]]
    why = f"most of all in {recording.called(series.site)} ({figure(times[worst[0]])} times)."
    evidence = tuple(histories.evidence(row, rise.at, "norm", sizes[row, rise.at]) for row in worst)
    return series, f"{why} Its cause may be a neighbor: no output was seen to grow.", evidence
