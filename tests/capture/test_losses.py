"""What each loss adds to the gradients of parameters, compared with `torch.autograd.grad` in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import layerscope as ls
from layerscope.capture.torch.listener import TorchListener
from layerscope.model.records import Kind
from tests.capture.naming import Recording, recording
from tests.capture.reference import statistics
from tests.capture.sinks import ListSink
from tests.capture.test_reading_points import watching
from tests.capture.training import differences, wrong

pytestmark = pytest.mark.feature("C5")
Sums = dict[tuple[str, str], Tensor]  # by name of the parameter and of the loss


def test_each_loss_has_its_own_gradient_of_a_weight(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).double()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        for _ in range(2):
            y = model(torch.ones(4, 3, dtype=torch.float64))
            y.sum().backward(retain_graph=True)
            run.gradients("a")
            (10 * y.sum()).backward()
            run.gradients("b")
            run.step()
            model.zero_grad()
    read = ls.open(tmp_path / "run")
    for step in (0, 1):
        means = [read.named().statistics(step, "weight", loss=loss)["mean"] for loss in ("a", "b")]
        assert means == [4, 40]
    assert read.stats("weight", kind="weight_grad", stat="mean")["mean"] == [44, 44]
    assert read.events()["text"] == ["Recording ended."]


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Shared(nn.Module):
    """Uses one layer inside two checkpoints and behind them."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.shared.weight
        self.reentrant = reentrant

    def _again(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        result: Tensor = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        return result

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs, one for each loss."""
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = torch.tanh(self._again(self.shared, x))
        result: Tensor = self.last(self.tied(x))
        return result


def update(optimizer: Optimizer, scaler: Any) -> None:
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def train(
    model: nn.Module, run: Any, *, parts: int = 1, zero: bool = False, scaler: Any = None
) -> tuple[Sums, list[Sums]]:
    """Everything that can be compared bit for bit, and of each step what each loss adds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = dict(model.named_parameters())
    bits: Sums = {}
    steps: list[Sums] = []
    torch.manual_seed(3)
    for step in range(3):
        added: Sums = {}
        optimizer.zero_grad()
        for part in range(parts):
            y = model(torch.randn(4, 6, dtype=next(model.parameters()).dtype))
            for number, loss in enumerate(("a", "b")):
                if zero:
                    optimizer.zero_grad()
                value = y[:, number].square().mean()
                if getattr(model, "reentrant", None) is not True:  # which does not work with it
                    parts_of = torch.autograd.grad(value, list(parameters.values()), retain_graph=True)
                    for name, gradient in zip(parameters, parts_of, strict=True):
                        added[name, loss] = added.get((name, loss), torch.zeros_like(gradient)) + gradient
                (value if scaler is None else scaler.scale(value)).backward(retain_graph=number == 0)
                if run is not None:
                    run.gradients(loss)
            for name, parameter in parameters.items():
                bits[f"{step} {part} {name}", "grad"] = gradient_of(parameter).clone()
        update(optimizer, scaler)
        bits |= {(f"{step} {name}", "weight"): parameter.detach().clone() for name, parameter in parameters.items()}
        steps.append(added)
        if run is not None:
            run.step()
    return bits, steps


def rows(sink: ListSink, step: int) -> dict[tuple[str, str], dict[str, float]]:
    """Statistics by parameter and loss."""
    found = {}
    for series in sink.series:
        if series.kind is Kind.TENSOR_GRAD:
            port, _, loss = series.port.partition("@")
            assert port == "weight_grad"
            values = {
                name: sink.stat(name, series.site, Kind.TENSOR_GRAD, step=step, port=series.port)
                for name in ("count", "mean", "mean_abs", "std", "rms", "norm", "min", "max", "zeros")
            }
            found[series.site, loss] = values
    return found


def check(sink: ListSink, steps: list[Sums]) -> None:
    for step, added in enumerate(steps):
        found = rows(sink, step)
        assert {("tied.weight", "a"), ("tied.weight", "b")} | added.keys() == found.keys()
        for key, gradient in added.items():
            expected = {name: value for name, value in statistics([gradient]).items() if name in found[key]}
            assert not wrong(found[key], expected), (step, key)
        assert found["tied.weight", "a"] == found["shared.weight", "a"]


KINDS = ("tensor_grad", "weight_grad")


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("zero", [False, True])
def test_the_parts_of_losses_are_those_of_autograd_and_the_training_is_unchanged(
    reentrant: bool | None, parts: int, zero: bool
) -> None:
    def make(reentrant: bool | None = reentrant) -> nn.Module:
        torch.manual_seed(1)
        return Shared(reentrant).double()

    plain, _ = train(make(), None, parts=parts, zero=zero)
    model = make()
    sink, run = watching(model, kinds=KINDS)
    with run:
        bits, _ = train(model, run, parts=parts, zero=zero)
    assert not differences({str(k): v for k, v in plain.items()}, {str(k): v for k, v in bits.items()})
    check(sink, train(make(None), None, parts=parts, zero=zero)[1])
    assert not sink.warnings()


def test_the_scale_of_a_scaler_is_divided_out() -> None:
    torch.manual_seed(1)
    model = Shared(None).double()
    sink, run = watching(model, kinds=KINDS)
    with run:
        _, steps = train(model, run, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    check(sink, steps)


def test_a_model_that_is_converted_after_watch_is_followed() -> None:
    torch.manual_seed(1)
    model = Shared(None)
    sink, run = watching(model, kinds=KINDS)
    with run:
        model.double()
        _, steps = train(model, run)
    check(sink, steps)


def test_a_recorded_parameter_has_one_gradient_for_each_loss_under_checkpointing() -> None:
    torch.manual_seed(1)
    model = Shared(True).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    with recording(model) as (sink, run):
        y = model(x)
        run.record("w", model.shared.weight, type="parameter", batch_dim=None)
        torch.autograd.grad(model.last(x[:, :5]).sum(), model.last.weight)
        y[:, 0].sum().backward(retain_graph=True)
        run.gradients("a")
        first = gradient_of(model.shared.weight).clone()
        y[:, 1].sum().backward()
        run.gradients("b")
        run.step()
    assert isinstance(sink, Recording)
    assert sink.infos()[0].losses == ("a", "b")
    assert torch.equal(torch.from_numpy(sink.value(0, "w", port="tensor@a").array), first)
    rest = torch.from_numpy(sink.value(0, "w", port="tensor@b").array)
    assert torch.allclose(first + rest, gradient_of(model.shared.weight), rtol=1e-14)


def test_a_training_that_names_no_loss_has_no_hooks_on_parameters_after_its_first_backward() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink, run = watching(model, optimizer, kinds="all")
    assert isinstance(run._listener, TorchListener)
    contributions = run._listener.named.contributions
    with run:
        for _ in range(3):
            run.record("x", torch.ones(2, 3))
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            assert not contributions._handles
            assert not contributions.waiting
            run.step()
            assert not contributions._handles
    assert not [series for series in sink.series if series.port.startswith("weight_grad@")]


def test_a_loss_that_is_named_late_is_told_apart_from_the_next_step_on() -> None:
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sink, run = watching(model, optimizer, kinds=KINDS)
    with run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3, dtype=torch.float64)).sum().backward()
            optimizer.step()
            run.gradients("a")
            run.step()
    (event,) = sink.warnings()
    assert "from the next recorded step on" in event.text
    assert sink.stat("mean", "weight", Kind.TENSOR_GRAD, step=1) == 4


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_under_ddp_a_row_says_that_it_was_read_before_reduction() -> None:
    model = DistributedDataParallel(nn.Linear(6, 2).double())
    sink, run = watching(model, kinds=KINDS)
    with run:
        _, steps = train(model, run)
    for step, added in enumerate(steps):
        found = rows(sink, step)
        for key, gradient in added.items():
            assert found[key]["mean"] == pytest.approx(float(gradient.mean()), rel=1e-12)
    assert {series.local for series in sink.series if series.kind is Kind.TENSOR_GRAD} == {"before reduction"}
    assert {series.local for series in sink.series if series.kind is Kind.WEIGHT_GRAD} == {""}
