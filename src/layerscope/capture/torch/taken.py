"""What was read of a named tensor, and the records that are made of it when the step is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerscope.capture.named import LEVELS, Entry
from layerscope.records import BATCH_STATISTICS, SINGULAR_MAX, Extras, Floats, Ids, Kind, Record, SampleStats, Value
from layerscope.stats.rows import over_batches

STATISTICS, SAMPLES, ALL = map(LEVELS.index, ("statistics", "samples", "all"))
_NO_SAMPLES = np.zeros(0, np.int32)
#: Types that numpy has none for.
_AS_FLOAT32 = frozenset(
    found
    for name in dir(torch)
    if name.startswith(("bfloat16", "float8", "float4")) and (found := getattr(torch, name))
)


class Take:
    """What was read of one tensor or gradient."""

    __slots__ = ("array", "dtype", "entry", "held", "kind", "level", "loss", "numbers", "row", "series", "singular")

    def __init__(self, entry: Entry, kind: Kind, row: int, dtype: str) -> None:
        self.entry = entry
        self.kind = kind
        self.row = row
        self.dtype = dtype
        self.loss = ""  # of a gradient
        self.series = -1
        self.level = LEVELS.index(entry.level)
        self.numbers: Floats | None = None  # statistics of every sample
        self.singular: float | None = None
        self.array: npt.NDArray[Any] | None = None  # the batch first; a copy
        self.held = 0  # samples in it, the first ones


def kept_size(tensor: Tensor, kind: Kind) -> int:
    """Bytes that are kept of each element."""
    if tensor.dtype in _AS_FLOAT32 or (tensor.dtype is torch.float16 and kind is Kind.TENSOR_GRAD):
        return 4  # such a gradient is divided by AMP's scale in float32
    return 8 if tensor.dtype is torch.complex32 else tensor.element_size()


def copied(tensor: Tensor, batch_dim: int | None, samples: int) -> npt.NDArray[Any]:  # Any: whatever the tensor holds
    """The first samples of a tensor, or all of one without a batch."""
    plain = tensor.detach()
    try:
        array = plain.numpy()
    except (TypeError, RuntimeError):  # of a type that numpy lacks, on another device, or with a sign still to change
        with torch.no_grad():
            if plain.dtype in _AS_FLOAT32 or plain.dtype is torch.complex32:
                plain = plain.to(torch.complex64 if plain.is_complex() else torch.float32)
            array = plain.resolve_conj().resolve_neg().cpu().numpy()
    if batch_dim:
        array = np.moveaxis(array, batch_dim, 0)
    return (array if batch_dim is None else array[:samples]).copy()


def divide(take: Take, scale: float | None) -> None:
    """Take AMP's scale off a gradient."""
    assert scale is not None
    if take.numbers is not None:
        take.numbers /= scale
    if take.array is not None:
        # A scale can be beyond the range of float16, and what it kept from vanishing there would vanish now.
        array = take.array.astype(np.float32) if take.array.dtype == np.float16 else take.array
        take.array = array / array.dtype.type(scale)
    if take.singular is not None:
        take.singular /= scale


class Places:
    """The chosen samples, as far as a tensor has and holds them."""

    def __init__(self, samples: tuple[int, ...]) -> None:
        self._samples = np.array(samples, np.int32)
        self._known: dict[tuple[int, int], tuple[Ids, Ids, bool]] = {}

    def of(self, batch: int, held: int) -> tuple[Ids, Ids, bool]:
        """Those whose values are held, those that are not, and whether the former are all that is held, in order."""
        found = self._known.get((batch, held))
        if found is None:
            mine = self._samples[self._samples < batch]
            there = mine[mine < held]
            found = there, mine[mine >= held], np.array_equal(there, np.arange(held))
            self._known[batch, held] = found
        return found


def deep_records(step: int, take: Take, places: Places) -> Sequence[Record]:
    """What is kept beyond the summary."""
    batch, array = take.entry.batch, take.array
    if take.entry.batch_dim is None:
        return () if array is None else (Value(step, take.series, _NO_SAMPLES, array),)
    if take.level < STATISTICS or take.numbers is None:
        return ()
    if array is not None and take.level == ALL:
        return (Value(step, take.series, np.arange(batch, dtype=np.int32), array),)
    held, rest, whole = places.of(batch, take.held)
    records: list[Record] = []
    if array is not None and len(held):
        records.append(Value(step, take.series, held, array if whole else array[held]))
    if len(rest):
        records.append(SampleStats(step, take.series, rest, take.numbers[rest]))
    return records


def batch_extras(step: int, takes: Sequence[Take]) -> Extras | None:
    """Statistics over the batch of those over each sample, and largest singular values."""
    batches = [take for take in takes if take.numbers is not None]
    matrices = [take for take in takes if take.singular is not None]
    if not batches and not matrices:
        return None
    series = np.repeat([take.series for take in batches], len(BATCH_STATISTICS)) if batches else np.zeros(0)
    numbers = over_batches([take.numbers for take in batches if take.numbers is not None]) if batches else np.zeros(0)
    return Extras(
        step,
        np.concatenate((series, [take.series for take in matrices])).astype(np.int32),
        BATCH_STATISTICS * len(batches) + (SINGULAR_MAX,) * len(matrices),
        np.append(numbers.ravel(), np.array([take.singular for take in matrices], np.float64)),
    )
