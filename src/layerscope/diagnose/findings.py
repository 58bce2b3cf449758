"""The records of a diagnosis, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa


def figure(number: float, digits: int = 3) -> str:
    """A number in a sentence: 0.0871, 7.36e6, 4.51e-10."""
    mantissa, e, exponent = f"{number:.{digits}g}".partition("e")
    return f"{mantissa}{e}{int(exponent)}" if e else mantissa


class Severity(str, Enum):
    """How sure a rule is that the training is broken."""

    ERROR = "error"  # it is: the training does not do what it was started for
    WARNING = "warning"  # it looks so, but a sound training can look so too
    NOTE = "note"  # worth knowing, often intended


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that a finding rests on."""

    site: str
    kind: str
    step: int
    stat: str
    value: float
    context: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a rule detected: where, since when, why, what to do, and its consequences."""

    rule: str
    severity: Severity
    site: str  # the one to look at first; "" where the finding is about the training as a whole
    kind: str
    step: int  # the first recorded step at which it was so
    title: str
    why: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Finding, ...] = ()
    context: str = ""  # of the site's forwards


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A rule that could not be applied, and what it lacked."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What all rules found in a run: causes by step, each with its consequences; and what could not be checked."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    checked: int  # how many rules were applied
    last_step: int | None  # of what was recorded by then
    classes: Mapping[str, str] = field(default_factory=dict)  # of the modules that the sites above are of, where known
    problems: tuple[str, ...] = ()  # what of the run could not be read

    def all_findings(self) -> list[Finding]:
        """Causes and consequences, each cause before its own."""
        return [finding for cause in self.findings for finding in (cause, *cause.consequences)]

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.checked:
            return "not checked: too little is recorded"
        counts = [(severity.value, self.count(severity)) for severity in Severity]
        counted = ", ".join(f"{number} {name}{'s' if number > 1 else ''}" for name, number in counts if number)
        return f"{counted or 'healthy'} ({self.checked} rules, up to step {self.last_step})"

    def count(self, severity: Severity) -> int:
        """How many findings, consequences included, have the severity."""
        return sum(finding.severity is severity for finding in self.all_findings())


_EVIDENCE = {"site": pa.string(), "kind": pa.string(), "step": pa.int64(), "stat": pa.string(), "value": pa.float64()}
_TEXTS = ("rule", "severity", "site", "kind", "title", "why", "advice")
SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        **{name: pa.string() for name in _TEXTS[:4]},
        "cause": pa.string(),
        **{name: pa.string() for name in _TEXTS[4:]},
        "evidence": pa.list_(pa.struct(_EVIDENCE)),
    }
)


def findings_table(diagnosis: Diagnosis) -> pa.Table:
    """One row for each finding; `cause` is the rule of the finding that caused it, null for a cause."""
    rows = []
    for cause in diagnosis.findings:
        rows.append(_row(cause, None))
        rows += [_row(finding, cause.rule) for finding in cause.consequences]
    return pa.Table.from_pylist(rows, SCHEMA)


def _row(finding: Finding, cause: str | None) -> dict[str, object]:
    plain = asdict(finding)
    return {**plain, "severity": finding.severity.value, "cause": cause, "evidence": list(plain["evidence"])}


def as_json(diagnoses: dict[str, Diagnosis]) -> str:
    """A list with one object for each run: findings with their consequences, and what was not checked."""
    return json.dumps(
        [
            {"run": run, "verdict": diagnosis.verdict, **_plain(asdict(diagnosis))}
            for run, diagnosis in diagnoses.items()
        ],
        indent=2,
    )


def _plain(value: Any) -> Any:  # Any: whatever JSON can hold
    """The same with NaN and Inf as text, since JSON has neither."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
