"""Which steps are recorded: by a schedule, within a budget, or because of how they went."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.modules import module as global_hooks

import layerscope as ls
from layerscope.capture.core.schedule import Budget, StepPolicy
from layerscope.errors import ArgumentError, LayerscopeError, LayerscopeWarning
from tests.capture.models import Mlp


def wanted(schedule: ls.Schedule, among: int = 100) -> list[int]:
    return [step for step in range(among) if schedule.wants(step)]


def test_what_is_given_together_is_recorded_together() -> None:
    schedule = ls.Schedule(every=40, start=10, steps=[3, 4], rule=lambda step: step == 99)
    assert wanted(schedule) == [3, 4, 10, 50, 90, 99]


def test_without_every_only_what_is_listed_is_recorded() -> None:
    assert wanted(ls.Schedule(steps=[5, 2])) == [2, 5]
    assert wanted(ls.Schedule(rule=lambda step: step % 50 == 1)) == [1, 51]
    assert wanted(ls.Schedule()) == list(range(0, 100, 10))


@given(every=st.integers(1, 20), back_off=st.floats(1.01, 4), start=st.integers(0, 30))
def test_backing_off_stretches_each_distance_by_the_factor(every: int, back_off: float, start: int) -> None:
    expected, offset, distance = [], 0.0, float(every)
    while start + int(offset + 1e-9) < 2000:
        expected.append(start + int(offset + 1e-9))
        offset, distance = offset + distance, distance * back_off
    recorded = wanted(ls.Schedule(every=every, start=start, back_off=back_off), 2000)
    assert len(recorded) == len(expected)
    assert max(abs(a - b) for a, b in zip(recorded, expected, strict=True)) <= 1  # a sum may be rounded either way


@pytest.mark.parametrize(
    "words",
    [
        {"every": 0},
        {"every": 1.5},
        {"back_off": 0.5},
        {"stop": 3, "start": 3},
        {"steps": 7},
        {"steps": ["a"]},
        {"rule": 3},
        {"keep_if": "loss > 3"},
        {"keep_last": -1},
        {"keep_last": None},
        {"start": 3, "every": {"a": 1}},
        {"keep_last": 3, "every": {"a": ls.Schedule(keep_last=3)}},
        {"every": {"a": {"b": 1}}},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(words))):
        ls.Schedule(**words)  # type: ignore[arg-type]  # on purpose


def test_a_budget_lets_recording_have_its_share_and_no_more() -> None:
    budget = Budget(0.02)
    recorded = 0
    for _ in range(5000):
        if budget.affords():
            recorded += 1
            budget.account(1.0 + 0.3, 0.3, recorded=True)
        else:
            budget.account(1.0, 0.0, recorded=False)
    assert 0.018 < budget.share <= 0.02
    assert recorded == pytest.approx(5000 * 0.02 / 0.98 / 0.3, rel=0.05)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2])
def test_a_budget_that_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match=r"0\.02"):
        ls.Schedule(budget=share)


def test_a_training_within_a_budget_records_fewer_steps_and_says_what_they_cost(tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=ls.Schedule(1, budget=0.001)) as run:
        for _ in range(20):
            model(torch.randn(4, 6)).sum().backward()
            run.step()
        assert 0 < run.overhead < 1
    cost = ls.open(tmp_path / "run").overhead()
    assert 1 <= len(cost["step"]) < 10
    assert cost["step"][0] == 0
    assert cost["summaries"][0] > 10
    assert cost["recording_s"][0] > 0
    assert cost["step_s"][0] > 0


def test_a_step_is_kept_because_of_how_it_went(tmp_path: Path) -> None:
    model = Mlp()
    schedule = ls.Schedule(100, keep_if=lambda step: step.loss > 3 * step.loss_ema)
    with ls.watch(model, to=tmp_path / "run", every=schedule, kinds="all") as run:
        for step in range(12):
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            run.step(loss=50.0 if step == 7 else 1.0)
    run_read = ls.open(tmp_path / "run")
    assert sorted(set(run_read.stats(stat="rms")["step"])) == [0, 7]
    events = run_read.events()
    assert [step for step, level in zip(events["step"], events["level"], strict=True) if level == "kept"] == [7]


def test_a_rule_that_asks_for_what_the_step_has_not_is_told_what_it_has() -> None:
    with pytest.warns(LayerscopeWarning, match=r"'accuracy'.*loss, loss_ema"):
        assert not StepPolicy(ls.Schedule(keep_if=lambda step: step.accuracy > 1)).keeps(0, {"loss": 1.0})


def test_a_running_mean_forgets_no_spike_and_remembers_no_nan() -> None:
    means: list[float] = []
    policy = StepPolicy(ls.Schedule(keep_if=lambda step: means.append(step.loss_ema) is None))  # type: ignore[func-returns-value]
    for loss in (1.0, float("nan"), float("inf"), 2.0, 2.0):
        policy.keeps(0, {"loss": loss})
    assert means == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.02])


def test_a_step_that_may_be_kept_has_hooks_and_an_idle_one_has_none(tmp_path: Path) -> None:
    before = len(global_hooks._global_forward_hooks)
    with ls.watch(Mlp(), to=tmp_path / "run", every=2) as run:
        run.step()
        assert len(global_hooks._global_forward_hooks) == before
    with ls.watch(Mlp(), to=tmp_path / "late", every=ls.Schedule(2, keep_if=lambda step: False)) as run:
        run.step()
        assert len(global_hooks._global_forward_hooks) > before


@pytest.mark.parametrize("words", [{"sample": 0}, {"every": 0}, {"statistics": 3}])
def test_wrong_words_for_a_recording_are_refused_and_leave_nothing_behind(
    words: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(LayerscopeError, match=next(iter(words))):
        ls.watch(Mlp(), to=tmp_path / "run", **words)  # type: ignore[arg-type]  # on purpose
    assert not (tmp_path / "run").exists()
