"""One tensor as a picture: a number, a line, a matrix, a grid of channels or an image, cut to the screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.errors import SelectError
from layerscope.model.records import Floats

Cells = npt.NDArray[np.float32]
Array = npt.NDArray[Any]  # Any: whatever data type was kept

AXES = {"number": 0, "line": 1, "matrix": 2, "grid": 3, "image": 3}  # how many of the last axes each picture shows
COLORS = (1, 3)  # channels that make an image
SMALLEST_IMAGE, LONGEST_SIDE = 8, 8  # pixels; width to height of what is taken for an image or a map
MOST_TILES, SMALLEST_TILE = 64, 12
NUMBERS = ("mean", "std", "min", "max", "zeros", "NaN", "+Inf", "−Inf")


@dataclass(frozen=True, slots=True)
class ValueView:
    """A tensor as a picture: cells of elements, each standing for one or more of them."""

    picture: str  # one of AXES
    pictures: tuple[str, ...]  # the forms that fit its shape
    shape: tuple[int, ...]
    dtype: str
    note: str  # what was done to the values before they were drawn
    index: tuple[int, ...]  # where on the axes that are not shown
    first_tile: int
    tiles: int
    all_tiles: int
    rows: int  # cells of one tile
    columns: int
    row_step: int  # elements in a cell
    column_step: int
    cells: Cells  # tile by tile, row by row; a cell of several elements has the largest magnitude, an image their mean
    low: Floats  # of a line: lowest and highest finite element of each cell
    high: Floats
    range: Floats  # lowest and highest finite element that is shown
    numbers: Floats  # of what is shown, in the order of number_names
    number_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValueRequest:
    """Which part of a tensor to show, as what, and in how many pixels."""

    picture: str | None = None  # None: the form that suits the shape
    index: Sequence[int] = ()  # where on the axes that are not shown
    tile: int = 0
    width: int = 400
    height: int = 400
    coarse: bool = False  # cells of three digits, for a saved file


@dataclass(frozen=True, slots=True)
class ValueSlice:
    """Which part of a tensor is shown, and as what."""

    picture: str
    shape: tuple[int, ...]
    index: tuple[int, ...]
    first_tile: int
    tiles: int

    @property
    def part(self) -> tuple[int | slice, ...]:
        """The part to read: one place on each axis that is not shown, all of the others."""
        shown = [slice(None)] * AXES[self.picture]
        if self.picture in ("grid", "image"):
            shown[0] = slice(self.first_tile, self.first_tile + self.tiles)
        return (*self.index, *shown)


def pictures_of(shape: Sequence[int]) -> tuple[str, ...]:
    """The pictures that fit a shape, the most telling first.

    >>> pictures_of((8, 64, 14, 14)), pictures_of((2, 64, 768)), pictures_of((3, 224, 224))
    (('grid', 'matrix', 'line'), ('matrix', 'grid', 'line'), ('image', 'grid', 'matrix', 'line'))
    """
    if not shape:
        return ("number",)
    if len(shape) < 3:
        return ("matrix", "line") if len(shape) == 2 else ("line",)
    channels, height, width = shape[-3:]
    is_map = max(height, width) <= LONGEST_SIDE * max(min(height, width), 1)
    is_image = channels in COLORS and is_map and min(height, width) >= SMALLEST_IMAGE
    plain = ("grid", "matrix") if is_map and (len(shape) > 3 or channels > max(COLORS)) else ("matrix", "grid")
    return ("image", "grid", "matrix", "line") if is_image else (*plain, "line")


def cut(shape: Sequence[int], picture: str | None, index: Sequence[int], first_tile: int = 0) -> ValueSlice:
    """The part of a tensor that a picture shows; what is not asked for, or does not fit, is the first."""
    fitting = pictures_of(shape)
    chosen = picture if picture in fitting else fitting[0]
    if 0 in shape:
        raise SelectError(f"This tensor of shape {tuple(shape)} has no elements.")
    leading = shape[: len(shape) - AXES[chosen]]
    places = [min(max(at, 0), size - 1) for at, size in zip((*index, *[0] * len(leading)), leading, strict=False)]
    channels = shape[-3] if AXES[chosen] == 3 else 1
    first = first_tile if chosen == "grid" and 0 <= first_tile < channels else 0
    tiles = channels if chosen == "image" else min(channels - first, MOST_TILES)
    return ValueSlice(chosen, tuple(shape), tuple(places), first, tiles)


def value_view(cut: ValueSlice, part: Array, width: int, height: int) -> ValueView:
    """The picture of the part that was cut out, in this many pixels."""
    real, note = _real(part)
    tiles = real.reshape((cut.tiles, *_last_two(real.shape)))
    rows, columns = tiles.shape[1:]
    side = max(SMALLEST_TILE, math.isqrt(width * height // cut.tiles)) if cut.picture == "grid" else 0
    row_step, column_step = -(-rows // (side or height)), -(-columns // (side or width))
    blocks = _blocks(tiles, row_step, column_step)
    cells = blocks.mean(-1) if cut.picture == "image" else _largest(blocks)
    finite = real[np.isfinite(real)]
    is_line = cut.picture == "line"
    return ValueView(
        picture=cut.picture,
        pictures=pictures_of(cut.shape),
        shape=cut.shape,
        dtype=str(part.dtype),
        note=note,
        index=cut.index,
        first_tile=cut.first_tile,
        tiles=cut.tiles,
        all_tiles=cut.shape[-3] if AXES[cut.picture] == 3 else 1,
        rows=cells.shape[1],
        columns=cells.shape[2],
        row_step=row_step,
        column_step=column_step,
        cells=cells.astype(np.float32).ravel(),
        low=_edge(blocks, np.inf, np.minimum) if is_line else np.zeros(0),
        high=_edge(blocks, -np.inf, np.maximum) if is_line else np.zeros(0),
        range=np.array([finite.min(), finite.max()]) if finite.size else np.full(2, np.nan),
        numbers=_numbers(real, finite),
        number_names=NUMBERS,
    )


def coarse(view: ValueView) -> ValueView:
    """The view with cells of three digits, which take half the room when compressed."""
    bits = view.cells.view(np.uint32)
    rounded = np.where(np.isfinite(view.cells), (bits + 0x1000) & 0xFFFFE000, bits).astype(np.uint32)
    return replace(view, cells=rounded.view(np.float32))


def _real(part: Array) -> tuple[Floats, str]:
    if np.iscomplexobj(part):
        return np.abs(part).astype(np.float64), "magnitudes of complex numbers"
    return np.asarray(part, np.float64), ""


def _last_two(shape: Sequence[int]) -> tuple[int, int]:
    rows, columns = (1, 1, *shape)[-2:]
    return rows, columns


def _blocks(tiles: Floats, row_step: int, column_step: int) -> Floats:
    """Elements by cell: (tiles, rows, columns, elements); the last cells are filled up by repeating the border."""
    count, rows, columns = tiles.shape
    down, across = -(-rows // row_step), -(-columns // column_step)
    filled = np.pad(tiles, ((0, 0), (0, down * row_step - rows), (0, across * column_step - columns)), "edge")
    split = filled.reshape(count, down, row_step, across, column_step).swapaxes(2, 3)
    return split.reshape(count, down, across, row_step * column_step)


def _largest(blocks: Floats) -> Floats:
    """The element of each cell that must not be missed: NaN, else the largest magnitude."""
    size = np.where(np.isnan(blocks), np.inf, np.abs(blocks))
    size[np.isinf(blocks)] = np.finfo(np.float64).max
    largest: Floats = np.take_along_axis(blocks, size.argmax(-1)[..., None], -1)[..., 0]
    return largest


def _edge(blocks: Floats, nothing: float, reduce: np.ufunc) -> Floats:
    edge: Floats = reduce.reduce(np.where(np.isfinite(blocks), blocks, nothing), -1).ravel()
    return np.where(np.isfinite(edge), edge, np.nan)


def _numbers(real: Floats, finite: Floats) -> Floats:
    of_finite = [f(finite) if finite.size else math.nan for f in (np.mean, np.std, np.min, np.max)]
    counts = (real == 0, np.isnan(real), np.isposinf(real), np.isneginf(real))
    return np.array([*of_finite, *map(np.count_nonzero, counts)], np.float64)
