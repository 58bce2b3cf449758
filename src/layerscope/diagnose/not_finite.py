"""NaN and Inf: the first step and, in the order of execution, the first site; the losses they reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.finding import Evidence, Finding, Severity
from layerscope.diagnose.recording import Recording
from layerscope.records import Kind
from layerscope.store.columns import flags, values

#: Within a step the forward comes first, then the backward, what the optimizer applied, and what it left behind.
STAGES = (
    (Kind.INPUT, Kind.OUTPUT, Kind.TENSOR),
    (Kind.OUTPUT_GRAD, Kind.INPUT_GRAD, Kind.TENSOR_GRAD, Kind.OUTPUT_GRAD_NORM, Kind.INPUT_GRAD_NORM),
    (Kind.WEIGHT_GRAD,),
    (Kind.UPDATE, Kind.OPTIMIZER, Kind.WEIGHT, Kind.BUFFER),
)
STAGE = {kind: stage for stage, kinds in enumerate(STAGES) for kind in kinds}
GRADIENTS = (*STAGES[1], Kind.WEIGHT_GRAD)  # of a step that AMP skips they are infinite, and that is all right
MASKS = (*STAGES[0], Kind.BUFFER)  # −Inf in them is how attention is masked, unless it comes with worse
ADVICE = (
    "Look at what {site!r} computes: a logarithm or square root of 0, a division by 0, an exponential that overflows. "
    "Clamp its argument or add a small number to it; if values grew before, lower the learning rate.",
    "The forward was finite, its derivative was not: square roots, norms and powers have none at 0, and "
    "`where(x > 0, f(x), 0)` does not keep it out. Put a small number under the root; see also "
    "torch.autograd.set_detect_anomaly(True).",
    "No activation was seen to be infinite before it. Record kinds=('output', 'output_grad') to see which operation of "
    "the backward it was; clip gradients if they grew before.",
    "Gradients were finite where they were recorded: look at the optimizer's settings (eps, betas, lr), and record "
    "kinds='all' around this step.",
)


class Broken(NamedTuple):
    """A tensor with elements that are not finite."""

    place: tuple[int, int]  # in the order of execution
    site: str
    kind: Kind
    step: int
    elements: int
    nan: int
    pos_inf: int
    neg_inf: int

    @property
    def what(self) -> str:
        """The worst that is in it."""
        return "NaN" if self.nan else "Inf" if self.pos_inf else "-Inf"


def not_finite(recording: Recording) -> Iterator[Finding]:
    """The first tensor that was not finite, and which others followed."""
    broken = _first_broken(recording)
    if not broken:
        return
    origin, step = broken[0], broken[0].step
    followers = list(dict.fromkeys(each.site for each in broken[1:] if each.site != origin.site))
    shares = [(origin.nan, "NaN"), (origin.pos_inf, "Inf"), (origin.neg_inf, "-Inf")]
    why = [f"{' and '.join(f'{number} {name}' for number, name in shares if number)} among {origin.elements} elements."]
    sound = recording.recorded[recording.recorded < step]
    why.append(f"All was finite at step {sound[-1]}, the recorded step before." if len(sound) else "So from the start.")
    if followers:
        order = ", ".join(followers[:4]) + (" …" if len(followers) > 4 else ".")
        why.append(f"In the same step {len(followers)} more followed, in this order: {order}")
    harmless = all(each.kind is Kind.INPUT for each in broken)
    yield Finding(
        rule="not_finite",
        severity=Severity.WARNING if harmless else Severity.ERROR,
        site=origin.site,
        kind=origin.kind.value,
        step=step,
        title=f"{origin.what} first seen in the {origin.kind.value} of {origin.site!r}",
        why=" ".join(why),
        advice=_advice(origin),
        evidence=tuple(
            Evidence(each.site, each.kind.value, step, "not finite", each.nan + each.pos_inf + each.neg_inf)
            for each in broken
        ),
    )


def _advice(origin: Broken) -> str:
    if origin.kind is Kind.INPUT:
        return "The data came in like this: check the batch of this step, and how it was normalised."
    return ADVICE[STAGE[origin.kind]].format(site=origin.site)


def _first_broken(recording: Recording) -> list[Broken]:
    """All broken tensors of the first step that has any, in the order of execution."""
    suspects = [
        each for each in _suspects(recording) if each.step not in recording.skipped or each.kind not in GRADIENTS
    ]
    lost = {int(step) for steps, loss in recording.losses.values() for step in steps[~np.isfinite(loss)]}
    worst = [each.step for each in suspects if not _may_be_mask(each) or each.step in lost]
    if not worst:
        return []
    step = min(worst)
    masked = {each.place for each in suspects if each.step < step}
    return sorted(each for each in suspects if each.step == step and not (_may_be_mask(each) and each.place in masked))


def _may_be_mask(each: Broken) -> bool:
    return each.kind in MASKS and not each.nan and not each.pos_inf


def _suspects(recording: Recording) -> list[Broken]:
    """Every tensor with elements that are not finite."""
    table = recording.finiteness
    bad = values(table["count"]) != values(table["finite"])
    if not bad.any():
        return []
    columns = ("count", "nan", "pos_inf", "neg_inf")
    numbers, steps = np.unique(values(table["series"])[bad]), np.unique(values(table["step"])[bad])
    rows = recording.reader.moments(numbers, steps, columns)
    bad = np.any([values(rows[name]) > 0 for name in columns[1:]], axis=0)
    known = {(row["rank"], row["series"]): row for row in recording.series}
    found = []
    for row in rows.filter(flags(bad)).to_pylist():
        series = known.get((row["rank"], row["series"]))
        if series is None:  # first recorded since the series were listed
            continue
        kind = Kind(series["kind"])
        turn = -row["series"] if kind is Kind.WEIGHT_GRAD else row["series"]  # backward reaches the last ones first
        place = (STAGE[kind], turn)
        found.append(Broken(place, series["site"], kind, row["step"], *(int(row[name]) for name in columns)))
    return found


def loss_not_finite(recording: Recording) -> Iterator[Finding]:
    """The first step at which a loss was not finite."""
    for name, (steps, loss) in recording.losses.items():
        bad = np.flatnonzero(~np.isfinite(loss))
        if not len(bad):
            continue
        first, step = int(bad[0]), int(steps[bad[0]])
        before = f"; it was {loss[first - 1]:.4g} one step before" if first else ""
        yield Finding(
            rule="loss_not_finite",
            severity=Severity.ERROR,
            site="",
            kind="kpi",
            step=step,
            title=f"The KPI {name} is not finite",
            why=f"{name} is {loss[first]} at step {step}{before}, and in {len(bad)} of {len(loss)} steps.",
            advice="Record every step up to this one (every=1) with kinds 'output' and 'weight_grad': `check` then "
            "names the first site that is not finite.",
            evidence=(Evidence("", name, step, "value", float(loss[first])),),
        )
