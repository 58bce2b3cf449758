"""Rules about outputs: dead units and layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerscope.diagnose.evidence import FEWEST_STEPS, KindHistories, RunEvidence, SeriesInfo, medians
from layerscope.diagnose.findings import Evidence, Finding, Severity, figure
from layerscope.diagnose.gradient_rules import applied
from layerscope.model.records import Flags, Floats, Ints, Kind

DEAD_SHARE = 0.99  # of zeros in the output of a ReLU; sound ones were seen to reach 0.9
RELU_LIKE = frozenset(("ReLU", "ReLU6", "Threshold", "Hardtanh", "Hardswish", "Hardsigmoid"))
LASTING = 0.2  # share of the training, up to its end, for which it must be so
DEAD_UNITS = 0.75  # of a layer's units without gradient in a step; sound layers were seen to reach 0.4
FEWEST_UNITS = 16  # of a layer: with 8 channels, half of them are idle in sound networks
FEWEST_ELEMENTS = 8  # of an output that may be called constant: a loss has one
ADVICE = (
    "Lower the learning rate, and begin with biases of 0; LeakyReLU and GELU cannot die. If it happened at one step, "
    "look at the batch and the gradients of that step."
)


def dead_units(recording: RunEvidence) -> Iterator[Finding]:
    """Outputs of which (almost) nothing but zeros, or one same value, is left until the end; layers that come close."""
    histories = recording.histories(Kind.OUTPUT)
    histories = histories.where("float" in series.dtype and series.whole for series in histories.series)
    count, given = histories.moments["count"], histories.moments["count"] > 0
    share = np.divide(histories.moments["zeros"], count, where=given, out=np.full(count.shape, np.nan))
    constant = (histories.moments["min"] == histories.moments["max"]) & (count >= FEWEST_ELEMENTS)
    rectified = np.array([recording.class_of(series.site) in RELU_LIKE for series in histories.series], np.bool_)
    dead = constant | (share >= DEAD_SHARE) & rectified[:, None]
    rows, since = _lasting(dead, given)
    rows = _without_alive(histories, rows, np.count_nonzero(count >= FEWEST_ELEMENTS, axis=1) >= FEWEST_STEPS)
    if len(rows):
        yield _dead(recording, histories, rows, since, share)
    if Kind.WEIGHT_GRAD in recording.kinds:
        yield from _idle_units(recording)


def _lasting(dead: Flags, given: Flags) -> tuple[Ints, Ints]:
    """The rows that are dead long enough, up to the end, the first to die first; and the column since which each is."""
    alive = given & ~dead
    last = dead.shape[1] - 1 - alive[:, ::-1].argmax(axis=1)
    since = np.where(alive.any(axis=1), last + 1, 0).astype(np.int64)
    lasting = np.array([np.count_nonzero(given[row, at:]) for row, at in enumerate(since)])
    rows = np.flatnonzero(lasting >= np.maximum(given.sum(axis=1) * LASTING, FEWEST_STEPS))
    return rows[np.lexsort((rows, since[rows]))], since


def _without_alive(histories: KindHistories, rows: Ints, judged: Flags) -> Ints:
    """Without outputs of modules that have another output that is alive: masks and empty biases are sound.

    Only outputs that can be judged count: a loss beside the output of a dead module says nothing for it.
    """
    dead = set(rows.tolist())
    alive: dict[tuple[str, str], set[str]] = {}
    for row in np.flatnonzero(judged).tolist():
        if row not in dead:
            series = histories.series[row]
            alive.setdefault((series.site, series.context), set()).add(series.port)
    candidates = [histories.series[row] for row in rows]
    kept = [not alive.get((each.site, each.context), set()) - {each.port} for each in candidates]
    return rows[np.array(kept, np.bool_)]


def _dead(recording: RunEvidence, histories: KindHistories, rows: Ints, since: Ints, share: Floats) -> Finding:
    """Of rows that are dead, the first to die first: since which column each is, and its share of zeros."""
    row, *others = rows.tolist()
    series, at = histories.series[row], int(since[row])
    called = _called(recording, series)
    zeros = float(np.nanmin(share[row, at:]))
    value = float(histories.moments["max"][row, -1])
    amount, what = (
        ("Nothing", "all elements are 0")
        if zeros == 1
        else ("Next to nothing", f"{zeros:.2%} of the elements are 0")
        if zeros
        else ("One constant", f"all elements are {figure(value)}")
    )
    began = "from the start" if at == 0 else f"since step {histories.steps[at]}"
    why = f"In the output of {called} {what} {began}, whatever goes in, up to step {histories.steps[-1]}: "
    why += f"{amount.lower() if zeros else 'nothing'} can be learned through it."
    why += _before(recording, histories, row, at)
    if others:
        names = ", ".join(_called(recording, histories.series[each]) for each in others[:3])
        why += f" {len(others)} more outputs are 0 or constant: {names}{' …' if len(others) > 3 else '.'}"
    return Finding(
        rule="dead_units",
        severity=Severity.ERROR if zeros == 1 else Severity.WARNING,
        site=series.site,
        context=series.context,
        kind=Kind.OUTPUT.value,
        step=int(histories.steps[at]),
        title=f"{amount} comes out of {called}",
        why=why,
        advice=ADVICE,
        evidence=_zero_shares(histories, rows, since, share),
    )


def _called(recording: RunEvidence, series: SeriesInfo) -> str:
    return recording.called(series.site, series.context)


def _before(recording: RunEvidence, histories: KindHistories, row: int, at: int) -> str:
    """The input, if it must be the output executed before it and that one is below 0."""
    series, before = histories.series[row], histories.series[row - 1]
    if row == 0 or (before.shape, before.context) != (series.shape, series.context):
        return ""
    most = histories.moments["max"][row - 1, at]
    name = recording.called(before.site)
    return f" What {name} gives it is below 0, at most {figure(most)}." if most < 0 else ""


def _idle_units(recording: RunEvidence) -> Iterator[Finding]:
    """Layers most of whose units get no gradient: the gradient of a bias has one element per unit."""
    histories = applied(recording)
    histories = histories.where(_is_of_units(series) for series in histories.series)
    zeros, given = histories.moments["zeros"], ~np.isnan(histories.moments["zeros"])
    units = np.array([series.shape[0] for series in histories.series], np.float64)[:, None]
    share = zeros / units
    rows, since = _lasting((share >= DEAD_UNITS) & (share < 1), given)  # all of them: another rule's
    if not len(rows):
        return
    row = int(rows[np.argmax(medians(share[rows]))])
    series, at = histories.series[row], int(since[row])
    fewest = int(np.nanmin(zeros[row, at:]))
    more = f", and most of {len(rows) - 1} more" if len(rows) > 1 else ""
    yield Finding(
        rule="dead_units",
        severity=Severity.WARNING,
        site=series.site,
        kind=series.kind.value,
        step=int(histories.steps[at]),
        title=f"{fewest} of {series.shape[0]} units get no gradient: {recording.called(series.site)}{more}",
        why=f"From step {histories.steps[at]} on, at least {fewest} of the {series.shape[0]} elements of the gradient "
        f"of {series.site!r}, one for each unit, are exactly 0 at every recorded step: these units do not react to "
        "any sample of a batch, and do not learn.",
        advice=ADVICE,
        evidence=_zero_shares(histories, rows, since, share),
    )


def _zero_shares(histories: KindHistories, rows: Ints, since: Ints, share: Floats) -> tuple[Evidence, ...]:
    return tuple(histories.evidence(row, since[row], "zero_share", share[row, since[row]]) for row in rows.tolist())


def _is_of_units(series: SeriesInfo) -> bool:
    return series.whole and series.site.endswith("bias") and len(series.shape) == 1 and series.shape[0] >= FEWEST_UNITS
