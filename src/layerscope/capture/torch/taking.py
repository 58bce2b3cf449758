"""Reading a named tensor: its summary, the statistics of its samples and its values, in one look where that can be."""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from layerscope.capture.named import ALL, SAMPLES, STATISTICS, Depth, Entry
from layerscope.capture.torch.intake import Intake
from layerscope.capture.torch.taken import Take, copied, kept_size
from layerscope.records import Kind
from layerscope.stats.formats import WORDS
from layerscope.stats.kernel import COMPILED
from layerscope.stats.rows import RowArena
from layerscope.stats.torch import (
    dtype_name,
    in_place,
    is_oversized,
    largest_singular_value,
    sample_statistics,
    threads_for,
)

_ALIGNED, _MOST_EXPECTED = 16, 1 << 20  # bytes
_MOST_PLANS = 4096


class Plan(NamedTuple):
    """What is read at once of tensors of one form, type and depth."""

    batch: int  # samples whose statistics are made
    held: int  # samples whose values are copied
    shape: tuple[int, ...]  # of the copy
    dtype: np.dtype[Any] | None  # None: nothing is copied
    size: int  # bytes of the copy
    counted: int  # the same as they are kept


class Taker:
    """Takes tensors in, as deep as is asked for; `start_over` with each step."""

    def __init__(self, intake: Intake, depth: Depth, *, holds: bool) -> None:
        self.rows = RowArena()
        self._intake = intake
        self._depth = depth
        self._holds = holds  # all samples until the step ends, for some may be chosen then
        self._lock = threading.RLock()  # forward hooks may run in several threads
        self._plans: dict[tuple[object, ...], Plan | None] = {}  # None: it takes several looks
        self._expected = self._copied = 0  # bytes of the next step's copies, if it is like the last; of this one's
        self.start_over()

    def start_over(self) -> None:
        """Forget the step."""
        self.rows.start_over()
        self.bytes = 0  # of values that are held
        self.too_large: dict[str, None] = {}  # names of which less is kept than was asked for
        self._values: set[int] = set()  # rows of what was named
        self._expected = min(self._copied, _MOST_EXPECTED) or self._expected
        self._memory = np.empty(0, np.uint8)  # for copies, which belong to the step's records
        self._at = self._used = self._copied = 0

    def take(self, entry: Entry, tensor: Tensor, *, is_value: bool) -> Take | None:
        """What was read of a tensor; None if it cannot be."""
        place = in_place(tensor)
        with self._lock:
            row = self._intake.known(tensor)
            if row is not None and is_value and row in self._values:
                # It may be written through an array of numpy's, which leaves no trace.
                self._intake.forget(tensor)
                row = None
            plan = None if place is None or row is not None else self._plan(entry, tensor, place, is_value=is_value)
            if plan is None or place is None or self.bytes + plan.counted > self._depth.bytes_per_step:
                take = self._slowly(entry, tensor, is_value=is_value)
            else:
                take = self._at_once(Take(entry, WORDS[place[2] & 255], is_value=is_value), tensor, place, plan)
            if is_value and take is not None:
                self._values.add(take.row)
        return take

    def _at_once(self, take: Take, tensor: Tensor, place: list[int], plan: Plan) -> Take:
        """Read a tensor that lies in one piece."""
        batch, take.held, shape, dtype, size, counted = plan
        offset = self._room(size) if size else 0
        numbers_at = over_at = 0
        if batch:
            take.first, take.batch, numbers_at, over_at = self.rows.reserve(batch)
        beside = (batch, numbers_at, over_at, self._at + offset, size)
        take.row = self._intake.collector.arena.take(place, threads_for(place[1]), *beside)
        self._intake.note(tensor, take.row)
        if dtype is not None:
            take.array = np.ndarray(shape, dtype, self._memory, offset)
            self.bytes += counted
        return take

    def _plan(self, entry: Entry, tensor: Tensor, place: list[int], *, is_value: bool) -> Plan | None:
        key = (entry.shape, entry.batch_dim, entry.level, place[1], place[2], is_value)
        try:
            return self._plans[key]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._planned(entry, tensor, place, is_value=is_value)
            return plan

    def _planned(self, entry: Entry, tensor: Tensor, place: list[int], *, is_value: bool) -> Plan | None:
        (_, count, number), batch = place, entry.batch
        several_looks = (
            not COMPILED
            or entry.batch_dim  # the samples do not lie one behind the other
            or count == 0
            or count != math.prod(entry.shape)
            or number & 255 >= len(WORDS)
            or not self._intake.reads_all(count)
            or _is_matrix(entry, tensor)
        )
        if several_looks:
            return None
        if entry.level < SAMPLES:
            return Plan(batch, 0, (), None, 0, 0)
        kept_alone = self._holds and (not batch or entry.level == ALL)  # while of others some samples are let go
        if kept_alone or WORDS[number & 255] == "bfloat16":  # which numpy lacks
            return None
        dtype = np.dtype(WORDS[number & 255])
        held = self._wanted(entry, entry.level)
        shape = (held, *entry.shape[1:]) if batch else entry.shape
        elements, size = math.prod(shape), kept_size(tensor, is_value=is_value)
        return Plan(batch, held, shape, dtype, elements * dtype.itemsize, elements * size)

    def _slowly(self, entry: Entry, tensor: Tensor, *, is_value: bool) -> Take | None:
        """Read a tensor of any kind."""
        row = self._intake.read(tensor, entry.name, Kind.TENSOR if is_value else Kind.TENSOR_GRAD)
        if row is None:
            return None
        take = Take(entry, dtype_name(tensor), is_value=is_value)
        take.row = row
        if is_oversized(tensor):
            what = f"Samples and values of {entry.name!r}"
            self._intake.tell_once(what, f"{what} are not recorded: it is a view too large to copy.")
            return take
        if entry.batch:
            assert entry.batch_dim is not None
            take.first, take.batch = sample_statistics(self.rows, tensor, entry.batch_dim)
        elif _is_matrix(entry, tensor):
            take.singular = largest_singular_value(tensor)
        if take.level >= SAMPLES:
            self._hold(take, tensor)
        return take

    def _wanted(self, entry: Entry, level: int) -> int:
        """How many samples are to be held."""
        return entry.batch if level == ALL or self._holds else min(self._depth.samples, entry.batch)

    def _hold(self, take: Take, tensor: Tensor) -> None:
        """Copy as many values as are asked for and fit."""
        entry, depth = take.entry, self._depth
        wanted, few = self._wanted(entry, take.level), min(depth.samples, entry.batch)
        whole = tensor.numel() * kept_size(tensor, is_value=take.is_value)
        for samples in (wanted, few) if wanted > few else (wanted,):
            size = samples * (whole // entry.batch) if entry.batch else whole
            if self.bytes + size <= depth.bytes_per_step:
                take.array, take.held = copied(tensor, entry, samples), samples
                self.bytes += size
                break
        if take.array is None or (take.level == ALL and take.held < entry.batch):
            self.too_large[entry.name] = None
            take.level = STATISTICS if take.array is None else SAMPLES

    def _room(self, size: int) -> int:
        """Where a copy of so many bytes has room in the memory."""
        taken = (size + _ALIGNED - 1) & -_ALIGNED
        if self._used + taken > len(self._memory):
            self._memory, self._used = np.empty(max(taken, self._expected), np.uint8), 0
            self._at = self._memory.ctypes.data
        offset = self._used
        self._used += taken
        self._copied += taken
        return offset


def _is_matrix(entry: Entry, tensor: Tensor) -> bool:
    """Whether the tensor has a largest singular value."""
    return entry.batch_dim is None and len(entry.shape) == 2 and tensor.dtype.is_floating_point
