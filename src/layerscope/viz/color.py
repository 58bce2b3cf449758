"""Colors for numbers: a map that is even to the eye and safe for color blindness (viridis)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_type_hints

from layerscope.errors import SelectError
from layerscope.operations import Operation, PassRecord, Role
from layerscope.query.blocks import Block

#: Equally spaced stops from low to high; between them colors are mixed.
STOPS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
LOG_RANGE = 100.0  # a field whose values differ by more than this factor is shown on a logarithmic scale

_ADDED = ("elapsed_s", "flops", "size_bytes")  # of several operations the sum counts, of any other field the mean


@dataclass(frozen=True, slots=True)
class ColorBar:
    """What the colors mean."""

    label: str
    low: float
    high: float
    logarithmic: bool


class ColorScale:
    """Values and colors of the blocks of one picture."""

    def __init__(self, label: str, values: Mapping[int, float]) -> None:
        self._values = values
        known = list(values.values())
        low, high = (min(known), max(known)) if known else (0.0, 0.0)
        self.bar = ColorBar(label, low, high, low > 0 and high / low > LOG_RANGE)

    def of(self, block: Block) -> tuple[float | None, str | None]:
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
    record: PassRecord, blocks: Sequence[Block], color_by: str | Mapping[int, float] | None
) -> ColorScale | None:
    """The scale for a field of operations, or for a number given for each of them."""
    if color_by is None:
        return None
    if not isinstance(color_by, str):
        found = {block.index: _mean([color_by[op] for op in block.operations if op in color_by]) for block in blocks}
        return ColorScale("value", {block: value for block, value in found.items() if value is not None})
    _check(color_by)
    gathered = {block.index: _gathered(record, block, color_by) for block in blocks}
    return ColorScale(color_by, {block: value for block, value in gathered.items() if value is not None})


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


def _gathered(record: PassRecord, block: Block, name: str) -> float | None:
    operations = [record.operations[index] for index in block.operations]
    if name in ("elapsed_s", "flops"):  # of what was computed; a call with several results counts once
        operations = [op for op in operations if op.lead == op.index and op.role is Role.OPERATION]
    values = [float(value) for operation in operations if (value := getattr(operation, name)) is not None]
    return (sum(values) if values else None) if name in _ADDED else _mean(values)


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
