"""NaN and Inf: the first step and, in the order of execution, the first site; the losses they reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from layerscope.diagnose.evidence import RunEvidence
from layerscope.diagnose.findings import Evidence, Finding, Severity, figure
from layerscope.model.records import Flags, Floats, Ints, Kind

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
    "Look at what {site} computes: a logarithm or square root of 0, a division by 0, an exponential that overflows. "
    "Clamp its argument or add a small number to it; if values grew before, lower the learning rate.",
    "The forward was finite, its derivative was not: square roots, norms and powers have none at 0, and "
    "`where(x > 0, f(x), 0)` does not keep it out. Put a small number under the root; see also "
    "torch.autograd.set_detect_anomaly(True).",
    "No activation was seen to be infinite before it. Record kinds=('output', 'output_grad') to see which operation of "
    "the backward it was; clip gradients if they grew before.",
    "Gradients were finite where they were recorded: look at the optimizer's settings (eps, betas, lr), and record "
    "kinds='all' around this step.",
)
BATCH_FIRST = (
    "Look at the batch of this step first: the data may already contain it (record kinds=('input', 'output') to see)."
)
COLUMNS = ("count", "nan", "pos_inf", "neg_inf")


class Broken(NamedTuple):
    """A tensor with elements that are not finite."""

    order: tuple[int, int]  # in the order of execution
    site: str
    kind: Kind
    step: int
    rank: int
    mode: str
    context: str
    elements: int
    nan: int
    pos_inf: int
    neg_inf: int

    @property
    def what(self) -> str:
        """The worst kind of value in it."""
        return "NaN" if self.nan else "Inf" if self.pos_inf else "-Inf"

    @property
    def evidence(self) -> Evidence:
        """How many elements are not finite."""
        count = self.nan + self.pos_inf + self.neg_inf
        return Evidence(self.site, self.kind.value, self.step, "not finite", count, self.context)


def not_finite(recording: RunEvidence) -> Iterator[Finding]:
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
        order = ", ".join(map(recording.called, followers[:4])) + (" …" if len(followers) > 4 else ".")
        why.append(f"In the same step {len(followers)} more followed, in this order: {order}")
    harmless = all(each.kind is Kind.INPUT for each in broken)
    yield Finding(
        rule="not_finite",
        severity=Severity.WARNING if harmless else Severity.ERROR,
        site=origin.site,
        context=origin.context,
        kind=origin.kind.value,
        step=step,
        title=f"{origin.what} first seen in the {origin.kind.value} of {recording.called(origin.site, origin.context)}"
        f"{_passed_back(recording, broken)}",
        why=" ".join(why),
        advice=_advice(recording, origin),
        evidence=tuple(each.evidence for each in broken),
    )


def _passed_back(recording: RunEvidence, broken: list[Broken]) -> str:
    """The module whose backward produced it: the consumer of the output, if the gradient of that one was finite."""
    origin = broken[0]
    if origin.kind is not Kind.OUTPUT_GRAD:
        return ""
    same = (Kind.OUTPUT_GRAD.value, origin.context)
    seen = {row["site"] for row in recording.series if (row["kind"], row["context"]) == same}
    ill = {each.site for each in broken if each.context == origin.context}
    takers = dict.fromkeys(edge.target for edge in recording.graph.edges if edge.source == origin.site)
    sound = [site for site in takers if site in seen and site not in ill]
    return f", by the backward of {recording.called(sound[0])}" if len(sound) == 1 else ""


def _advice(recording: RunEvidence, origin: Broken) -> str:
    if origin.kind is Kind.INPUT:
        return "The data came in like this: check the batch of this step, and how it was normalized."
    advice = ADVICE[STAGE[origin.kind]].format(site=recording.called(origin.site))
    return f"{BATCH_FIRST} {advice}" if _may_be_the_data(recording, origin) else advice


def _may_be_the_data(recording: RunEvidence, origin: Broken) -> bool:
    """Whether inputs were not recorded, and nothing that was recorded of the step's forward came before it."""
    stage, number = origin.order
    if stage != 0 or Kind.INPUT in recording.kinds:
        return False
    finiteness = recording.finiteness
    ran = [recording.series[each] for each in np.unique(finiteness.owner[finiteness.steps == origin.step]).tolist()]
    setting = (origin.rank, origin.mode, origin.context)
    forward = [row for row in ran if (row["rank"], row["mode"], row["context"]) == setting]
    numbers = [row["series"] for row in forward if STAGE[Kind(row["kind"])] == 0]
    return bool(number == min(numbers, default=number))


