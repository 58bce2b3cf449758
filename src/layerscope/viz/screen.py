"""How many rows of a run fall into one column of the screen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerscope.query.rows import at_or_before
from layerscope.records import Floats, Ints

JOINED_GAPS = 2.0  # columns further apart than this many usual gaps do not touch: nothing was recorded between them


@dataclass(frozen=True, slots=True)
class Screen:
    """The room a view has, in pixels, and the steps it shows; `None` is the first or last step there is."""

    width: int = 800
    height: int = 96
    first: int | None = None
    last: int | None = None

    def shows(self, steps: Ints) -> slice:
        """The rows that are shown, of rows in ascending order of steps; none where no step is in sight.

        The last one before the first step in sight is among them: a cross-hair between the two reads it.
        """
        start = 0 if self.first is None else int(np.searchsorted(steps, self.first))
        stop = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, side="right"))
        if start >= stop or self.first is None:
            return slice(start, max(start, stop))
        return slice(at_or_before(steps, self.first), stop)


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows grouped to columns of the screen; a column covers `left` to `right` on the axis of steps."""

    of_row: Ints
    starts: Ints  # first row of each column
    first_steps: Ints
    last_steps: Ints
    left: Floats
    right: Floats

    def __len__(self) -> int:
        return len(self.starts)


def columns(steps: Ints, width: int) -> Columns:
    """At most `width` columns for rows in ascending order of steps; one column per step where they fit."""
    distinct = np.unique(steps)
    if len(distinct) <= width:
        place = np.searchsorted(distinct, steps)
    else:
        place = (steps - steps[0]) * width // (steps[-1] - steps[0] + 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    of_row = np.cumsum(np.diff(place, prepend=-1) > 0) - 1
    first = steps[starts]
    last = steps[np.append(starts[1:], len(steps)) - 1] if len(steps) else first
    left, right = _extents(first, last, distinct)
    return Columns(of_row, starts, first, last, left, right)


def _extents(first: Ints, last: Ints, distinct: Ints) -> tuple[Floats, Floats]:
    """Ends of the columns: half-way to the neighbor, unless that is far away."""
    usual = float(np.median(np.diff(distinct))) if len(distinct) > 1 else 1.0
    half = np.minimum(first[1:] - last[:-1], usual * JOINED_GAPS) / 2.0
    left: Floats = np.asarray(first - usual / 2.0, np.float64)
    right: Floats = np.asarray(last + usual / 2.0, np.float64)
    left[1:], right[:-1] = first[1:] - half, last[:-1] + half
    return left, right
