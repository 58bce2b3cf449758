"""Statistics of each sample of a batch: the rows of a matrix in memory, by the compiled kernel or else by numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from layerscope.records import BATCH_STATISTICS, SAMPLE_STATISTICS, Floats
from layerscope.stats.formats import STORED
from layerscope.stats.kernel import read_memory

_WIDTH = len(SAMPLE_STATISTICS)
_OVER = len(BATCH_STATISTICS)
_ROOM = 64  # batches, and sixteen times as many samples


class RowArena:
    """Statistics of the samples of many tensors, and of them over each batch, until it starts over."""

    def __init__(self) -> None:
        self.numbers = np.empty((16 * _ROOM, _WIDTH))  # `SAMPLE_STATISTICS` of every sample
        self.over = np.empty((_ROOM, _OVER))  # `BATCH_STATISTICS` of every batch
        self._used = self._batches = 0
        self._aim()

    def _aim(self) -> None:
        self._numbers_at, self._over_at = self.numbers.ctypes.data, self.over.ctypes.data

    def start_over(self) -> None:
        """Forget all of them."""
        self._used = self._batches = 0

    def reserve(self, rows: int) -> tuple[int, int, int, int]:
        """Places of so many samples, which are one batch: of the first among all samples, and among the batches.

        Then the addresses of their numbers, and of the batch's.
        """
        first, batch = self._used, self._batches
        if first + rows > len(self.numbers) or batch == len(self.over):
            self.numbers = np.concatenate((self.numbers, np.empty((max(rows, len(self.numbers)), _WIDTH))))
            self.over = np.concatenate((self.over, np.empty_like(self.over)))
            self._aim()
        self._used, self._batches = first + rows, batch + 1
        return first, batch, self._numbers_at + first * 8 * _WIDTH, self._over_at + batch * 8 * _OVER

    def add(self, address: int, count: int, number: int, rows: int) -> tuple[int, int]:
        """Places of the rows of `count` elements at an address; `number` is their `format_number`.

        Formats of one byte are not read. Statistics are of the finite elements; a row without any has NaN.
        """
        first, batch, *at = self.reserve(rows)
        if count == 0:
            self.numbers[first : first + rows] = self.over[batch] = np.nan
        elif _rows is not None:
            _rows(address, count, number, rows, *at)
        else:
            values = read_memory(address, count, STORED[number & 255]).reshape(rows, -1).astype(np.float64)
            numbers = self.numbers[first : first + rows]
            numbers.T[:] = _by_numpy(values)
            self.over[batch] = _over(numbers)
        return first, batch


def _by_numpy(values: Floats) -> tuple[Floats, ...]:
    finite = np.isfinite(values)
    count = finite.sum(1)
    sizes = np.where(finite, np.abs(values), 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(finite, values, 0.0).sum(1) / count
        away = np.where(finite, values - mean[:, None], 0.0)
        deviation = np.sqrt(np.square(away).sum(1) / count)
        return mean, sizes.sum(1) / count, deviation, np.where(count > 0, sizes.max(1), np.nan)


def _over(numbers: Floats) -> Floats:
    """Mean, standard deviation and largest magnitude of every statistic over the batch."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = numbers.mean(0)
        deviation = np.sqrt(np.square(numbers - mean).mean(0))
        found: Floats = np.stack((mean, deviation, np.abs(numbers).max(0)), 1).ravel()
    return found


def _best() -> Callable[[int, int, int, int, int, int], None] | None:
    try:
        from layerscope.stats._kernel import rows
    except ImportError:  # no compiler at installation: numpy gives the same
        return None
    return rows


_rows = _best()
