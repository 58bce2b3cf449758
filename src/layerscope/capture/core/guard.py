"""Keeps errors of the recorder out of the training, and counts the time that recording takes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ParamSpec

from layerscope.errors import LayerscopeWarning

P = ParamSpec("P")
_BEFORE_US = 4.0  # about what a hook costs before it reaches us: the framework leaves its quick path for it


class ListenerGuard:
    """Runs what a listener does. Its first failure is reported, and ends the listening."""

    def __init__(
        self,
        shield: Callable[[], AbstractContextManager[object]],
        report: Callable[[str], None],
        stop: Callable[[], None],
    ) -> None:
        self.failed = False
        self.spent_s = 0.0
        self.calls = 0  # of hooks, since the last time that was asked
        self._shield = shield  # our look at a tensor is no operation of the user's
        self._report = report
        self._stop = stop

    def run(self, listen: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless an earlier one failed."""
        if self.failed:
            return
        began = time.perf_counter()
        self.calls += 1
        try:
            with self._shield():
                listen(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  a bug of ours must not stop a training
            self._fail(error)
        finally:
            self.spent_s += time.perf_counter() - began

    def taken_s(self) -> float:
        """Seconds spent since the last time this was asked."""
        spent, self.spent_s = self.spent_s + self.calls * _BEFORE_US * 1e-6, 0.0
        self.calls = 0
        return spent

    def _fail(self, error: Exception) -> None:
        self.failed = True
        self._stop()
        text = f"layerscope stopped listening after {type(error).__name__}: {error}. The training goes on unrecorded."
        self._report(text)
        warnings.warn(text, LayerscopeWarning, stacklevel=3)
