"""Weights that do not move, gradients that are exactly zero, updates that are too large or too small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.evidence import KindHistories, RunEvidence, medians
from layerscope.diagnose.findings import Finding, Severity, figure
from layerscope.diagnose.gradient_rules import applied
from layerscope.model.records import UPDATE_RATIO, Flags, Floats, Ints, Kind, Phase

LARGE_UPDATE = 0.2  # of the weights in every step; around 1e-3 is usual, small networks with Adam begin near 0.1
WILD_UPDATE = 1.0  # nothing is left of the weights of the step before
SMALL_UPDATE = 1e-6  # a million steps would be needed, and float32 rounds most of it away (its eps is 1.2e-7)
ROUNDING = 1e-5  # of the gradient of the weight beside it; sound biases before a BatchNorm were seen to have 1e-8
MOSTLY = 0.75  # share of the steps that must be below SMALL_UPDATE: warm-up and decay of the rate may be

LARGE_ADVICE = "Lower the learning rate, or warm it up."
ALONE_ADVICE = (
    "The others are in range: look at the learning rate of this parameter group, at how it was initialized (too small "
    "a weight makes every update large), and at code of your own that writes it."
)
SMALL_ADVICE = (
    "Raise the learning rate, or check whether gradients arrive at all (a scale that is divided out twice, a loss "
    "divided by the batch, vanishing gradients)."
)


class Case(NamedTuple):
    """Why weights may be stuck."""

    rule: str
    severity: Severity
    why: str
    advice: str


ALL_STILL = Case(
    "stuck_weights",
    Severity.ERROR,
    "No weight changes though there are gradients: nothing is learned.",
    "Call optimizer.step() after every backward, give the optimizer this model's parameters, and check that its "
    "learning rate is not 0.",
)
UNSEEN = Case(
    "stuck_weights",
    Severity.NOTE,
    "No gradient of theirs was seen, while other weights learn: they are frozen, cut off from the loss, or in no "
    "optimizer.",
    "If they are not meant to be frozen, look for detach(), no_grad(), argmax or an unused branch between them and "
    "the loss, for requires_grad=False, and whether the optimizer has them.",
)
FORGOTTEN = Case(
    "stuck_weights",
    Severity.WARNING,
    "They have a gradient, but no optimizer step applied it.",
    "Give them to the optimizer: parameters that were created or replaced after it was made are not in it. If they "
    "are meant to be frozen, requires_grad_(False) saves computing their gradients.",
)
LOST = Case(
    "update_too_small",
    Severity.WARNING,
    "The optimizer has them and their gradient, but its updates change nothing.",
    "Check the learning rate of their parameter group; updates below the resolution of the data type are lost, so "
    "keep weights in float32.",
)


def stuck_weights(recording: RunEvidence) -> Iterator[Finding]:
    """Weights that stay exactly what they were, while others move or gradients arrive."""
    weights = recording.histories(Kind.WEIGHT)
    still = _unchanged(weights)
    if not still.any():
        return
    gradients = _gradient_by_site(recording)
    whole = _whole(weights)
    if still.all() and whole.all():
        if gradients:
            yield _stuck(recording, weights, np.flatnonzero(still), ALL_STILL)
        return
    rows: dict[Case, list[int]] = {}
    for row in np.flatnonzero(still & whole).tolist():
        largest, phase = gradients.get(weights.series[row].site, (None, ""))
        case = UNSEEN if largest is None else LOST if phase == Phase.OPTIMIZER.value else FORGOTTEN
        if largest == 0 or (case is LOST and _needless(weights.series[row].site, gradients)):
            continue  # 0 is a rule of its own
        if case is not UNSEEN or not still.all():  # do others learn?
            rows.setdefault(case, []).append(row)
    for case, stuck in rows.items():
        yield _stuck(recording, weights, np.array(stuck), case)


def _stuck(recording: RunEvidence, weights: KindHistories, rows: Ints, case: Case) -> Finding:
    site = weights.series[rows[0]].site
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    first, last = weights.steps[0], weights.steps[-1]
    return Finding(
        rule=case.rule,
        severity=case.severity,
        site=site,
        kind=Kind.WEIGHT.value,
        step=int(first),
        title=f"Weights do not change: {recording.called(site)}{more}",
        why=f"{case.why} They are the same at all {len(weights.steps)} steps looked at, {first} to {last}.",
        advice=case.advice,
        evidence=tuple(weights.evidence(int(row), -1, "norm", weights.moments["sum2"][row, -1] ** 0.5) for row in rows),
    )


def _unchanged(weights: KindHistories) -> Flags:
    """Which rows have the same sum and the same sum of squares, to the last bit, at every step."""
    still = np.ones(len(weights.series), np.bool_)
    for matrix in (weights.moments["sum"], weights.moments["sum2"]):
        last = matrix[:, -1:]
        still &= (np.isnan(matrix) | (matrix == last)).all(axis=1) & ~np.isnan(matrix[:, [0, -1]]).any(axis=1)
    return still


def _whole(histories: KindHistories) -> Flags:
    """Which rows are of all elements: of a sample, what stays or is zero says nothing of the rest."""
    return np.array([series.whole for series in histories.series], np.bool_)


def _gradient_by_site(recording: RunEvidence) -> dict[str, tuple[float, str]]:
    """The largest squared norm of each parameter's gradient, and when it was read: applied counts, if it ever was."""
    if Kind.WEIGHT_GRAD not in recording.kinds:
        return {}
    histories = recording.histories(Kind.WEIGHT_GRAD)
    largest = np.nanmax(np.nan_to_num(histories.moments["sum2"]), axis=1, initial=0.0)
    result: dict[str, tuple[float, str]] = {}
    for series, size in zip(histories.series, largest, strict=True):
        if series.site not in result or series.phase == Phase.OPTIMIZER.value:
            result[series.site] = (float(size), series.phase)
    return result


