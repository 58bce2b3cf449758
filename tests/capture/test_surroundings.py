"""Things that went wrong once: somebody else's machinery around a watched model."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import layerscope as ls
from layerscope.errors import LayerscopeWarning
from tests.capture.models import Mlp


def texts(folder: Path, level: str) -> list[str]:
    events = ls.open(folder).events()
    return [text for text, own in zip(events["text"], events["level"], strict=True) if own == level]


def test_nothing_of_the_training_loop_is_kept_alive(tmp_path: Path) -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> list[object]:
        with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
            x = torch.randn(4, 6)
            output = model(x)
            loss = output.square().mean()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            refs = [weakref.ref(tensor) for tensor in (x, output, loss)]
            del x, output, loss
            gc.collect()
            return [ref() for ref in refs]

    assert train() == [None, None, None]


@pytest.mark.parametrize("statistics", [None, lambda tensor: {"top": float(tensor.max())}])
def test_selective_checkpointing_keeps_its_gradients(statistics: object, tmp_path: Path) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, ::2]

    def policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        saved = (torch.ops.aten.clone.default, torch.ops.aten.max.default, torch.ops.aten.max.dim)
        return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE

    def inner(x: Tensor) -> Tensor:
        y = model[1](model[0](x)).clone()
        result: Tensor = model[2](y * y.max())
        return result

    def gradients() -> list[Tensor]:
        model.zero_grad()
        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731  one line says it
        checkpoint(inner, x, use_reentrant=False, context_fn=contexts).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    model = nn.Sequential(nn.Linear(8, 8), Cut(), nn.Linear(4, 2))
    x = torch.randn(4, 8, requires_grad=True)
    plain = gradients()
    with ls.watch(model, to=tmp_path / "run", every=1, kinds="all", statistics=statistics) as run:  # type: ignore[arg-type]
        watched = gradients()
        run.step()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_watched_model_can_be_traced_by_jit(tmp_path: Path) -> None:
    model = Mlp().eval()
    x = torch.randn(4, 6)
    with ls.watch(model, to=tmp_path / "run", every=1, kinds="all") as run:
        traced = torch.jit.trace(model, x, check_trace=False)  # which would call the model once more
        assert torch.equal(traced(x), model(x))
        run.step()
    assert ls.open(tmp_path / "run").stats("layers.3", kind="output", stat="count")["count"] == [12]


def test_a_module_called_backward_is_not_taken_for_a_gradient(tmp_path: Path) -> None:
    model = nn.ModuleDict({"backward": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1) as run:
        output = model["backward"](torch.randn(3, 4))
        scaler.scale(output.square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        run.step()
    (rms,) = ls.open(tmp_path / "run").stats("backward", kind="output", stat="rms")["rms"]
    assert rms == pytest.approx(float(output.detach().double().square().mean().sqrt()))


def test_micro_batches_under_a_scaler_are_recorded_without_its_factor(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds=["output_grad", "weight_grad"]) as run:
        for step in range(4):
            scaler.scale(model(torch.full((1, 1), 2.0)).sum()).backward()
            if step % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            run.step()
    read = ls.open(tmp_path / "run")
    assert read.stats(kind="output_grad", stat="rms")["rms"] == [1.0] * 4
    assert sorted(read.stats(kind="weight_grad", stat="rms")["rms"]) == [2.0, 2.0, 4.0, 4.0]
    assert not any("Inf" in text for text in texts(tmp_path / "run", "skipped"))


def test_a_name_given_in_a_recomputed_forward_is_not_counted_again(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def within(self, x: Tensor) -> Tensor:
            scores: Tensor = ls.attach("scores", self.inner(x))
            return scores.relu()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.within, x, use_reentrant=False)
            return result

    model = nn.Sequential(Named(), Named())
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        model(torch.randn(3, 4, requires_grad=True)).sum().backward()
        run.step()
    stats = ls.open(tmp_path / "run").stats("*scores*", kind="tensor", stat="count")
    assert dict(zip(stats["site"], stats["count"], strict=True)) == {"0.scores": 12, "1.scores": 12}


def test_forwards_in_threads_lose_nothing_where_modules_carry_hooks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: output * 1.0)
    with ls.watch(model, to=tmp_path / "run", every=1, kinds="output") as run:
        model(torch.randn(1, 2))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: model(torch.randn(1, 2)), range(400)))
        run.step()
    assert ls.open(tmp_path / "run").stats("0", stat="count")["count"] == [2 * 401]


def test_a_watch_that_fails_to_attach_leaves_no_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.capture.torch.parameters.Parameters.hooks", lambda *a: 1 / 0)
    before, threads = len(global_hooks._global_forward_hooks), threading.active_count()
    with pytest.raises(ZeroDivisionError):
        ls.watch(Mlp(), to=tmp_path / "run", every=1)
    assert len(global_hooks._global_forward_hooks) == before
    assert threading.active_count() == threads


def test_an_optimizer_without_room_for_hooks_is_followed_by_the_one_it_hands_its_steps_to(tmp_path: Path) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            self.param_groups = inner.param_groups

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.inner.step()

    model = Mlp()
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1) as run:
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        run.step()
    assert set(ls.open(tmp_path / "run").stats(kind="weight_grad")["phase"]) == {"optimizer"}


def test_an_interrupted_forward_is_forgotten(tmp_path: Path) -> None:
    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.times = 0

        def forward(self, x: Tensor) -> Tensor:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Linear(2, 2), Interrupted())
    run = ls.watch(model, to=tmp_path / "run", every=1)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(1, 2))
    model(torch.randn(1, 2))
    assert torch._C._len_torch_function_stack() == 0
    run.step()
    run.close()
    assert set(ls.open(tmp_path / "run").stats(kind="output", stat="rms")["site"]) == {"(model)", "0", "1"}


def test_a_recorder_closed_without_a_step_says_so(tmp_path: Path) -> None:
    model = Mlp()
    with (
        pytest.warns(LayerscopeWarning, match="closed before its first step"),
        ls.watch(model, to=tmp_path / "run", every=1),
    ):
        model(torch.randn(4, 6))


def test_gradients_that_are_gone_before_the_step_ends_are_missed_aloud(tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        model(torch.randn(4, 6)).sum().backward()
        model.zero_grad()
        run.step()
    assert any("before zero_grad" in text for text in texts(tmp_path / "run", "warning"))


def test_a_model_on_the_meta_device_is_listened_to_without_an_end(tmp_path: Path) -> None:
    model = Mlp().to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        for _ in range(2):
            model(torch.randn(4, 6, device="meta")).sum().backward()
            optimizer.step()
            run.step(loss=1.0)
    assert not any("stopped listening" in text for text in texts(tmp_path / "run", "warning"))
    assert ls.open(tmp_path / "run").metrics()["step"] == [0, 1]
