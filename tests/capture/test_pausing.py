"""`run.enabled` pauses and resumes a recording."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import layerscope as ls
from layerscope.capture.core.recorder import Recorder
from layerscope.errors import ArgumentError, StateError
from tests.capture.models import Mlp
from tests.capture.test_truth import hooks_everywhere


class Loop:
    """A training whose parts can be called one by one."""

    def __init__(self) -> None:
        self.model = Mlp()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def compute(self) -> None:
        self.model(torch.randn(4, 6)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, run: Recorder) -> None:
        self.compute()
        run.step(loss=1.0)


def recorded(folder: Path) -> list[int]:
    run = ls.open(folder)
    steps: list[int] = run.stats("layers.0", kind="output", stat="count")["step"]
    assert run.metrics()["step"] == steps
    assert run.stats("layers.0", kind="output", stat="count")["count"] == [4 * 16] * len(steps)
    return steps


def test_a_paused_recorder_has_no_hooks_counts_steps_and_records_nothing(tmp_path: Path) -> None:
    loop, before = Loop(), hooks_everywhere()
    with ls.watch(loop.model, loop.optimizer, to=tmp_path / "run", every=1) as run:
        for number in range(10):
            run.enabled = not 3 <= number < 6
            assert (hooks_everywhere() <= before) is (3 <= number < 6)
            loop.step(run)
            run.note(f"note {number}")
    assert recorded(tmp_path / "run") == [0, 1, 2, 6, 7, 8, 9]
    assert "note 4" not in ls.open(tmp_path / "run").events()["text"]


def test_a_step_that_was_paused_or_resumed_in_the_middle_is_not_recorded(tmp_path: Path) -> None:
    loop = Loop()
    with ls.watch(loop.model, loop.optimizer, to=tmp_path / "run", every=1) as run:
        loop.step(run)
        loop.compute()
        run.enabled = False
        run.step(loss=1.0)
        loop.compute()
        run.enabled = True
        run.step(loss=1.0)
        loop.step(run)
    stats = ls.open(tmp_path / "run").stats("layers.0", kind="output", stat="count")
    assert stats["step"] == [0, 3]
    assert stats["count"] == [4 * 16] * 2


def test_a_recorder_that_begins_disabled_makes_its_folder_when_it_is_enabled(tmp_path: Path) -> None:
    loop, before = Loop(), hooks_everywhere()
    with ls.watch(loop.model, loop.optimizer, to=tmp_path / "run", every=1, enabled=False) as run:
        loop.step(run)
        loop.step(run)
        run.begin(type="late")
        run.keep()
        assert not (tmp_path / "run").exists()
        assert hooks_everywhere() <= before
        run.enabled = True
        assert run.path == tmp_path / "run"
        loop.step(run)
    assert recorded(tmp_path / "run") == [2]


def test_a_recorder_disabled_by_the_environment_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_DISABLED", "1")
    loop, before = Loop(), hooks_everywhere()
    run = ls.watch(loop.model, loop.optimizer, to=tmp_path / "run", every=1)
    run.enabled = True
    loop.step(run)
    assert (run.enabled, run.current_step, run.path) == (False, 1, None)
    assert hooks_everywhere() <= before
    run.close()
    del run
    assert list(tmp_path.iterdir()) == []


def test_a_pause_is_no_part_of_the_time_of_a_step(tmp_path: Path) -> None:
    loop = Loop()
    with ls.watch(loop.model, loop.optimizer, to=tmp_path / "run", every=1) as run:
        loop.step(run)
        run.enabled = False
        time.sleep(0.5)
        run.step()
        run.enabled = True
        loop.step(run)
    assert ls.open(tmp_path / "run").overhead()["step_s"][-1] < 0.5


def test_attributes_that_a_recorder_does_not_have_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run:
        with pytest.raises(AttributeError, match=r"no attribute 'enable'\. Near it: 'enabled'"):
            run.enable = False  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'curent_step'\. Near it: 'current_step'"):
            run.curent_step  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match="'path' cannot be set"):
            run.path = tmp_path  # type: ignore[misc]
        with pytest.raises(ArgumentError, match="enabled='no' is neither True nor False"):
            run.enabled = "no"  # type: ignore[assignment]
    with pytest.raises(StateError, match="enabled came after the recorder was closed"):
        run.enabled = False
