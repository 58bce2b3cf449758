"""`layerscope check`: what is wrong with a training, since when, why, and what to do."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from layerscope.cli.each import SOUND, TROUBLE, each_run
from layerscope.cli.output import complain, console
from layerscope.diagnose.check import check
from layerscope.diagnose.finding import Diagnosis, Finding, Severity
from layerscope.diagnose.tables import as_json
from layerscope.errors import LayerscopeError

BROKEN = 1  # exit code: a finding is an error
COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def check_runs(options: argparse.Namespace) -> int:
    """Say of every run what is wrong with it; the exit code is 1 if one has an error, 2 if something cannot be read."""
    found: dict[str, Diagnosis] = {}

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        found[str(path)] = diagnosis = check(path)
        if not options.json:
            _tell(path, diagnosis)
        for problem in diagnosis.problems:
            complain(problem if str(path) in problem else f"{path}: {problem}")

    code = max(_each(path, one) for path in options.runs)
    if options.json:
        console().print(as_json(found), markup=False)
    broken = any(diagnosis.count(Severity.ERROR) for diagnosis in found.values())
    if any(diagnosis.problems for diagnosis in found.values()):
        code = TROUBLE
    return code if code != SOUND else BROKEN if broken else SOUND


def _each(path: Path, one: Callable[[Path, bool], None]) -> int:
    try:
        return each_run(path, one)
    except LayerscopeError as error:  # the others are checked all the same
        complain(error)
        return TROUBLE


def _tell(path: Path, diagnosis: Diagnosis) -> None:
    out = console()
    worst = next((severity for severity in Severity if diagnosis.count(severity)), None)
    out.print(Text.assemble((str(path), "bold"), ": ", (diagnosis.verdict, COLOURS[worst] if worst else "green")))
    for cause in diagnosis.findings:
        _tell_finding(cause)
        for found in cause.consequences:
            step = f"step {found.step}: {found.title}"
            _paragraph("    then ", f"{step}. {found.why}", COLOURS[found.severity])
    reasons: dict[str, list[str]] = {}
    for missing in diagnosis.not_checked:
        reasons.setdefault(missing.reason, []).append(missing.rule)
    for reason, rules in reasons.items():
        _paragraph("  not checked: ", f"{', '.join(rules)}: {reason}", "dim")


def _tell_finding(found: Finding) -> None:
    console().print(
        Text.assemble(
            "  ", (found.severity.value, COLOURS[found.severity]), f", step {found.step}: ", (found.title, "bold")
        )
    )
    _paragraph("    why: ", found.why)
    _paragraph("    do:  ", found.advice)


def _paragraph(head: str, text: str, style: str = "") -> None:
    """Text below its head; what is piped is one line."""
    out = console()
    if out.is_terminal:
        wide = max(out.width, len(head) + 20)
        text = textwrap.fill(text, wide, initial_indent=head, subsequent_indent=" " * len(head))[len(head) :]
    out.print(Text.assemble((head, "dim"), (text, style)))