def _needless(site: str, gradients: dict[str, tuple[float, str]]) -> bool:
    """Whether it is a bias that a normalization takes away again: its gradient is what rounding leaves of 0."""
    module, _, name = site.rpartition(".")
    weight, _ = gradients.get(f"{module}.weight", (0.0, ""))
    return name == "bias" and gradients[site][0] < ROUNDING**2 * weight


def zero_gradients(recording: RunEvidence) -> Iterator[Finding]:
    """Parameters whose gradient is exactly zero at every step, while others have one."""
    histories = applied(recording)
    sizes = histories.moments["sum2"]
    zero = (np.nan_to_num(sizes) == 0).all(axis=1) & ~np.isnan(sizes).all(axis=1)
    rows = np.flatnonzero(zero & _whole(histories))
    if not len(rows) or zero.all():
        return
    site = histories.series[rows[0]].site
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    yield Finding(
        rule="zero_gradients",
        severity=Severity.WARNING,
        site=site,
        kind=Kind.WEIGHT_GRAD.value,
        step=int(histories.steps[0]),
        title=f"Gradients are exactly zero: {recording.called(site)}{more}",
        why=f"{len(rows)} of {len(zero)} parameters have a gradient of 0 at every recorded step: what they compute is "
        "multiplied by 0 or clamped before it reaches the loss.",
        advice="Look for dead or saturated activations behind them, for clamp(), round() or sign(), and for masks and "
        "weights of a loss that are 0.",
        evidence=tuple(histories.evidence(int(row), -1, "norm", 0.0) for row in rows),
    )


def update_ratio(recording: RunEvidence) -> Iterator[Finding]:
    """Updates so large that weights cannot settle, or so small that they do not get anywhere."""
    histories = recording.custom(Kind.UPDATE, UPDATE_RATIO)
    # Biases begin near 0: their first updates are large against them, and right.
    histories = histories.where(len(series.shape) > 1 for series in histories.series)
    ratios = histories.moments[UPDATE_RATIO]
    if not ratios.size:
        return
    later = ratios[:, ratios.shape[1] // 2 :]
    typical = medians(later)
    if (typical > LARGE_UPDATE).any():
        yield _updates(recording, histories, typical, large=True)
    given = ~np.isnan(ratios)
    small = (ratios < SMALL_UPDATE).sum(axis=1) >= MOSTLY * given.sum(axis=1)
    small &= given.any(axis=1) & (np.nan_to_num(ratios).max(axis=1) > 0)  # all 0: stuck, not small
    if small.any():
        yield _updates(recording, histories, np.where(small, medians(ratios), np.nan), large=False)


def _updates(recording: RunEvidence, histories: KindHistories, typical: Floats, *, large: bool) -> Finding:
    """Which ratios are out of range; those of weights that are not may be NaN."""
    rows = np.flatnonzero(typical > LARGE_UPDATE if large else ~np.isnan(typical))
    rows = rows[np.argsort(-typical[rows] if large else typical[rows])]
    site, ratio = histories.series[rows[0]].site, float(typical[rows[0]])
    out = histories.moments[UPDATE_RATIO][rows[0]]
    onset = int(np.flatnonzero(out > LARGE_UPDATE if large else out < SMALL_UPDATE)[0])
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    alone = large and len(rows) * 2 <= len(typical)
    advice = ALONE_ADVICE if alone else LARGE_ADVICE if large else SMALL_ADVICE
    return Finding(
        rule="update_too_large" if large else "update_too_small",
        severity=Severity.ERROR if large and ratio > WILD_UPDATE else Severity.WARNING,
        site=site,
        kind=Kind.UPDATE.value,
        step=int(histories.steps[onset]),
        title=f"Updates are too {'large' if large else 'small'}: {recording.called(site)}{more}",
        why=f"A step changes {site!r} by {figure(ratio, 2)} times its norm (‖Δw‖/‖w‖, median over time). Around 1e-3 "
        f"is usual; of {len(typical)} weight matrices, {len(rows)} {'is' if len(rows) == 1 else 'are'} out of range.",
        advice=advice,
        evidence=tuple(histories.evidence(int(row), -1, UPDATE_RATIO, typical[row]) for row in rows),
    )
