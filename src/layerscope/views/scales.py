"""Scales of a picture: axes of values with their bins and ticks, and colors for numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import get_type_hints

import numpy as np

from layerscope.errors import SelectError
from layerscope.graph.trace_blocks import TraceBlock
from layerscope.model.records import Floats
from layerscope.model.trace_record import Operation, TraceRecord
from layerscope.stats import derived
from layerscope.views.wording import FIELDS, amounts

ROBUST = np.array([0.001, 0.999])  # the linear axis covers the values between these quantiles,
BEYOND = 0.5  # and this share of their distance on either side, but no more than there are values
NEAR = 0.25  # zero is shown when it lies within this share of the range beside the range
FARTHEST = 4e307  # far enough from what float64 holds that lengths on an axis are numbers
NEAREST = 1e-300  # far enough from zero that a hundredth of it still is one
MOST_DECADES = 8
SMALLEST_OCTAVE = -1018  # below it float64 cannot tell the parts of an octave apart
TICKS, TICKS_ACROSS = 7, 10  # on a vertical axis, and on one with room for more
PARTS = (8, 4, 2)  # of an octave
SPARSE = np.array([0.001, 0.05])  # of the smallest magnitudes: the exponent axis leaves out the first share,
TAIL = 0.5, 8  # and gives the second at most this share of the octaves of all others, or this many octaves
APART = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # octaves between two ticks


class AxisKind(str, Enum):
    """How values are laid out: by value, by value and then by magnitude, or by base-2 exponent of the magnitude."""

    LINEAR = "linear"
    SYMLOG = "symlog"
    EXPONENT = "exponent"


@dataclass(frozen=True, slots=True)
class Axis:
    """Ascending edges of bins that are drawn equally high, and the values to label."""

    edges: Floats
    ticks: Floats


def value_axis(kind: AxisKind, bits: derived.BitRows, zeros: float, bins: int, *, octaves: bool = False) -> Axis:
    """The axis that suits the buckets of all rows together; magnitudes for the exponent axis.

    `octaves`: bins of that axis are whole octaves, for pictures where the height of a bin counts.
    """
    if len(bits.row) == 0:
        return linear(-1.0, 1.0, bins)
    if kind is AxisKind.EXPONENT:
        return exponents(bits, bins, (1,) if octaves else PARTS)
    if kind is AxisKind.SYMLOG:
        return symlog(bits, bins)
    low, high = _robust(bits, zeros)
    return linear(low, high, bins)


def _robust(bits: derived.BitRows, zeros: float) -> tuple[float, float]:
    low, high = derived.pooled_quantiles(bits, zeros, ROBUST)
    least, most = min(bits.low.min(), low), max(bits.high.max(), high)  # no bucket holds zeros, which a quantile may be
    ends = np.array([least, low, high, most]).clip(-FARTHEST, FARTHEST)
    beyond = BEYOND * (ends[2] - ends[1])
    low, high = float(max(ends[1] - beyond, ends[0])), float(min(ends[2] + beyond, ends[3]))
    span = high - low
    if low > 0 and low <= NEAR * span:
        low = 0.0
    if high < 0 and -high <= NEAR * span:
        high = 0.0
    size = max(abs(low), abs(high))
    if span <= max(1e-9 * size, NEAREST):  # one value: give it room
        room = 0.1 * size if size > NEAREST else 1.0
        return low - room, high + room
    room = 0.02 * span
    return (low if low == 0 else low - room), (high if high == 0 else high + room)


def linear(low: float, high: float, bins: int) -> Axis:
    """Bins of equal width, and ticks at round numbers."""
    rough = (high - low) / TICKS
    magnitude = 10.0 ** np.floor(np.log10(rough))
    spacing = magnitude * next(factor for factor in (1, 2, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))
    first, last = np.ceil(low / spacing), np.floor(high / spacing)
    return Axis(np.linspace(low, high, bins + 1), np.arange(first, last + 1) * spacing)


def symlog(bits: derived.BitRows, bins: int) -> Axis:
    """Bins of equal width near zero and equal ratio far from it, over all values; ticks at zero and powers of ten."""
    smallest, largest = np.array([bits.low.min(), bits.high.max()]).clip(-FARTHEST, FARTHEST)
    reach = max(-smallest, largest, NEAREST)
    typical = derived.pooled_quantiles(bits, 0.0, np.array([0.05]), of_magnitudes=True)[0]
    decade = np.floor(np.log10(reach))
    knee = 10.0 ** np.clip(np.floor(np.log10(typical)), decade - MOST_DECADES, decade)
    largest = largest if reach > NEAREST else NEAREST
    ends = np.arcsinh(np.array([min(smallest, 0.0), max(largest, 0.0)]) / knee)
    ends += np.array([-0.02, 0.02]) * (ends[1] - ends[0]) * (ends != 0)
    edges = np.sinh(np.linspace(ends[0], ends[1], bins + 1)) * knee
    return Axis(edges, _symmetric_ticks(edges, knee))


def _symmetric_ticks(edges: Floats, knee: float) -> Floats:
    """Zero and powers of ten on both sides of it, from the outside in, as long as they do not crowd."""
    along = np.arcsinh(edges[[0, -1]] / knee)
    room = (along[1] - along[0]) * 0.07
    ticks, places = [0.0], [0.0]
    for sign, end in ((-1.0, -edges[0]), (1.0, edges[-1])):
        decade = np.floor(np.log10(end)) if end > 0 else -np.inf
        while decade >= np.log10(knee):
            place = sign * np.arcsinh(10.0**decade / knee)
            if min(abs(place - other) for other in places) >= room:
                ticks.append(sign * 10.0**decade)
                places.append(place)
            decade -= 1
    return np.sort(np.array(ticks))


def exponents(bits: derived.BitRows, bins: int, cuts: tuple[int, ...]) -> Axis:
    """Whole octaves, each cut into as many equal parts as fit of what is allowed; ticks at powers of two.

    The parts of an octave end where buckets end, so the counts are exact.
    """
    last = int(bits.exponent.max()) + 1
    fewest, few = np.floor(np.log2(derived.pooled_quantiles(bits, 0.0, SPARSE)))  # without far outliers
    first = max(int(max(fewest, few - max(TAIL[0] * (last - few), TAIL[1]))), SMALLEST_OCTAVE)
    shown = bits.exponent[bits.exponent >= first]
    first = int(shown.min(initial=max(last - 1, SMALLEST_OCTAVE)))  # no room for what is not there
    octaves = max(last - first, 1)
    parts = next((parts for parts in cuts if parts * octaves <= bins), 1)
    joined = -(-octaves // bins)  # octaves per bin where there are more of them than bins
    starts = np.arange(first, first + octaves + joined, joined)
    inside = 1.0 + np.arange(parts) / parts
    with np.errstate(over="ignore"):  # the topmost octave ends at 2**1024, which is Inf
        edges = np.append((np.ldexp(1.0, starts[:-1])[:, None] * inside).ravel(), np.ldexp(1.0, starts[-1]))
    edges = np.minimum(edges, np.finfo(np.float64).max)
    spacing = next(spacing for spacing in APART if spacing * (TICKS if len(cuts) > 1 else TICKS_ACROSS) >= octaves)
    return Axis(edges, np.ldexp(1.0, np.arange(-(-first // spacing) * spacing, last + 1, spacing).clip(max=1023)))


def magnitudes(bits: derived.BitRows) -> derived.BitRows:
    """The buckets of the absolute values, sorted."""
    low, high = derived.magnitudes_of(bits)
    order = np.lexsort((low, bits.row))
    return derived.BitRows(
        bits.rows, bits.row[order], low[order], high[order], bits.counts[order], bits.exponent[order]
    )


#: Equally spaced stops from low to high; between them colors are mixed.
STOPS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
LOG_RANGE = 100.0  # a field whose values differ by more than this factor is shown on a logarithmic scale


@dataclass(frozen=True, slots=True)
class ColorBar:
    """What the colors mean."""

    label: str
    low: float
    high: float
    logarithmic: bool


class ColorRange:
    """Values and colors of the blocks of one picture."""

    def __init__(self, label: str, values: Mapping[int, float]) -> None:
        self._values = values
        known = list(values.values())
        low, high = (min(known), max(known)) if known else (0.0, 0.0)
        self.bar = ColorBar(label, low, high, low > 0 and high / low > LOG_RANGE)

    def of(self, block: TraceBlock) -> tuple[float | None, str | None]:
        """Value and color of a block; nothing where it has no value."""
        value = self._values.get(block.index)
        return (None, None) if value is None else (value, color(self._share(value)))

    def _share(self, value: float) -> float:
        low, high = self.bar.low, self.bar.high
        if low == high:
            return 0.5
        if self.bar.logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


def color_scale(
    record: TraceRecord, blocks: Sequence[TraceBlock], color_by: str | Mapping[int, float] | None
) -> ColorRange | None:
    """The scale for a field of operations, or for a number given for each of them."""
    if color_by is None:
        return None
    if isinstance(color_by, str):
        _check(color_by)
        label, values = color_by, amounts(record.operations, color_by)
    else:
        label, values = (
            "value",
            np.array([color_by.get(op, np.nan) for op in range(len(record.operations))], np.float64),
        )
    colored: dict[int, float] = {}
    for block in blocks:
        known = values[block.operations][np.isfinite(values[block.operations])]
        if len(known):  # of a field that adds up the sum counts, of any other the mean
            colored[block.index] = float(known.sum() if label in FIELDS else known.mean())
    return ColorRange(label, colored)


def color(share: float) -> str:
    """The color at a share of the scale.

    >>> color(0.0), color(1.0)
    ('#440154', '#fde725')
    """
    place = min(max(share, 0.0), 1.0) * (len(STOPS) - 1)
    at = min(int(place), len(STOPS) - 2)
    low, high = _channels(STOPS[at]), _channels(STOPS[at + 1])
    mixed = [round(a + (b - a) * (place - at)) for a, b in zip(low, high, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def is_dark(hexadecimal: str) -> bool:
    """Whether white text reads better than black on a color."""
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in _channels(hexadecimal)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.179


def _channels(hexadecimal: str) -> list[int]:
    return [int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5)]


def _check(name: str) -> None:
    numeric = [field for field, kind in get_type_hints(Operation).items() if kind in (int, float, bool, int | None)]
    if name not in numeric:
        raise SelectError(f"Operations have no numeric field {name!r} to color by. There are: {', '.join(numeric)}.")
