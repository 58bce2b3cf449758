"""A check of a run; a large one in a process of its own, so that the server's memory stays small."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from layerscope.diagnose.check import check
from layerscope.diagnose.finding import Diagnosis, Evidence, Finding, NotChecked, Severity
from layerscope.errors import StoreError
from layerscope.server.aside import run_aside
from layerscope.store.reader import Reader

LARGE = 200_000  # rows of moments: below it, starting a process takes longer than the check


def checked(run: Path) -> Diagnosis:
    """What is wrong with a run, wherever that is found out."""
    rows = sum(piece.rows for piece in Reader(run).moment_pieces(None))
    return check(run) if rows < LARGE else checked_in_another_process(run)


def checked_in_another_process(run: Path) -> Diagnosis:
    """The same, without taking memory or time from the server; the error says what the other process said."""
    command = [sys.executable, "-m", "layerscope.cli", "check", "--json", str(run)]
    done = run_aside(command)
    try:
        (found,) = json.loads(done.stdout)
    except ValueError:
        raise StoreError(done.stderr.strip() or f"The check ended with exit code {done.returncode}.") from None
    return Diagnosis(
        findings=tuple(map(_finding, found["findings"])),
        not_checked=tuple(NotChecked(**each) for each in found["not_checked"]),
        checked=found["checked"],
        last_step=found["last_step"],
        classes=found["classes"],
        problems=tuple(found["problems"]),
    )


def _finding(plain: dict[str, Any]) -> Finding:  # Any: whatever JSON holds
    evidence = [Evidence(**{**each, "value": float(each["value"])}) for each in plain["evidence"]]
    return Finding(
        **{
            **plain,
            "severity": Severity(plain["severity"]),
            "evidence": tuple(evidence),
            "consequences": tuple(map(_finding, plain["consequences"])),
        }
    )
