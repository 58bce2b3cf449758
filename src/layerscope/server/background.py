"""Background work of the server: subprocesses, work for idle moments, and settings that keep its memory low."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from layerscope.diagnose.findings import Diagnosis, Evidence, Finding, NotChecked, Severity
from layerscope.diagnose.rules import check
from layerscope.errors import LayerscopeError, StoreError
from layerscope.store.compaction import needs_compaction
from layerscope.store.reader import Reader
from layerscope.views.findings import FindingCounts, counts_of

GIVES_WAY = 19  # priority of a process: the lowest
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)


def run_in_process(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What a command said that gave way to the server and a browser: both have much to do when a page is opened."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="backslashreplace"
    ) as process:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, process.pid, GIVES_WAY)
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def compact_in_process(run: Path) -> None:
    """Compact a run without taking memory or time from the server; the error says what the other process said."""
    if not needs_compaction(run):
        return  # starting a process for each of thousands of runs takes minutes
    done = run_in_process([sys.executable, "-m", "layerscope.cli", "compact", str(run)])
    # Ctrl-C in a terminal reaches the other process too: nothing is lost, and there is nothing to tell.
    if done.returncode not in (0, *INTERRUPTED):
        raise StoreError(done.stderr.strip().removeprefix("layerscope: ") or f"exit code {done.returncode}")


LARGE = 200_000  # rows of moments: below it, starting a process takes longer than the check


def checked(run: Path) -> Diagnosis:
    """The diagnosis of a run; a large one is checked in another process."""
    rows = sum(piece.rows for piece in Reader(run).moment_pieces(None))
    return check(run) if rows < LARGE else checked_in_another_process(run)


def checked_in_another_process(run: Path) -> Diagnosis:
    """The same, without taking memory or time from the server; the error says what the other process said."""
    command = [sys.executable, "-m", "layerscope.cli", "check", "--json", str(run)]
    done = run_in_process(command)
    try:
        (plain,) = json.loads(done.stdout)
    except ValueError:
        raise StoreError(done.stderr.strip() or f"The check ended with exit code {done.returncode}.") from None
    return Diagnosis(
        findings=tuple(map(_finding, plain["findings"])),
        not_checked=tuple(NotChecked(**each) for each in plain["not_checked"]),
        checked=plain["checked"],
        last_step=plain["last_step"],
        classes=plain["classes"],
        problems=tuple(plain["problems"]),
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


log = logging.getLogger(__name__)
REST = 10.0  # a run that grows is checked again after this many times what the last check took
LEAST_REST_S = 5.0


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


IDLE_S = 0.6


class IdleWorker:
    """Does work in a thread of its own once nothing has been asked for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], object]] = {}
        self._last_request_s = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def later(self, name: str, work: Callable[[], object]) -> None:
        """Do some work when no request has come for a while. Of several under one name, the last one is done."""
        with self._changed:
            self._last_request_s = time.monotonic()
            self._waiting[name] = work
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="layerscope-idle", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Do nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception as error:  # a border: nobody waits for it, and the next work has nothing to do with it
                is_ending = self._closed or "shutdown" in str(error)  # what pools of threads say when the process ends
                if not is_ending:
                    log.exception("Work that was to be done ahead failed. What it was for will take longer.")

    def _next(self) -> Callable[[], object] | None:
        """The first work that waits, when the server is idle; None when it closes."""
        with self._changed:
            while not self._closed:
                rest = self._last_request_s + IDLE_S - time.monotonic()
                if self._waiting and rest <= 0:
                    return self._waiting.pop(next(iter(self._waiting)))
                self._changed.wait(rest if self._waiting else None)
            return None


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8  # numbers of mallopt
_LARGE = 1 << 23  # larger allocations are mapped separately and unmapped when freed, which costs time per page
_KEPT = 1 << 26  # bytes of smaller allocations kept between requests: new pages cost time


def give_memory_back() -> None:
    """Allocator settings that keep the server's memory low: memory of a large answer is released after it is sent.

    By default the C library keeps freed memory per thread: hundreds of megabytes after a few heat maps.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's default pool keeps even more
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        for option, value in ((_ARENAS, 2), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT)):
            library.mallopt(option, value)


def tidy() -> None:
    """Release free memory to the system, if `give_memory_back` configured this process."""
    given_back = pa.default_memory_pool().backend_name == "system"
    if given_back and sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


class _NoPandas:
    """Says to `import` that there is no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Nothing, or the error of a module that is not installed."""
        if name == "pandas":
            raise ModuleNotFoundError(f"A process that serves the page has no {name}.", name=name)


def leave_pandas_out() -> None:
    """Spare the 33 MB of pandas, which Arrow loads for the first array it meets, where there is one."""
    sys.meta_path.insert(0, _NoPandas())
