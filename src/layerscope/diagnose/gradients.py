"""Gradients that vanish or explode, over the depth of the network and over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.finding import Evidence, Finding, Severity, figure
from layerscope.diagnose.recording import BEGINNING, FEWEST_STEPS, Histories, Recording, medians
from layerscope.records import Floats, Kind, Reading

FALL = 1e-5  # first layers against last ones: sound networks, however deep, were seen to stay above 1e-3
FEWEST_LAYERS = 5  # a line through fewer is no trend
TREND = 0.8  # correlation of depth and log gradient: a fall by a factor per layer has 0.95, one odd layer 0.6
SPIKE = 100.0  # against the run's own past: noise of small batches reaches 10
GROWTH = 100.0  # of the last quarter against the beginning; gradients of a sound training fall
PAST = 50  # recorded steps that a gradient is compared with
SHORTEST = 3  # recorded steps of a growth that ended in NaN or Inf
SMALLEST = 1e-30  # a gradient of 0 is no level to compare with
SPIKE_ADVICE = (
    "Look at the batch of this step; torch.nn.utils.clip_grad_norm_ before optimizer.step() keeps one bad batch from "
    "undoing many good ones."
)
GROWTH_ADVICE = (
    "Lower the learning rate, warm it up, or clip gradients by torch.nn.utils.clip_grad_norm_ before optimizer.step()."
)


class Profile(NamedTuple):
    """The size of the gradient at each layer, from the first executed to the last."""

    what: str
    sites: list[str]
    kind: Kind
    sizes: Floats


def vanishing_gradients(recording: Recording) -> Iterator[Finding]:
    """Gradients that shrink from layer to layer on their way back, until the first layers learn nothing."""
    for profile in _profiles(recording):
        fall, trend = _fall(profile.sizes)
        if fall < FALL and trend > TREND:
            yield _over_depth(recording, profile, fall)
            return


def exploding_over_depth(recording: Recording) -> Iterator[Finding]:
    """Gradients that grow from layer to layer on their way back."""
    for profile in _profiles(recording):
        fall, trend = _fall(profile.sizes)
        if fall > 1 / FALL and trend < -TREND:
            yield _over_depth(recording, profile, fall)
            return


def _over_depth(recording: Recording, profile: Profile, fall: float) -> Finding:
    vanishes = fall < 1
    first, last = profile.sizes[0], profile.sizes[-1]
    factor = fall ** (1 / max(len(profile.sizes) - 1, 1))
    verb = "vanish" if vanishes else "explode"
    cure = (
        "Use ReLU-like activations, normalisation layers or residual connections, and an initialisation that keeps "
        "the variance (Xavier for tanh, He for ReLU)."
        if vanishes
        else "Initialise with smaller weights (Xavier or He), add normalisation layers, and clip gradients."
    )
    return Finding(
        rule="vanishing_gradients" if vanishes else "exploding_gradients",
        severity=Severity.ERROR,
        site=profile.sites[0],
        kind=profile.kind.value,
        step=int(recording.steps[0]),
        title=f"Gradients {verb} towards {profile.sites[0]!r}",
        why=f"{profile.what} is {figure(first)} at {profile.sites[0]!r} and {figure(last)} at {profile.sites[-1]!r} "
        f"(medians over time): over {len(profile.sizes)} layers it changes by a factor of {figure(factor, 2)} per "
        "layer.",
        advice=cure,
        evidence=tuple(
            Evidence(site, profile.kind.value, int(recording.steps[-1]), profile.what, float(size))
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


def _profiles(recording: Recording) -> Iterator[Profile]:
    """What tells how gradients change with depth: those of outputs; else of biases, which are the same added up."""
    order = {
        row["site"]: row["series"] for row in reversed(recording.series) if row["kind"] == Kind.OUTPUT.value
    }  # of execution
    if Kind.OUTPUT_GRAD in recording.kinds:
        found = recording.histories(Kind.OUTPUT_GRAD)
        first = {place.site: i for i, place in reversed(list(enumerate(found.places))) if "#" not in place.site}
        found = found.where(first.get(place.site) == i for i, place in enumerate(found.places))
        yield _profile("The norm of the gradient", found, medians(np.sqrt(found.moments["sum2"])), order)
    if Kind.WEIGHT_GRAD in recording.kinds:
        found = applied(recording)
        sizes = medians(np.sqrt(found.moments["sum2"]))
        vectors = np.array([len(place.shape) == 1 for place in found.places], np.bool_)
        yield _profile("The norm of the gradient", found.where(vectors), sizes[vectors], order)
        if Kind.WEIGHT in recording.kinds:
            weights = recording.histories(Kind.WEIGHT)
            norms = dict(zip((p.site for p in weights.places), medians(np.sqrt(weights.moments["sum2"])), strict=True))
            sizes = sizes / np.array([norms.get(place.site) or np.nan for place in found.places])
            yield _profile("‖gradient‖/‖weight‖", found.where(~vectors), sizes[~vectors], order)


def _profile(what: str, found: Histories, sizes: Floats, order: dict[str, int]) -> Profile:
    def turn(at: int) -> tuple[int, int]:
        place = found.places[at]
        module = place.site if place.kind is Kind.OUTPUT_GRAD else place.site.rpartition(".")[0]
        return order.get(module, place.number), place.number

    kept = sorted(np.flatnonzero(np.nan_to_num(sizes) > 0).tolist(), key=turn)
    kind = found.places[0].kind if found.places else Kind.WEIGHT_GRAD
    return Profile(what, [found.places[at].site for at in kept], kind, sizes[kept])


def applied(recording: Recording) -> Histories:
    """Gradients of weights as an optimizer applied them; all of them where none was seen."""
    found = recording.histories(Kind.WEIGHT_GRAD)
    seen = [place.reading == Reading.OPTIMIZER.value for place in found.places]
    return found.where(seen) if any(seen) else found


def exploding_over_time(recording: Recording) -> Iterator[Finding]:
    """Gradients far above the run's own past: for good, or for a moment."""
    found = applied(recording)
    squares = found.moments["sum2"]
    some = ~np.isnan(squares).all(axis=0)  # a skipped step has none
    steps, norms = found.steps[some], np.sqrt(np.nansum(squares[:, some], axis=0))
    if len(steps) < FEWEST_STEPS and (recording.until is None or len(steps) < SHORTEST):
        return
    columns = np.flatnonzero(some)
    start = float(np.median(norms[: min(BEGINNING, 1 + len(norms) // 4)]))
    past = np.array([np.median(norms[max(0, at - PAST) : max(at, 1)]) for at in range(len(norms))])
    level = max(start, float(np.min(past)))
    last = float(np.median(norms[-max(len(norms) // 4, BEGINNING) :]))
    if recording.until is not None:  # what is not finite ended it, however short the growth was
        last = float(norms[-1])
    if last > GROWTH * level > 0:
        grown = np.flatnonzero(norms > GROWTH * level)
        low = np.flatnonzero(norms[: grown[0]] <= level)  # it may be low again later
        onset = low[-1] + 1 if len(low) else grown[0]
        yield _over_time(found, int(columns[onset]), int(columns[grown[-1]]), last / level, last)
        return
    spikes = np.flatnonzero((norms > SPIKE * past) & (norms > SPIKE / 10 * start) & (past > 0))
    spikes = spikes[spikes >= BEGINNING]
    if len(spikes):
        column = int(columns[spikes[0]])
        yield _over_time(found, column, column, norms[spikes[0]] / past[spikes[0]], None)


def _over_time(found: Histories, column: int, at: int, growth: float, last: float | None) -> Finding:
    """From a column on, as the numbers at another show; `last` is the norm at the end of a growth, a spike has none."""
    sizes = np.sqrt(found.moments["sum2"])
    grown = np.nan_to_num(sizes[:, at] / np.maximum(medians(sizes[:, :column]), SMALLEST))
    worst = np.argsort(-grown)[:5]
    place, step = found.places[worst[0]], int(found.steps[column])
    most = f"most of all in {place.site!r} ({figure(grown[worst[0]])} times)"
    if last is None:
        rule, title = "gradient_spike", f"A spike of the gradients at step {step}"
        why = f"The norm of all gradients is {figure(growth)} times the median of the {PAST} recorded steps before, "
        why += f"{most}."
    else:
        rule, title = "exploding_gradients", "Gradients explode"
        why = f"From step {step} on the norm of all gradients grows {figure(growth)} times, to {figure(last)}; {most}."
    return Finding(
        rule=rule,
        severity=Severity.WARNING if last is None else Severity.ERROR,
        site=place.site,
        kind=place.kind.value,
        step=step,
        title=title,
        why=why,
        advice=SPIKE_ADVICE if last is None else GROWTH_ADVICE,
        evidence=tuple(found.evidence(int(row), at, "norm", sizes[row, at]) for row in worst),
    )
