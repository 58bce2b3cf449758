"""The same tensor of several runs on one axis."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.views.compare import RunHistory, histograms_view, over_time_view
from layerscope.views.scalar import Screen
from layerscope.views.scales import AxisKind
from tests.views.histories import history_of


@pytest.mark.parametrize("axis", list(AxisKind))
def test_histograms_of_all_runs_count_all_elements_on_one_axis(axis: AxisKind) -> None:
    rng = np.random.default_rng(0)
    narrow = history_of({0: rng.normal(0, 1, 400), 5: rng.normal(0, 1, 400)})
    wide = history_of({4: np.concatenate((rng.normal(0, 9, 300), np.zeros(7), [np.nan]))})
    view = histograms_view(
        [RunHistory("a", narrow), RunHistory("b", wide), RunHistory("c", None, "it lacks it")], 4, axis, 64
    )
    first, second, third = view.runs
    assert (first.step, second.step, third.step) == (0, 4, None)
    assert third.lacking == "it lacks it"
    zeros = 0 if axis is not AxisKind.EXPONENT else 7
    for run, elements in ((first, 400), (second, 307 - zeros)):
        assert len(run.counts) == len(view.edges) - 1
        assert run.counts.sum() + run.numbers[1] + run.numbers[2] == pytest.approx(elements)
    assert second.numbers[[0, 3, 4]].tolist() == [308, 7, 1]


def test_without_a_step_the_last_one_is_shown() -> None:
    view = histograms_view([RunHistory("a", history_of({0: np.ones(3), 9: np.ones(4)}))], None, AxisKind.LINEAR, 16)
    assert view.runs[0].step == 9
    assert view.runs[0].numbers[0] == 4


def test_runs_without_the_tensor_still_have_an_axis() -> None:
    view = histograms_view([RunHistory("a", None, "gone"), RunHistory("b", None, "gone")], 3, AxisKind.LINEAR, 16)
    assert [run.lacking for run in view.runs] == ["gone", "gone"]
    assert len(view.edges) > 1
    for axis in AxisKind:
        over_time = over_time_view([RunHistory("a", None, "gone"), RunHistory("b", None, "gone")], axis, Screen())
        assert [(run.view, run.lacking) for run in over_time.runs] == [(None, "gone"), (None, "gone")]


@pytest.mark.parametrize("axis", list(AxisKind))
def test_a_color_means_the_same_in_the_pictures_of_all_runs(axis: AxisKind) -> None:
    rng = np.random.default_rng(0)
    large, small = (history_of({step: rng.normal(0, 1, size) for step in range(3)}) for size in (50_000, 400))
    view = over_time_view(
        [RunHistory("large", large), RunHistory("small", small), RunHistory("none", None, "gone")], axis, Screen()
    )
    first, second = (run.view for run in view.runs[:2])
    assert first is not None
    assert second is not None
    assert first.most == second.most
    assert (first.edges == second.edges).all()
    assert first.shades.max() == 255
    shade_of = dict(zip(first.counts.tolist(), first.shades.tolist(), strict=True))
    shared = {
        count: shade
        for count, shade in zip(second.counts.tolist(), second.shades.tolist(), strict=True)
        if count in shade_of
    }
    assert all(shade_of[count] == shade for count, shade in shared.items())
    assert 0 < second.shades.max() < 200
