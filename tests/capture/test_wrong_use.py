"""Wrong use gets an error that names the thing, the reason and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import layerscope as ls
from layerscope.errors import (
    ArgumentError,
    BusyError,
    FormatError,
    LayerscopeWarning,
    SelectError,
    StateError,
    StoreError,
)
from tests.capture.models import Mlp


def test_a_closed_recorder_refuses_steps_and_notes(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run:
        pass
    with pytest.raises(StateError, match=r"step\(\) came after the recorder was closed\. .*`with` block"):
        run.step(loss=1.0)
    with pytest.raises(StateError, match=r"note\(\) came after"):
        run.note("too late")
    run.close()


def test_an_unknown_site_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SelectError, match=r"No site matches 'layer\.0' among \d+ sites\. Near it: 'layers\.0'"):
        ls.watch(Mlp(), to=tmp_path / "run", sites="layer.0")
    assert not (tmp_path / "run").exists()


def test_an_unknown_kind_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SelectError, match=r"No kind matches 'activations'.*output, "):
        ls.watch(Mlp(), to=tmp_path / "run", kinds="activations")


def test_something_else_than_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"needs a torch\.nn\.Module, or a dictionary of them by name, not function"
    ):
        ls.watch(lambda x: x, to=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"needs a torch\.optim\.Optimizer, or several, not str"):
        ls.watch(Mlp(), "adam", to=tmp_path / "run")  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match="file"):
        ls.watch(Mlp(), to=tmp_path / "file" / "run")


def test_opening_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"run\.json"):
        ls.open(tmp_path)
    with pytest.raises(StoreError, match="nowhere"):
        ls.open(tmp_path / "nowhere")


def test_two_recorders_cannot_write_one_run(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run"), pytest.raises(BusyError, match=str(os.getpid())):
        ls.watch(Mlp(), to=tmp_path / "run", resume=True)


def test_the_name_of_an_existing_run_gets_a_suffix_and_a_warning_at_the_call(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run:
        assert run.path == tmp_path / "run"
    with pytest.warns(LayerscopeWarning, match="run exists: this run is recorded to .*run-2") as caught:
        again = ls.watch(Mlp(), to=tmp_path / "run")
    again.close()
    assert caught[0].filename == __file__
    assert again.path == tmp_path / "run-2"
    assert "run-2" in repr(again)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run-2"]


def test_resuming_counts_steps_without_metrics_and_takes_a_checkpoints_step(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run", every=10) as run:
        for _ in range(25):
            run.step()
    with ls.watch(Mlp(), to=tmp_path / "run", resume=True) as run:
        assert run.current_step == 25
        run.step(loss=1.0)
    with ls.watch(Mlp(), to=tmp_path / "run", resume=25) as run:
        run.step(loss=2.0)
    assert ls.open(tmp_path / "run").metrics()["loss"] == [2.0]  # the later one counts
    with pytest.raises(ArgumentError, match="resume needs `to`"):
        ls.watch(Mlp(), resume=True)


def test_a_watch_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    monkeypatch.setattr("layerscope.capture.torch.targets.module_nodes", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ls.watch(Mlp(), to=tmp_path / "run")
    assert threading.active_count() == threads
    assert ls.open(tmp_path / "run").status() != "running"


@pytest.mark.parametrize("words", [{"sites": []}, {"kinds": []}, {"sites": "layers.1", "kinds": "weight"}])
def test_words_that_select_nothing_are_refused(words: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SelectError, match="Nothing would be recorded"):
        ls.watch(Mlp(), to=tmp_path / "run", **words)


def test_a_modules_name_selects_its_own_parameters(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run", every=1, sites="layers.0", kinds="weight") as run:
        run.step()
    assert set(ls.open(tmp_path / "run").stats(stat="rms")["site"]) == {"layers.0.weight", "layers.0.bias"}


def test_the_optimizer_of_another_model_is_noticed(tmp_path: Path) -> None:
    with pytest.warns(LayerscopeWarning, match="none of the model's parameters"):
        ls.watch(Mlp(), torch.optim.SGD(Mlp().parameters()), to=tmp_path / "run").close()


def test_metrics_that_sql_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    with (
        ls.watch(Mlp(), to=tmp_path / "run") as run,
        pytest.raises(ArgumentError, match="'loss' and 'Loss' differ only"),
    ):
        run.step(loss=1.0, Loss=2.0)


def test_a_disabled_recorder_still_counts_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_DISABLED", "1")
    run = ls.watch(Mlp())
    run.step(loss=1.0)
    assert run.current_step == 1


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run:
        with pytest.raises(ArgumentError, match="Metric 'loss' is not one number but Tensor"):
            run.step(loss=torch.zeros(3))
        assert run.current_step == 0


def test_a_metric_cannot_take_the_name_of_a_column(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run, pytest.raises(ArgumentError, match="cannot be called 'time_s'"):
        run.step(time_s=1.0)


def test_a_schedule_that_records_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="every=0 records no step"):
        ls.Schedule(every=0)
    with pytest.raises(ArgumentError, match="every='10' is not a whole number"):
        ls.Schedule(every="10")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="stop=5 is not after start=10"):
        ls.Schedule(start=10, stop=5)


def test_without_torch_watch_says_what_is_missing_and_reading_works(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run", every=1) as run:
        run.step(loss=1.5)
    script = f"""
import sys
sys.modules["torch"] = None  # what an import finds where torch is not installed
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else find_spec(name, *a)
import layerscope as ls
run = ls.open({str(tmp_path / "run")!r})
assert run.metrics()["loss"] == [1.5]
assert len(run.stats(kind="weight", stat="rms")) == 4
from layerscope.server.app import create_app
create_app(run.path)
try:
    ls.watch(object())
except ls.LayerscopeError as error:
    assert "PyTorch, which is not installed" in str(error), error
else:
    raise AssertionError("watch worked without torch")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
