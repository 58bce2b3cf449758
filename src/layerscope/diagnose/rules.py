"""All rules applied to one run: causes first, consequences with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from layerscope.diagnose.evidence import FEWEST_STEPS, RunEvidence
from layerscope.diagnose.findings import Diagnosis, Finding, NotChecked, Severity
from layerscope.diagnose.gradient_rules import SHORTEST, exploding_over_time, gradients_over_depth
from layerscope.diagnose.loop_rules import FEWEST_LOSSES, loss_growing, skipped_updates
from layerscope.diagnose.not_finite_rules import loss_not_finite, not_finite
from layerscope.diagnose.output_rules import dead_units
from layerscope.diagnose.weight_rules import stuck_weights, update_ratio, zero_gradients
from layerscope.model.records import Kind


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its requirements."""

    names: tuple[str, ...]  # of what it may find
    find: Callable[[RunEvidence], Iterator[Finding]]
    any_of: tuple[Kind, ...] = ()  # kinds of which one must have been recorded
    needs_loss: bool = False
    fewest_steps: int = FEWEST_STEPS
    whole: Kind | None = None  # of which it ignores what was only sampled

    def lacks(self, recording: RunEvidence) -> str | None:
        """Why it cannot be applied, None if it can."""
        if self.needs_loss and not recording.losses:
            return 'no metric has "loss" in its name: run.step(loss=loss) keeps it'
        if self.any_of and recording.kinds.isdisjoint(self.any_of):
            kinds = "a summary" if len(self.any_of) == len(Kind) else f"kind {' or '.join(self.any_of)}"
            return f"needs {kinds}, which was not recorded"
        what, steps = "recorded steps", len(recording.steps)
        if self.needs_loss:
            what, steps = "steps of a loss", max(len(known) for known, _ in recording.losses.values())
        if steps < self.fewest_steps:
            before = "" if recording.until is None else f" before step {recording.until}, where something is not finite"
            return f"needs {self.fewest_steps} {what}, there are {steps}{before}"
        return None

    def left_alone(self, recording: RunEvidence) -> str | None:
        """What it could not judge although it was applied, None if nothing."""
        sites = recording.sampled(self.whole) if self.whole else []
        more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
        return f"only a part of the elements of {sites[0]!r}{more} was recorded" if sites else None


#: Rules about what is not finite come first: the others look only at what was before it.
FINITE = (
    Rule(("not_finite",), not_finite, tuple(Kind), fewest_steps=1),
    Rule(("loss_not_finite",), loss_not_finite, needs_loss=True, fewest_steps=1),
)
OTHERS = (
    Rule(("update_too_large", "update_too_small"), update_ratio, (Kind.UPDATE,)),
    Rule(("exploding_gradients", "gradient_spike"), exploding_over_time, (Kind.WEIGHT_GRAD,), fewest_steps=SHORTEST),
    Rule(("exploding_gradients", "vanishing_gradients"), gradients_over_depth, (Kind.OUTPUT_GRAD, Kind.WEIGHT_GRAD)),
    Rule(("loss_growing",), loss_growing, needs_loss=True, fewest_steps=FEWEST_LOSSES),
    Rule(("skipped_updates",), skipped_updates, tuple(Kind), fewest_steps=1),
    Rule(("dead_units",), dead_units, (Kind.OUTPUT,), whole=Kind.OUTPUT),
    Rule(("zero_gradients",), zero_gradients, (Kind.WEIGHT_GRAD,), whole=Kind.WEIGHT_GRAD),
    Rule(("stuck_weights",), stuck_weights, (Kind.WEIGHT,), whole=Kind.WEIGHT),
)

#: What each rule looks for, in words.
ABOUT = {
    "not_finite": "NaN and Inf in any tensor",
    "loss_not_finite": "a loss that is NaN or infinite",
    "loss_growing": "a loss that grows",
    "exploding_gradients": "gradients that grow over time, or from layer to layer",
    "gradient_spike": "single steps with far larger gradients",
    "vanishing_gradients": "gradients that shrink from layer to layer",
    "zero_gradients": "parameters whose gradient is always 0",
    "update_too_large": "steps too large for their weights",
    "update_too_small": "steps too small to change their weights",
    "stuck_weights": "weights that never change",
    "dead_units": "outputs that are 0 or constant, and layers most of whose units get no gradient",
    "skipped_updates": "updates that are skipped again and again",
}

#: Signs of one divergence: whichever came first is the cause; of several in one step, the first in this list.
DIVERGING = (
    "update_too_large",
    "gradient_spike",
    "exploding_gradients",
    "loss_growing",
    "not_finite",
    "loss_not_finite",
    "skipped_updates",
)
#: Signs of nothing being learned somewhere: each can bring about those after it.
IDLE = ("dead_units", "vanishing_gradients", "zero_gradients", "update_too_small")
LEADS_TO = {
    **{rule: {*DIVERGING, "dead_units", "zero_gradients"} for rule in DIVERGING},
    **{rule: set(IDLE[at + 1 :]) for at, rule in enumerate(IDLE)},
}
LEADS_TO["skipped_updates"] |= {"stuck_weights"}
AFTER_SPIKE = 20  # steps: what comes later than that has another cause
ORDER = {rule: at for at, rule in enumerate((*DIVERGING, *IDLE, "stuck_weights"))}
GRAVITY = {severity: at for at, severity in enumerate(Severity)}


def check(folder: Path) -> Diagnosis:
    """What the rules find in a run, finished or still being written."""
    recording = RunEvidence(folder)
    checked: set[str] = set()
    lacking: dict[str, str] = {}
    findings = _applied(FINITE, recording, checked, lacking)
    recording.until = min((finding.step for finding in findings if finding.severity is Severity.ERROR), default=None)
    findings += _applied(OTHERS, recording, checked, lacking)
    not_checked = tuple(NotChecked(name, reason) for name, reason in lacking.items())
    sites = {site for finding in findings for site in (finding.site, *(each.site for each in finding.evidence))}
    classes = {site: name for site in sorted(sites) if (name := recording.class_of(site))}
    last_step, problems = recording.reader.last_step, tuple(recording.reader.problems())
    return Diagnosis(by_cause(findings), not_checked, len(checked), last_step, classes, problems)


def _applied(
    rules: Iterable[Rule], recording: RunEvidence, checked: set[str], lacking: dict[str, str]
) -> list[Finding]:
    """What the rules find; adds to the names that were checked, and to those that were not, or not on everything."""
    findings: list[Finding] = []
    for rule in rules:
        reason = rule.lacks(recording)
        if reason is None:
            findings += rule.find(recording)
            checked.update(rule.names)
            for name in rule.names:  # what another rule of the name lacked is reported under its other names
                lacking.pop(name, None)
            reason = rule.left_alone(recording)
        if reason is not None:
            lacking.update(dict.fromkeys(rule.names, reason))
    return findings


def by_cause(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Causes by step, the graver first of those that began together; each with what it may have brought about."""
    causes: list[Finding] = []
    for finding in sorted(findings, key=lambda each: (each.step, ORDER[each.rule])):
        at = next((i for i, cause in enumerate(causes) if _may_cause(cause, finding)), None)
        if at is None:
            causes.append(finding)
        else:
            causes[at] = replace(causes[at], consequences=(*causes[at].consequences, finding))
    return tuple(sorted(causes, key=lambda each: (each.step, GRAVITY[each.severity])))


def _may_cause(cause: Finding, finding: Finding) -> bool:
    if cause.rule == "gradient_spike" and finding.step > cause.step + AFTER_SPIKE:
        return False
    return finding.rule in LEADS_TO.get(cause.rule, ())
