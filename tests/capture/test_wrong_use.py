"""Wrong use gets an error that names the thing, the reason and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import layerscope as ls
from layerscope.errors import BusyError, FormatError, SelectError, StateError, StoreError
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
    with pytest.raises(
        SelectError, match=r"No site matches 'layer\.0'\. There are \d+ sites, for example: 'layers\.0'"
    ):
        ls.watch(Mlp(), to=tmp_path / "run", sites="layer.0")
    assert not (tmp_path / "run").exists()


def test_an_unknown_kind_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SelectError, match=r"No recordable kind matches 'activations'.*'output'"):
        ls.watch(Mlp(), to=tmp_path / "run", kinds="activations")


def test_something_else_than_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectError, match=r"needs a torch\.nn\.Module, not function"):
        ls.watch(lambda x: x, to=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(SelectError, match=r"needs a torch\.optim\.Optimizer, or several, not str"):
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


def test_a_taken_name_gets_a_suffix(tmp_path: Path) -> None:
    for _ in range(2):
        with ls.watch(Mlp(), to=tmp_path / "run") as run:
            run.step(loss=1.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run-2"]


def test_a_kpi_that_is_no_number_is_named(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run:
        with pytest.raises(StateError, match="KPI 'loss' is not one number but Tensor"):
            run.step(loss=torch.zeros(3))
        assert run.current_step == 0


def test_a_kpi_cannot_take_the_name_of_a_column(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run") as run, pytest.raises(StateError, match="cannot be called 'time_s'"):
        run.step(time_s=1.0)


def test_a_schedule_that_records_nothing_is_refused() -> None:
    with pytest.raises(StateError, match="every=0 records no step"):
        ls.Schedule(every=0)
    with pytest.raises(StateError, match="stop=5 is not after start=10"):
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
assert run.kpis()["loss"] == [1.5]
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
