"""Who keeps a recorder alive, and what it leaves behind when nobody does."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import layerscope as ls
from layerscope.capture.core.recorder import Recorder
from layerscope.errors import LayerscopeWarning
from tests.capture.models import Mlp
from tests.capture.test_truth import hooks_everywhere

OF_OTHERS: set[threading.Thread] = set()  # writers that earlier tests of the process left to the garbage collector


@pytest.fixture(autouse=True)
def only_own_writers() -> None:
    gc.collect()
    OF_OTHERS.clear()
    OF_OTHERS.update(writer_threads())


def writer_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("layerscope-writer")}


def writers() -> int:
    return len(writer_threads() - OF_OTHERS)


def wait_for_writers() -> None:
    until = time.monotonic() + 10
    while writers() and time.monotonic() < until:
        time.sleep(0.1)
    assert writers() == 0


def settle(model: nn.Module, folder: Path) -> None:
    """Watch the model again, which the recorder that nobody holds does not survive, and wait for all to end."""
    ls.watch(model, to=folder / "first").close()
    gc.collect()
    wait_for_writers()
    ls.watch(model, to=folder / "second").close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def train(run: Recorder | None, model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run is not None:
            run.step(loss=loss)


def texts(folder: Path) -> str:
    return " ".join(ls.open(folder).events()["text"])


def dropped_after_steps(folder: Path, model: nn.Module) -> None:
    train(ls.watch(model, to=folder, every=1), model)


def dropped_in_a_cycle(folder: Path, model: nn.Module) -> None:
    class Trainer:
        run: Recorder
        me: Trainer

    trainer = Trainer()
    trainer.me, trainer.run = trainer, ls.watch(model, to=folder, every=1)
    train(trainer.run, model)


def dropped_with_the_model(folder: Path, model: nn.Module) -> None:
    twin = copy.deepcopy(model)
    ls.watch(twin, to=folder, every=1)
    twin(torch.randn(4, 6))


def dropped_with_several_models(folder: Path, model: nn.Module) -> None:
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    ls.watch({"one": one, "other": other}, to=folder, every=1)
    other(one(torch.randn(4, 6))[:, :1].expand(4, 6))


def watched_again(folder: Path, model: nn.Module) -> None:
    ls.watch(model, to=folder, every=1)


@pytest.mark.parametrize(
    "drop",
    [dropped_after_steps, dropped_in_a_cycle, dropped_with_the_model, dropped_with_several_models, watched_again],
)
@pytest.mark.filterwarnings("ignore::layerscope.errors.LayerscopeWarning")
def test_recorders_dropped_without_close_leave_no_thread_file_or_hook(
    drop: Callable[[Path, nn.Module], None], tmp_path: Path
) -> None:
    model = Mlp()
    drop(tmp_path / "warm up", model)
    settle(model, tmp_path / "settled")
    threads, files, hooks = writers(), open_files(), hooks_everywhere()
    for number in range(10):
        drop(tmp_path / str(number), model)
    settle(model, tmp_path / "settled again")
    assert writers() == threads
    assert open_files() <= files
    assert hooks_everywhere() <= hooks
    for number in range(10):
        run = ls.open(tmp_path / str(number))
        assert run.status() == "finished"
        if drop in (dropped_after_steps, dropped_in_a_cycle):
            assert run.metrics()["step"] == [0, 1, 2]
            assert "close() was not called" in texts(tmp_path / str(number))


def test_a_recorder_that_nobody_holds_records_as_long_as_the_model_lives(tmp_path: Path) -> None:
    model = Mlp()
    ls.watch(model, to=tmp_path / "run", every=1)
    gc.collect()
    assert writers() == 1
    model(torch.randn(4, 6))
    model(torch.randn(4, 6))
    with pytest.warns(LayerscopeWarning, match=r"closed before its first step ended.*step\(\) once per optimizer step"):
        del model
        gc.collect()
    assert writers() == 0
    run = ls.open(tmp_path / "run")
    assert run.stats("layers.0", kind="output", stat="count")["count"] == [2 * 4 * 16]
    assert "Step 0 holds everything that was read until then" in texts(tmp_path / "run")


@pytest.mark.parametrize("every", [1, 1000])
def test_a_recorder_does_not_keep_its_model_alive(every: int, tmp_path: Path) -> None:
    model = Mlp()
    run = ls.watch(model, to=tmp_path / "run", every=every)
    train(run, model)
    ref = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert ref() is None  # at once, as without a recorder
    finally:
        gc.enable()
    run.step(loss=1.0)
    run.close()
    assert ls.open(tmp_path / "run").metrics()["step"] == [0, 1, 2, 3]


def test_a_recorder_collected_inside_the_store_is_closed_by_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mlp()
    run = ls.watch(model, to=tmp_path / "run", every=1)
    train(run, model)
    monkeypatch.setattr("layerscope.capture.core.recorder.is_interrupted", lambda: True)
    del run
    wait_for_writers()
    assert ls.open(tmp_path / "run").status() == "finished"


def test_a_recorder_collected_or_failing_while_torch_goes_through_its_hooks_does_not_disturb_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = hooks_everywhere()
    holder = [ls.watch(model, to=tmp_path / "collected", every=1)]
    holder[0].step()
    failing = ls.watch(model, to=tmp_path / "failing", every=1, kinds="weight_grad")
    monkeypatch.setattr(failing._listener._parameters, "_read_step", lambda optimizer: 1 / 0)  # type: ignore[attr-defined]
    after = register_optimizer_step_post_hook(lambda *args: holder.clear())
    last = register_optimizer_step_post_hook(lambda *args: None)
    model(torch.randn(4, 6)).sum().backward()
    with pytest.warns(LayerscopeWarning, match="ZeroDivisionError"):
        optimizer.step()
    after.remove()
    last.remove()
    failing.close()
    wait_for_writers()
    ls.watch(model, to=tmp_path / "next").close()
    assert hooks_everywhere() <= before
    assert ls.open(tmp_path / "collected").status() == "finished"


SCRIPT = """
import sys, threading, torch, layerscope as ls
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(run, steps):
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        if run is not None:
            run.step(loss=1.0)
{body}
"""
BODIES = {
    "no close": "run = ls.watch(model, optimizer, to=sys.argv[1], every=1)\ntrain(run, 5)",
    "one line": "ls.watch(model, optimizer, to=sys.argv[1], every=1)\ntrain(None, 5)",
    "exception": "run = ls.watch(model, optimizer, to=sys.argv[1], every=1)\ntrain(run, 5)\n1 / 0",
    "thread": (
        "run = ls.watch(model, optimizer, to=sys.argv[1], every=1)\n"
        "import time\n"
        "threading.Thread(target=lambda: (time.sleep(1.5), train(run, 5))).start()"
    ),
    "cycle": "run = ls.watch(model, optimizer, to=sys.argv[1], every=1)\nrun.me = run"
    if False
    else "model.run = ls.watch(model, optimizer, to=sys.argv[1], every=1)\ntrain(model.run, 5)",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_script_that_ends_without_close_keeps_what_it_had_and_says_what_was_missing(
    body: str, tmp_path: Path
) -> None:
    script = SCRIPT.format(body=BODIES[body])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == (1 if body == "exception" else 0), done.stderr
    run = ls.open(tmp_path / "run")
    assert run.status() == "finished"
    steps = run.stats("weight", kind="weight", stat="rms")["step"]
    if body == "one line":
        assert steps == [0]
        assert run.stats(kind="output", stat="count")["count"] == [5 * 2 * 4]
        assert "call step() once per optimizer step" in done.stderr
    else:
        assert steps == [0, 1, 2, 3, 4]
        assert run.metrics()["step"] == [0, 1, 2, 3, 4]
        assert "The program ended without close()" in texts(tmp_path / "run")
        assert "Layerscope" not in done.stderr


SPAWNED = """
import sys, torch, torch.multiprocessing as mp, layerscope as ls
def work(rank, folder):
    model = torch.nn.Linear(4, 4)
    run = ls.watch(model, to=f"{folder}/{rank}", every=1)
    model(torch.randn(2, 4)).sum().backward()
    run.step(loss=1.0)
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_spawned_ranks_that_do_not_close_keep_what_they_had(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(SPAWNED)
    subprocess.run([sys.executable, str(tmp_path / "ranks.py"), str(tmp_path)], check=True, timeout=300)
    for rank in range(2):
        run = ls.open(tmp_path / str(rank))
        assert run.status() == "finished"
        assert run.metrics()["step"] == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_hears_nothing_and_ends_without_touching_the_run(tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            model(torch.randn(4, 6))
            ok = not run._listener.has_heard()
            run.step(loss=3.0)
            run.note("unheard")
            ok = ok and run.current_step == 1 and not run.enabled
            del run
            gc.collect()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        train(run, model, 1)
    assert ls.open(tmp_path / "run").metrics()["step"] == [0]


def pickled(run: Recorder) -> Recorder:
    return pickle.loads(pickle.dumps(run))  # type: ignore[no-any-return]  # noqa: S301  our own bytes


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_recorder_records_nothing(copied: Callable[[Recorder], Recorder], tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        train(run, model, 2)
        with copied(run) as twin:
            twin.step(loss=9.0)
            twin.enabled = True
            assert (twin.enabled, twin.current_step, twin.path) == (False, 3, None)
        train(run, model, 1)
    assert ls.open(tmp_path / "run").metrics()["step"] == [0, 1, 2]


class Owner(Mlp):
    run: Recorder


def test_a_model_that_holds_its_recorder_can_be_copied_and_saved(tmp_path: Path) -> None:
    model = Owner()
    model.run = ls.watch(model, to=tmp_path / "run", every=1)
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert not twin.run.enabled
    assert not loaded.run.enabled
    train(model.run, model)
    train(twin.run, twin)
    model.run.close()
    assert ls.open(tmp_path / "run").stats("layers.0", kind="output", stat="count")["count"] == [4 * 16] * 3
