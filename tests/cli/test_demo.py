"""`layerscope demo recurrent-bug`: what the tutorial tells is in what the demo records."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

import layerscope as ls
from layerscope.demos import recurrent_bug, recurrent_view
from layerscope.model.records import Floats, TensorType
from layerscope.query.tensor_query import TensorSelection
from tests.cli.test_command import command
from tests.lesson import recorded_lesson

TYPE = "05_iterations"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_lesson(tmp_path_factory)


@pytest.fixture(params=recurrent_bug.TRIALS)
def trial(request: pytest.FixtureRequest, project: Path) -> ls.Run:
    return ls.open(project / request.param)


def last_step(run: ls.Run, type: str = TYPE) -> int:
    return int(run.named().steps(type)["step"][-1])


def value(run: ls.Run, name: str, loss: str | None = None) -> Floats:
    """The values of the kept samples in the last iteration of the last step with five of them."""
    found = run.named().values(last_step(run), name, iteration=5, loss=loss)
    assert found is not None
    return np.asarray(found.array, float)


def test_both_trials_hold_every_step_type_and_every_iteration(trial: ls.Run) -> None:
    assert trial.status() == "finished"
    types = [f"{length:02}_iterations" for length in (*range(1, recurrent_bug.LONGEST + 1), *recurrent_bug.LONGER)]
    assert sorted(trial.named().types()) == types
    steps = trial.named().steps()
    assert [int(type[:2]) for type in steps["type"]] == steps["iterations"]


def test_the_graph_leads_from_the_input_over_the_memory_to_the_loss(trial: ls.Run) -> None:
    graph = trial.named().graph(last_step(trial), 5)
    assert graph is not None
    parts = {node.name: node.type for node in graph.nodes}
    assert [parts[name] for name in ("input", "target", "loss")] == [
        TensorType.INPUT,
        TensorType.TARGET,
        TensorType.LOSS,
    ]
    assert {name for name, part in parts.items() if part is TensorType.PARAMETER} == {
        "subnet_pre",
        "subnet_main",
        "subnet_out",
    }
    links = {(link.source, link.back, link.target) for link in graph.links}
    way = ["input", "seen", "memory", "last_layer", "before_sigmoid", "output", "loss_per_sample", "loss"]
    assert {(a, 0, b) for a, b in itertools.pairwise(way)} <= links
    assert {("memory", 1, "memory"), ("target", 0, "loss_per_sample"), ("subnet_out", 0, "last_layer")} <= links


def test_before_the_sigmoid_the_bugged_trial_has_large_positive_and_hardly_any_negative_values(project: Path) -> None:
    ratios = {}
    for name in recurrent_bug.TRIALS:
        run = ls.open(project / name)
        stats = run.named().statistics(last_step(run), "before_sigmoid", iteration=5)
        ratios[name] = stats["max"] / -stats["min"]
    assert ratios["bugged"] > 20
    assert 1 / 4 < ratios["fixed"] < 4


def test_the_last_activation_of_the_bugged_trial_lets_a_hundredth_of_the_gradient_through(project: Path) -> None:
    run = ls.open(project / "bugged")
    negative = value(run, "before_sigmoid") < 0
    assert negative.any()
    behind, before = value(run, "before_sigmoid", loss=""), value(run, "last_layer", loss="")
    np.testing.assert_allclose(before[negative], behind[negative] * recurrent_bug.SLOPE, rtol=1e-5)
    np.testing.assert_allclose(before[~negative], behind[~negative], rtol=1e-5)


def test_the_fixed_trial_learns_faster_and_more_that_lasts(project: Path) -> None:
    right = {name: last_of_each_type(ls.open(project / name), "accuracy/all") for name in recurrent_bug.TRIALS}
    losses = {name: last_of_each_type(ls.open(project / name), "loss") for name in recurrent_bug.TRIALS}
    assert losses["fixed"][TYPE] < losses["bugged"][TYPE] / 2
    for longer in ("15_iterations", "20_iterations"):
        assert right["fixed"][longer] > right["bugged"][longer] + 0.1


def last_of_each_type(run: ls.Run, name: str) -> dict[str, float]:
    """The last number of a metric for each step type."""
    metrics = run.metrics()
    return dict(zip(metrics["type"], metrics[name], strict=True))


def test_the_loss_is_high_where_the_sum_is_near_zero(project: Path) -> None:
    run = ls.open(project / "fixed")
    near, far = [], []
    for step in run.named().steps(TYPE)["step"][2:]:
        losses = run.named().values(step, "loss_per_sample", iteration=5)
        sums = run.named().values(step, "helper_partial_sums", "so far", 5)
        assert losses is not None
        assert sums is not None
        near.append(losses.array[np.abs(sums.array) < recurrent_bug.NEAR_ZERO])
        far.append(losses.array[np.abs(sums.array) >= 1])
    assert np.concatenate(near).mean() > 2 * np.concatenate(far).mean()


def test_two_trainings_are_the_same(tmp_path: Path) -> None:
    def untold(counted: range, what: str) -> Iterable[int]:
        return counted

    metrics: list[Any] = []
    for name in ("first", "second"):
        recurrent_bug.train_trial("fixed", tmp_path / name, 4, untold)
        metrics.append(ls.open(tmp_path / name / "fixed").metrics()["loss"])
    assert metrics[0] == metrics[1]


def test_its_own_view_draws_a_line_for_each_sequence(project: Path) -> None:
    run = ls.open(project / "fixed")
    chosen = TensorSelection("fixed", last_step(run), TYPE, 5, "output", sample=2)
    figure = recurrent_view.view(chosen, run)
    assert isinstance(figure, Figure)
    lines = figure.axes[0].get_lines()[1:]
    assert len(lines) == recurrent_bug.SEQUENCES
    kept = run.named().values(chosen.step, "helper_partial_sums", "so far", 5)
    assert kept is not None
    assert [np.asarray(line.get_ydata())[-1] for line in lines] == pytest.approx(kept.array[2])
    assert "sample 2" in figure.axes[0].get_title()


def test_without_matplotlib_its_own_view_is_a_table(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = ls.open(project / "fixed")
    table = recurrent_view.view(TensorSelection("fixed", last_step(run), TYPE, 5, "output"), run)
    assert isinstance(table, pa.Table)
    assert table.shape == (5, recurrent_bug.SEQUENCES)


def test_help_says_what_each_demo_is(tmp_path: Path) -> None:
    said = command("demo", "--help", cwd=tmp_path).stdout
    assert "spirals" in said
    assert "layerscope demo recurrent-bug" in said
