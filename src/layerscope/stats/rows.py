"""Statistics of each sample of a batch: the rows of a matrix in memory, by the compiled kernel or else by numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from layerscope.records import SAMPLE_STATISTICS, Floats, Ints
from layerscope.stats.formats import STORED
from layerscope.stats.kernel import read_memory

_WIDTH = len(SAMPLE_STATISTICS)
_ROOM = 1024  # rows


class RowArena:
    """Makes statistics of rows; what it gave is never written again."""

    def __init__(self) -> None:
        self._room = np.empty((0, _WIDTH))
        self._address = self._used = 0

    def add(self, address: int, count: int, number: int, rows: int) -> Floats:
        """The `SAMPLE_STATISTICS` of each row of `count` elements at an address; `number` is their `format_number`.

        Formats of one byte are not read. They are of the finite elements; a row without any has NaN.
        """
        if self._used + rows > len(self._room):
            self._room = np.empty((max(_ROOM, rows), _WIDTH))
            self._address, self._used = self._room.ctypes.data, 0
        first, self._used = self._used, self._used + rows
        numbers = self._room[first : self._used]
        if count == 0:
            numbers[:] = np.nan
        elif _rows is not None:
            _rows(address, count, number, rows, self._address + first * 8 * _WIDTH)
        else:
            values = read_memory(address, count, STORED[number & 255]).reshape(rows, -1).astype(np.float64)
            numbers.T[:] = _by_numpy(values)
        return numbers


def _by_numpy(values: Floats) -> tuple[Floats, ...]:
    finite = np.isfinite(values)
    count = finite.sum(1)
    sizes = np.where(finite, np.abs(values), 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(finite, values, 0.0).sum(1) / count
        away = np.where(finite, values - mean[:, None], 0.0)
        deviation = np.sqrt(np.square(away).sum(1) / count)
        return mean, sizes.sum(1) / count, deviation, np.where(count > 0, sizes.max(1), np.nan)


def over_batches(numbers: list[Floats]) -> Floats:
    """Mean, standard deviation and largest magnitude of every statistic over each batch: `BATCH_STATISTICS`, by row."""
    sizes = np.array([len(batch) for batch in numbers])
    starts: Ints = np.cumsum(sizes) - sizes
    every = np.concatenate(numbers)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(every, starts) / sizes[:, None]
        away = every - np.repeat(mean, sizes, 0)
        deviation = np.sqrt(np.add.reduceat(away * away, starts) / sizes[:, None])
        largest = np.maximum.reduceat(np.abs(every), starts)
    return np.stack((mean, deviation, largest), 2).reshape(len(numbers), -1)


def _best() -> Callable[[int, int, int, int, int], None] | None:
    try:
        from layerscope.stats._kernel import rows
    except ImportError:  # no compiler at installation: numpy gives the same
        return None
    return rows


_rows = _best()
