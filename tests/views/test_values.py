"""Tensors as pictures, cut to the screen without losing what matters."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.errors import SelectError
from layerscope.views.values import AXES, Array, ValueView, coarse, cut, pictures_of, value_view


def seen(
    array: Array, picture: str | None = None, at: tuple[int, ...] = (), size: tuple[int, int] = (64, 48)
) -> ValueView:
    chosen = cut(array.shape, picture, at)
    return value_view(chosen, array[chosen.part], *size)


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((), "number"),
        ((10,), "line"),
        ((4, 8), "matrix"),
        ((3, 32, 32), "image"),
        ((1, 28, 28), "image"),
        ((8, 3, 32, 32), "image"),
        ((64, 14, 14), "grid"),
        ((8, 64, 14, 14), "grid"),
        ((2, 12, 64, 64), "grid"),
        ((2, 64, 768), "matrix"),
        ((2, 3, 4, 5, 6), "grid"),
    ],
)
def test_the_shape_decides_the_picture(shape: tuple[int, ...], picture: str) -> None:
    assert pictures_of(shape)[0] == picture
    view = seen(np.ones(shape, np.float32))
    assert view.picture == picture
    assert len(view.index) == len(shape) - AXES[picture]


def test_small_tensors_are_shown_element_by_element() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
    view = seen(array, "matrix", (1,))
    assert (view.rows, view.columns, view.row_step, view.column_step) == (3, 4, 1, 1)
    assert np.array_equal(view.cells.reshape(3, 4), array[1])
    assert list(view.range) == [5.0, 16.0]


@pytest.mark.parametrize(("odd", "told"), [(np.nan, "NaN"), (np.inf, "+Inf"), (-np.inf, "−Inf"), (-1e6, "min")])
def test_one_odd_element_among_a_million_is_seen(odd: float, told: str) -> None:
    array = np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32)
    array[777, 333] = odd
    view = seen(array)
    cell = view.cells.reshape(view.rows, view.columns)[777 // view.row_step, 333 // view.column_step]
    assert np.isnan(cell) if np.isnan(odd) else cell == odd
    assert dict(zip(view.number_names, view.numbers, strict=True))[told] == (1 if told != "min" else -1e6)
    assert view.rows <= 48
    assert view.columns <= 64


def test_not_a_number_is_seen_beside_an_infinite_one() -> None:
    view = seen(np.array([[np.inf, np.nan, 1.0, -2.0]]), size=(1, 1))
    assert np.isnan(view.cells[0])


def test_a_long_line_keeps_the_extremes_of_every_pixel() -> None:
    array = np.sin(np.linspace(0, 50, 10_001))
    view = seen(array)
    low, high = view.low, view.high
    assert view.columns == len(low) == len(high) <= 64
    for at in range(view.columns):
        part = array[at * view.column_step : (at + 1) * view.column_step]
        assert (low[at], high[at]) == (part.min(), part.max())


def test_channels_that_do_not_fit_are_reached_by_their_number() -> None:
    array = np.arange(100, dtype=np.float32)[:, None, None] * np.ones((1, 5, 5), np.float32)
    chosen = cut(array.shape, "grid", (), 64)
    view = value_view(chosen, array[chosen.part], 640, 480)
    assert (view.first_tile, view.tiles, view.all_tiles) == (64, 36, 100)
    assert view.cells[0] == 64


def test_places_beyond_the_tensor_are_its_last_ones() -> None:
    assert cut((4, 5, 6), "matrix", (99,)).index == (3,)
    assert cut((4, 5, 6), "nonsense", ()).picture == pictures_of((4, 5, 6))[0]
    assert cut((4, 5, 6), "grid", (), 64).tiles == 4  # all, not the last one alone


def test_a_tensor_without_elements_says_so() -> None:
    with pytest.raises(SelectError, match="no elements"):
        cut((3, 0), None, ())


def test_an_image_is_averaged_and_a_complex_tensor_shown_by_its_magnitude() -> None:
    view = seen(np.arange(16.0).reshape(1, 4, 4).repeat(4, 1).repeat(4, 2), size=(4, 4))
    assert view.picture == "image"
    assert np.array_equal(view.cells.reshape(4, 4), np.arange(16.0).reshape(4, 4))
    assert seen(np.array([3 + 4j])).cells[0] == 5


def test_coarse_cells_keep_three_digits_and_what_is_not_finite() -> None:
    array = np.array([[np.pi, -1e-30, np.nan, np.inf, 0.0, 12345.678]], np.float32)
    view = coarse(seen(array))
    assert np.allclose(view.cells, array.ravel(), rtol=1e-3, atol=0, equal_nan=True)
