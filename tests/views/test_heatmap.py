"""One statistic of all tensors: every row at its place in the tree, and nothing grave lost where cells are joined."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.model.records import Floats
from layerscope.query.matrix import INF, MISSING, NAN, VALUE, Matrix, Question
from layerscope.views import heatmap
from layerscope.views.heatmap import HeatMapView, difference_view, heat_map_view
from layerscope.views.scalar import Screen

SITES = ("embed", "h.0.attn", "h.0.mlp", "h.1.attn", "head")


def matrix_of(values: Floats, tensors: tuple[tuple[str, str], ...] | None = None) -> Matrix:
    """A matrix of (tensors, steps); NaN is a cell without value, Inf one of a tensor with infinite elements."""
    states = np.select([np.isnan(values), np.isinf(values)], [MISSING, INF], VALUE).astype(np.uint8)
    cells = np.where(np.isfinite(values), values, np.nan).astype(np.float32)
    named = tensors or tuple((site, "output.0") for site in SITES[: len(values)])
    return Matrix(Question("output", "rms"), named, np.arange(values.shape[1]), cells.T.copy(), states.T.copy())


def row_of(view: HeatMapView, site: str, which: str = "own") -> Floats:
    row = int(getattr(view, which)[view.sites.index(site)])
    assert row >= 0
    return np.asarray(view.cells.reshape(-1, len(view.last_steps))[row], np.float64)


def test_rows_stand_as_the_tree_of_modules_is_read() -> None:
    view = heat_map_view(matrix_of(np.ones((5, 3))), Screen())
    assert view.labels == ("embed", "h", "0", "attn", "mlp", "1.attn", "head")
    assert view.depths.tolist() == [0, 0, 1, 2, 2, 1, 0]
    assert view.inside.tolist() == [0, 4, 2, 0, 0, 0, 0]
    assert view.own.tolist() == [0, -1, -1, 1, 2, 3, 4]
    assert [at for at, row in enumerate(view.whole) if row >= 0] == [1, 2]


def test_tensors_of_one_site_are_rows_of_their_own() -> None:
    tensors = (("w", "state.exp_avg"), ("w", "state.exp_avg_sq"))
    view = heat_map_view(matrix_of(np.ones((2, 1)), tensors), Screen())
    assert view.labels == ("w", "state.exp_avg", "state.exp_avg_sq")
    assert view.ports == ("", "state.exp_avg", "state.exp_avg_sq")


def test_a_site_within_another_site_shows_itself_and_folds_with_it() -> None:
    view = heat_map_view(matrix_of(np.array([[1.0], [-5.0]]), (("a", "output.0"), ("a.b", "output.0"))), Screen())
    assert row_of(view, "a").tolist() == [1.0]
    assert row_of(view, "a", "whole").tolist() == [-5.0]


def test_a_group_shows_the_gravest_of_what_is_in_it() -> None:
    values = np.ones((5, 4))
    values[1] = [0.5, -3.0, np.inf, np.nan]
    values[2] = [0.5, 2.0, 9.0, np.nan]
    found = matrix_of(values)
    found.states[2, 2] = NAN
    view = heat_map_view(found, Screen())
    np.testing.assert_array_equal(row_of(view, "h.0", "whole"), [0.5, -3.0, np.nan, -np.inf])
    np.testing.assert_array_equal(row_of(view, "h", "whole"), [1.0, -3.0, np.nan, 1.0])


def test_a_spike_and_an_infinite_value_of_one_step_are_seen_among_ten_thousand() -> None:
    values = np.full((2, 10_000), 0.1)
    values[0, 7_777], values[1, 1_234] = -8.0, np.inf
    view = heat_map_view(matrix_of(values), Screen(width=100))
    assert view.thinned
    assert len(view.last_steps) == 100
    assert row_of(view, "embed").min() == -8.0
    assert np.isposinf(row_of(view, "h.0.attn")).tolist().index(True) == 12


def test_columns_of_few_steps_are_cut_as_those_of_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    values = rng.integers(-3, 4, (5, 40)).astype(np.float64)
    values[rng.random((5, 40)) < 0.2] = np.nan
    values[rng.random((5, 40)) < 0.1] = np.inf
    few = heat_map_view(matrix_of(values), Screen(width=15))
    monkeypatch.setattr(heatmap, "FEW_STEPS", 0)
    many = heat_map_view(matrix_of(values), Screen(width=15))
    np.testing.assert_array_equal(few.cells, many.cells)


def test_only_the_asked_steps_are_shown() -> None:
    view = heat_map_view(matrix_of(np.arange(10.0)[None]), Screen(first=3, last=5))
    assert view.last_steps.tolist() == [3, 4, 5]
    assert row_of(view, "embed").tolist() == [3.0, 4.0, 5.0]


def test_colors_leave_out_the_outermost_values_but_the_scale_says_the_true_ends() -> None:
    values = np.linspace(1.0, 2.0, 1000)[None].copy()
    values[0, 500] = 1e6
    scale = heat_map_view(matrix_of(values), Screen(width=2000)).scale
    assert (scale.low, scale.high, scale.abs_high) == (1.0, 1e6, 1e6)
    assert scale.robust_high is not None
    assert scale.robust_high < 3.0


def test_a_matrix_without_any_value_has_no_scale() -> None:
    view = heat_map_view(matrix_of(np.full((2, 3), np.nan)), Screen())
    assert view.scale.low is None
    assert np.isneginf(view.cells).all()


@pytest.mark.parametrize(("ratio", "expected"), [(False, [3.0, 0.0]), (True, [2.0, 0.0])])
def test_a_difference_is_of_common_tensors_and_steps(ratio: bool, expected: list[float]) -> None:
    a = matrix_of(np.array([[9.0, 4.0, 2.0], [1.0, 1.0, 1.0]]), (("x", "o"), ("only", "o")))
    b = matrix_of(np.array([[7.0, 7.0], [1.0, 2.0]]), (("other", "o"), ("x", "o")))
    b = Matrix(b.question, b.tensors, np.array([1, 2]), b.values, b.states)
    found = difference_view(("a", "b"), (a, b), Screen(), ratio=ratio)
    assert (found.steps_in_common, found.steps_of_first, found.steps_of_second) == (2, 3, 2)
    assert (found.only_in_first, found.only_in_second) == (("only",), ("other",))
    assert found.view.labels == ("x",)
    assert row_of(found.view, "x").tolist() == expected


def test_a_difference_with_nan_is_nan_and_one_with_nothing_is_nothing() -> None:
    a, b = matrix_of(np.array([[1.0, np.nan, 1.0]])), matrix_of(np.array([[1.0, 1.0, 0.0]]))
    b.states[0, 0] = NAN
    found = difference_view(("a", "b"), (a, b), Screen(), ratio=True)
    np.testing.assert_array_equal(row_of(found.view, "embed"), [np.nan, -np.inf, -np.inf])
