"""What is wrong with a run, as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from layerscope.diagnose.findings import Diagnosis, Finding, Severity
from layerscope.diagnose.rules import ABOUT
from layerscope.model.records import Floats


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """How many findings of each severity a run has."""

    errors: int
    warnings: int
    notes: int
    checked: int  # rules that were applied


@dataclass(frozen=True, slots=True)
class EvidenceEntry:
    """Where a number was recorded that a finding rests on."""

    site: str
    class_name: str  # of the site's module, "" where it is not known
    kind: str
    context: str  # "" for none
    step: int
    stat: str


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """One finding of a rule: what, where, since when, why, and what to do."""

    rule: str
    severity: str
    site: str
    class_name: str  # of the site's module, "" where it is not known
    kind: str
    context: str  # "" for none
    step: int
    title: str
    why: str
    advice: str
    consequence: bool  # of the finding above that is none
    evidence: tuple[EvidenceEntry, ...]
    numbers: Floats  # one for each piece of evidence


@dataclass(frozen=True, slots=True)
class NotCheckedEntry:
    """A rule that could not be applied, and what it lacked."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class FindingsView:
    """What is wrong with a run, causes before consequences."""

    run: str
    verdict: str
    counts: FindingCounts
    checked: int
    last_step: int | None
    findings: tuple[FindingEntry, ...]
    looked_for: tuple[str, ...]  # by the rules that were applied to everything
    not_checked: tuple[NotCheckedEntry, ...]


def counts_of(diagnosis: Diagnosis) -> FindingCounts:
    """How many findings of each severity there are."""
    errors, warnings, notes = (diagnosis.count(severity) for severity in Severity)
    return FindingCounts(errors, warnings, notes, diagnosis.checked)


def findings_view(name: str, diagnosis: Diagnosis) -> FindingsView:
    """A diagnosis as the page shows it."""
    entries = []
    lacking = {each.rule for each in diagnosis.not_checked}
    for cause in diagnosis.findings:
        entries.append(_entry(cause, diagnosis.classes, consequence=False))
        entries += [_entry(finding, diagnosis.classes, consequence=True) for finding in cause.consequences]
    return FindingsView(
        run=name,
        verdict=diagnosis.verdict,
        counts=counts_of(diagnosis),
        checked=diagnosis.checked,
        last_step=diagnosis.last_step,
        findings=tuple(entries),
        looked_for=tuple(about for rule, about in ABOUT.items() if rule not in lacking),
        not_checked=tuple(NotCheckedEntry(each.rule, each.reason) for each in diagnosis.not_checked),
    )


def _entry(finding: Finding, classes: Mapping[str, str], *, consequence: bool) -> FindingEntry:
    return FindingEntry(
        rule=finding.rule,
        severity=finding.severity.value,
        site=finding.site,
        class_name=classes.get(finding.site, ""),
        kind=finding.kind,
        context=finding.context,
        step=finding.step,
        title=finding.title,
        why=finding.why,
        advice=finding.advice,
        consequence=consequence,
        evidence=tuple(
            EvidenceEntry(each.site, classes.get(each.site, ""), each.kind, each.context, each.step, each.stat)
            for each in finding.evidence
        ),
        numbers=np.array([each.value for each in finding.evidence], np.float64),
    )
