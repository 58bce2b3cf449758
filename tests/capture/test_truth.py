"""Watching changes nothing, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.optim import Optimizer
from torch.optim import optimizer as global_optimizer

import layerscope as ls
from layerscope.capture.core.recorder import Recorder
from tests.capture.models import MODELS
from tests.capture.training import differences, trained, unwatched


def varied_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
    """Six steps with accumulation, clipping and evaluation."""
    for _ in range(6):
        model.train()
        outputs = []
        for _ in range(2):
            outputs.append(model(torch.randn(4, 6)))
            outputs[-1].square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients = [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            evaluated = model.eval()(torch.randn(4, 6))
        yield [outputs, gradients, evaluated]


@pytest.mark.feature("E1")
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_watching_changes_no_bit_of_a_training(name: str, every: int, tmp_path: Path) -> None:
    plain = trained(MODELS[name], varied_loop, unwatched)
    watched = trained(
        MODELS[name], varied_loop, lambda m, o: ls.watch(m, o, to=tmp_path / "run", every=every, kinds="all")
    )
    assert differences(plain, watched) == []


@pytest.fixture
def tidy() -> Iterator[None]:
    """Fails when a test leaves a thread or a global hook behind."""
    threads, hooks = thread_names(), hooks_everywhere()
    yield
    gc.collect()
    assert thread_names() <= threads  # a thread of an earlier test's server may have ended meanwhile
    assert hooks_everywhere() <= hooks


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def hooks_everywhere() -> set[tuple[str, int]]:
    """The hooks that torch calls for every module and optimizer; those of an earlier test may end at any time."""
    registries: dict[str, dict[int, Any]] = {
        "forward": global_hooks._global_forward_hooks,
        "forward pre": global_hooks._global_forward_pre_hooks,
        "optimizer pre": global_optimizer._global_optimizer_pre_hooks,
        "optimizer post": global_optimizer._global_optimizer_post_hooks,
    }
    return {(name, number) for name, registry in registries.items() for number in registry}


def hooks_of(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]


def hooks_of_optimizer(optimizer: Optimizer) -> tuple[int, int]:
    return len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)


def attributes_of(model: nn.Module) -> list[list[str]]:
    return [sorted(vars(m)) for m in model.modules()]


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ending", ["close", "exception"])
def test_nothing_is_left_behind(name: str, ending: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks, attributes, optimizer_hooks = hooks_of(model), attributes_of(model), hooks_of_optimizer(optimizer)
    expected = pytest.raises(KeyError) if ending == "exception" else nullcontext()
    with expected, ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        run.step()
        if ending == "exception":
            raise KeyError("the user's own")
    assert hooks_of(model) == hooks
    assert attributes_of(model) == attributes
    assert hooks_of_optimizer(optimizer) == optimizer_hooks
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    assert ls.open(tmp_path / "run").status() == "finished"


@pytest.mark.parametrize("evaluation", [0, 16])
def test_an_idle_step_has_no_hook_in_place_but_the_one_that_waits_for_an_evaluation(
    evaluation: int, tmp_path: Path
) -> None:
    model = MODELS["mlp"]()
    before = len(global_hooks._global_forward_hooks)
    with ls.watch(model, to=tmp_path / "run", every=ls.Schedule(every=2, evaluation=evaluation)) as run:
        assert len(global_hooks._global_forward_hooks) > before
        run.step()
        assert len(global_hooks._global_forward_hooks) == before
        assert sum(hooks_of(model)) == len(model._forward_pre_hooks) == (1 if evaluation else 0)


def doubled(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output * 2


@pytest.mark.parametrize("own_hook", [False, True])
def test_a_model_can_be_copied_and_saved_while_it_is_watched(own_hook: bool, tmp_path: Path) -> None:
    model = MODELS["mlp"]()
    if own_hook:
        model.get_submodule("layers.0").register_forward_hook(doubled)
    before = hooks_of(model)
    with ls.watch(model, to=tmp_path / "run", every=1, kinds="all") as run:
        model(torch.randn(4, 6))
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        twin(torch.randn(4, 6))  # a copy, such as a moving average, is not the watched model
        run.step()
    assert hooks_of(twin) == before
    assert b"layerscope" not in file.getvalue()
    assert ls.open(tmp_path / "run").stats("layers.3", kind="output", stat="count")["count"] == [4 * 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True])
def test_a_compiled_model_trains_as_if_nobody_watched(inner: bool, tmp_path: Path) -> None:
    model = MODELS["mlp"]().eval()
    x = torch.randn(4, 6)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with ls.watch(model if inner else compiled, to=tmp_path / "run", every=2) as run:  # type: ignore[arg-type]
        for _ in range(3):
            assert torch.equal(compiled(x), model(x))
            run.step(loss=1.0)
    assert ls.open(tmp_path / "run").status() == "finished"


def test_disabled_by_the_environment_watch_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_DISABLED", "1")
    before = len(global_hooks._global_forward_hooks)
    with ls.watch(MODELS["mlp"](), to=tmp_path / "run") as run:
        assert isinstance(run, Recorder)
        assert len(global_hooks._global_forward_hooks) == before
        run.step(loss=1.0)
        run.note("unseen")
    assert not (tmp_path / "run").exists()
