"""Gradients that vanish or explode over the depth of the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.finding import Evidence, Finding, Severity, figure
from layerscope.diagnose.recording import Histories, Recording, medians
from layerscope.records import Floats, Kind, Reading, name_in

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


def _profiles(recording: Recording) -> Iterator[Profile]:
    """What tells how gradients change with depth: those of outputs; else of biases, which are the same added up."""
    order = {
        row["site"]: row["series"] for row in reversed(recording.series) if row["kind"] == Kind.OUTPUT.value
    }  # of execution
    if Kind.OUTPUT_GRAD in recording.kinds:
        every = recording.histories(Kind.OUTPUT_GRAD)
        for context in dict.fromkeys(place.context for place in every.places):
            yield _output_profile(recording, every.where(place.context == context for place in every.places), order)
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


def _output_profile(recording: Recording, found: Histories, order: dict[str, int]) -> Profile:
    """Gradients of the outputs of first calls, in one context."""
    sites = [place.site for place in found.places]
    first = {site: i for i, site in reversed(list(enumerate(sites))) if name_in(site, recording.classes) == site}
    found = found.where(first.get(site) == i for i, site in enumerate(sites))
    return _profile("The norm of the gradient", found, medians(np.sqrt(found.moments["sum2"])), order)


def _profile(what: str, found: Histories, sizes: Floats, order: dict[str, int]) -> Profile:
    def turn(at: int) -> tuple[int, int]:
        place = found.places[at]
        module = place.site if place.kind is Kind.OUTPUT_GRAD else place.site.rpartition(".")[0]
        return order.get(module, place.number), place.number

    kept = sorted(np.flatnonzero(np.nan_to_num(sizes) > 0).tolist(), key=turn)
    kind, context = (found.places[0].kind, found.places[0].context) if found.places else (Kind.WEIGHT_GRAD, "")
    return Profile(what, [found.places[at].site for at in kept], kind, sizes[kept], context)


def applied(recording: Recording) -> Histories:
    """Gradients of weights as an optimizer applied them; all of them where none was seen."""
    found = recording.histories(Kind.WEIGHT_GRAD)
    seen = [place.reading == Reading.OPTIMIZER.value for place in found.places]
    return found.where(seen) if any(seen) else found
