"""One number over the steps, cut to the screen so that no spike is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerscope.records import Floats, Ints
from layerscope.viz.screen import Screen, columns


@dataclass(frozen=True, slots=True)
class ScalarView:
    """A statistic or KPI over the steps: lowest, highest and last value of each column of the screen.

    When `thinned` is false every column is one step and the three are the same number.
    """

    name: str
    thinned: bool
    points: int  # values behind the columns
    first_steps: Ints
    last_steps: Ints
    low: Floats  # NaN where a column has no finite value
    high: Floats
    last: Floats  # as it is, NaN and infinite values too
    not_finite: Ints  # NaN or infinite values in each column


def kpis_in_order(columns: list[str]) -> list[str]:
    """Names of the KPIs in a table of them, losses first: they are what a training is judged by.

    >>> kpis_in_order(["step", "time_s", "accuracy", "loss"])
    ['loss', 'accuracy']
    """
    names = [name for name in columns if name not in ("step", "time_s")]
    return sorted(names, key=lambda name: "loss" not in name.lower())


def scalar_view(name: str, steps: Ints, values: Floats, screen: Screen) -> ScalarView:
    """The values as a view; steps ascend."""
    shown = screen.shows(steps)
    steps, values = steps[shown], values[shown]
    grouped = columns(steps, screen.width)
    bad = ~np.isfinite(values)
    finite = np.where(bad, np.nan, values)
    ends = np.append(grouped.starts[1:], len(steps)) - 1
    if len(steps) == 0:
        low = high = last = finite
        not_finite = np.zeros(0, np.int64)
    else:
        low, high = np.fmin.reduceat(finite, grouped.starts), np.fmax.reduceat(finite, grouped.starts)
        last = values[ends]
        not_finite = np.add.reduceat(bad.astype(np.int64), grouped.starts)
    return ScalarView(
        name=name,
        thinned=len(grouped) < len(steps),
        points=len(steps),
        first_steps=grouped.first_steps,
        last_steps=grouped.last_steps,
        low=low,
        high=high,
        last=last,
        not_finite=not_finite,
    )
