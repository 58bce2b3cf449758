"""Work that waits until nobody asks for anything: whoever clicks need not wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
QUIET_S = 0.6


class Quiet:
    """Does work in a thread of its own once nothing has been asked for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], object]] = {}
        self._asked_s = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def later(self, name: str, work: Callable[[], object]) -> None:
        """Something was asked for; the work is to be done in quiet. Of several under one name, the last one is."""
        with self._changed:
            self._asked_s = time.monotonic()
            self._waiting[name] = work
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="layerscope-quiet", daemon=True)
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
        """The first work that waits, when it is quiet; None when there will be none."""
        with self._changed:
            while not self._closed:
                rest = self._asked_s + QUIET_S - time.monotonic()
                if self._waiting and rest <= 0:
                    return self._waiting.pop(next(iter(self._waiting)))
                self._changed.wait(rest if self._waiting else None)
            return None