def _first_broken(recording: RunEvidence) -> list[Broken]:
    """All broken tensors of the first step that has any, in the order of execution."""
    bad = _bad(recording)
    if not bad.any():
        return []
    rows = _NotFinite.read(recording, bad)
    skipped = np.isin(rows.steps, list(recording.skipped)) & rows.are(recording, GRADIENTS)  # by AMP
    rows = rows.where(~skipped)
    lost = [known[~np.isfinite(loss)] for known, loss in recording.losses.values()]
    nan, pos_inf, _ = rows.counts
    may_be_mask = rows.are(recording, MASKS) & (nan == 0) & (pos_inf == 0)
    worst = ~may_be_mask | np.isin(rows.steps, np.concatenate([*lost, np.zeros(0, np.int64)]))
    if not worst.any():
        return []
    first = rows.steps[worst].min()
    masked = may_be_mask & np.isin(rows.owner, rows.owner[rows.steps < first])
    return rows.where((rows.steps == first) & ~masked).broken(recording)


def broken_gradients(recording: RunEvidence, since: int, until: int) -> list[Broken]:
    """The gradients that were not finite in the first of some steps that has any, in the order of execution."""
    steps = recording.finiteness.steps
    rows = _NotFinite.read(recording, _bad(recording) & (steps >= since) & (steps <= until))
    rows = rows.where(rows.are(recording, GRADIENTS))
    return rows.where(rows.steps == rows.steps.min(initial=until)).broken(recording)


def _bad(recording: RunEvidence) -> Flags:
    moments = recording.finiteness.moments
    return np.asarray(moments["count"] != moments["finite"])


class _NotFinite(NamedTuple):
    """Rows of moments with elements that are not finite."""

    owner: Ints  # row of the table of series
    steps: Ints
    elements: Floats
    counts: tuple[Floats, ...]  # of NaN, Inf and -Inf

    @staticmethod
    def read(recording: RunEvidence, bad: Flags) -> _NotFinite:
        """What is not finite in rows of `finiteness`."""
        history = recording.moments(bad, COLUMNS)
        elements, *counts = (history.moments[name] for name in COLUMNS)
        rows = _NotFinite(history.owner, history.steps, elements, tuple(counts))
        return rows.where(np.any([count > 0 for count in counts], axis=0))

    def where(self, rows: Flags) -> _NotFinite:
        """Some of the rows."""
        counts = tuple(count[rows] for count in self.counts)
        return _NotFinite(self.owner[rows], self.steps[rows], self.elements[rows], counts)

    def are(self, recording: RunEvidence, kinds: tuple[Kind, ...]) -> Flags:
        """Which rows are of the kinds."""
        of_kinds = np.array([row["kind"] in kinds for row in recording.series], np.bool_)
        return np.asarray(of_kinds[self.owner])

    def broken(self, recording: RunEvidence) -> list[Broken]:
        """The rows as records, in the order of execution."""
        broken = []
        for owner, step, *numbers in zip(self.owner, self.steps, self.elements, *self.counts, strict=True):
            series = recording.series[owner]
            kind, turn = Kind(series["kind"]), series["series"]
            turn = -turn if kind is Kind.WEIGHT_GRAD else turn  # backward reaches the last ones first
            names = (series["site"], kind, int(step), series["rank"], series["mode"], series["context"])
            broken.append(Broken((STAGE[kind], turn), *names, *map(int, numbers)))
        return sorted(broken)


def loss_not_finite(recording: RunEvidence) -> Iterator[Finding]:
    """The first step at which a loss was not finite."""
    for name, (steps, loss) in recording.losses.items():
        bad = np.flatnonzero(~np.isfinite(loss))
        if not len(bad):
            continue
        first, step = int(bad[0]), int(steps[bad[0]])
        what = "NaN" if np.isnan(loss[first]) else "infinite"
        before = f"one step before it was {figure(loss[first - 1], 4)}; " if first else ""
        yield Finding(
            rule="loss_not_finite",
            severity=Severity.ERROR,
            site="",
            kind="metric",
            step=step,
            title=f"The metric {name} is not finite",
            why=f"{name} is {what} at step {step}, {before}{len(bad)} of {len(loss)} steps have no finite one.",
            advice="Look at the first site that is not finite. If none is named, record every step up to this one "
            "(every=1) with kinds 'output' and 'weight_grad'.",
            evidence=(Evidence("", name, step, "value", float(loss[first])),),
        )
