"""A diagnosis as a table and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from layerscope.diagnose.finding import Diagnosis, Finding

_EVIDENCE = pa.list_(
    pa.struct(
        {"site": pa.string(), "kind": pa.string(), "step": pa.int64(), "stat": pa.string(), "value": pa.float64()}
    )
)
_TEXTS = ("rule", "severity", "site", "kind", "title", "why", "advice")
SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        **{name: pa.string() for name in _TEXTS[:4]},
        "cause": pa.string(),
        **{name: pa.string() for name in _TEXTS[4:]},
        "evidence": _EVIDENCE,
    }
)


def findings_table(diagnosis: Diagnosis) -> pa.Table:
    """One row for each finding; `cause` is the rule of the finding above that brought it about, null of a cause."""
    rows = []
    for cause in diagnosis.findings:
        rows.append(_row(cause, None))
        rows += [_row(found, cause.rule) for found in cause.consequences]
    return pa.Table.from_pylist(rows, SCHEMA)


def _row(found: Finding, cause: str | None) -> dict[str, object]:
    plain = asdict(found)
    return {**plain, "severity": found.severity.value, "cause": cause, "evidence": list(plain["evidence"])}


def as_json(diagnoses: dict[str, Diagnosis]) -> str:
    """A list with one object for each run: findings with their consequences, and what was not checked."""
    return json.dumps(
        [{"run": run, "verdict": found.verdict, **_plain(asdict(found))} for run, found in diagnoses.items()], indent=2
    )


def _plain(value: Any) -> Any:  # Any: whatever JSON can hold
    """The same without NaN and Inf, which JSON does not have: they become text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
