"""Metrics of the training loop: their names are checked, their values become floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat

from layerscope.errors import ArgumentError

COLUMNS = ("step", "time_s", "type")  # of every table of metrics


class MetricReader:
    """Checks the names of metrics, which SQL compares without case, and turns their values into floats."""

    def __init__(self) -> None:
        self._names: set[str] = set()  # that were checked
        self._spelling: dict[str, str] = {}  # by their names in lower case

    def read(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """The metrics as floats."""
        if not metrics.keys() <= self._names:
            for name in metrics:
                self._check(name)
        return {name: _number(name, value) for name, value in metrics.items()}

    def _check(self, name: str) -> None:
        if name in COLUMNS:
            raise ArgumentError(
                f"A metric cannot be called {name!r}: every table of metrics has a column of that name. Rename it."
            )
        first = self._spelling.setdefault(name.lower(), name)
        if first != name:
            raise ArgumentError(
                f"The metrics {first!r} and {name!r} differ only in case, which SQL ignores. Rename one of them."
            )
        self._names.add(name)


def _number(name: str, value: SupportsFloat) -> float:
    # A tensor that requires grad warns when it is turned into a number, but not when it is asked for its item.
    item = getattr(value, "item", None)
    try:
        return float(value if item is None else item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"Metric {name!r} is not one number but {type(value).__name__} ({error}). Give a float."
        ) from error
