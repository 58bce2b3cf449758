"""What is wrong with each run: found in the background, once for each state of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.diagnose.findings import Diagnosis, Finding, Severity
from layerscope.diagnose.rules import ABOUT
from layerscope.errors import LayerscopeError
from layerscope.model.records import Floats
from layerscope.server.background import checked

log = logging.getLogger(__name__)
REST = 10.0  # a run that grows is looked at again after this many times what the last look took
LEAST_REST_S = 5.0


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """How many findings of each severity a run has."""

    errors: int
    warnings: int
    notes: int
    checked: int  # rules that were applied


@dataclass(frozen=True, slots=True)
class EvidenceEntry:
    """Where a number was found that a finding rests on."""

    site: str
    class_name: str  # of the site's module, "" where it is not known
    kind: str
    context: str  # "" for none
    step: int
    stat: str


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """Something a rule found: what, where, since when, why, and what to do."""

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


@dataclass(slots=True)
class _Known:
    revision: object
    diagnosis: Diagnosis | None  # None where it failed
    again: float  # not to be looked at before that time


class Diagnoses:
    """Diagnoses of runs by their folder. `known` and `counts` never wait; `of` does."""

    def __init__(self) -> None:
        self._background = ThreadPoolExecutor(1, "layerscope-check")
        self._known: dict[Path, _Known] = {}
        self._queued: set[Path] = set()
        self._lock = threading.Lock()
        self._one = threading.Lock()  # two checks at once would only slow each other down

    def close(self) -> None:
        """Start no further check."""
        self._background.shutdown(wait=False, cancel_futures=True)

    def known(self, path: Path) -> FindingCounts | None:
        """The numbers as far as they are known."""
        with self._lock:
            known = self._known.get(path)
        return None if known is None or known.diagnosis is None else counts_of(known.diagnosis)

    def counts(self, path: Path, revision: object) -> FindingCounts | None:
        """The same; a run that is new or has grown is checked soon."""
        with self._lock:
            known = self._known.get(path)
            stale = known is None or (known.revision != revision and time.monotonic() >= known.again)
            if stale and path not in self._queued:
                self._queued.add(path)
                self._background.submit(self._in_background, path, revision)
        return self.known(path)

    def of(self, path: Path, revision: object) -> Diagnosis:
        """The diagnosis of a run, at most a few seconds old while it grows."""
        with self._one:
            known = self._known.get(path)
            fresh = known is not None and (known.revision == revision or time.monotonic() < known.again)
            if fresh and known is not None and known.diagnosis is not None:
                return known.diagnosis
            began = time.monotonic()
            diagnosis = None
            try:
                diagnosis = checked(path)
            finally:
                now = time.monotonic()
                with self._lock:
                    self._known[path] = _Known(revision, diagnosis, now + max(LEAST_REST_S, REST * (now - began)))
            return diagnosis

    def _in_background(self, path: Path, revision: object) -> None:
        try:
            self.of(path, revision)
        except (LayerscopeError, OSError) as error:
            log.warning("Checking %s failed: %s", path, error)
        finally:
            with self._lock:
                self._queued.discard(path)


def routes(
    asked_path: Callable[[str], tuple[Path, object]], diagnoses: Diagnoses, send: Callable[[object], Response]
) -> list[Route]:
    """The routes of the findings; `asked_path` gives the folder and revision of a run, without holding its lock."""

    def findings(request: Request) -> Response:
        name = request.path_params["name"]
        return send(findings_view(name, diagnoses.of(*asked_path(name))))

    return [Route("/api/run/{name:path}/findings", findings)]


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
        entries += [_entry(found, diagnosis.classes, consequence=True) for found in cause.consequences]
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


def _entry(found: Finding, classes: Mapping[str, str], *, consequence: bool) -> FindingEntry:
    return FindingEntry(
        rule=found.rule,
        severity=found.severity.value,
        site=found.site,
        class_name=classes.get(found.site, ""),
        kind=found.kind,
        context=found.context,
        step=found.step,
        title=found.title,
        why=found.why,
        advice=found.advice,
        consequence=consequence,
        evidence=tuple(
            EvidenceEntry(each.site, classes.get(each.site, ""), each.kind, each.context, each.step, each.stat)
            for each in found.evidence
        ),
        numbers=np.array([each.value for each in found.evidence], np.float64),
    )
