"""Autograd graphs that are hard to follow: the training stays the same bit for bit, and the gradients are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import Optimizer

from layerscope.model.records import Kind, Mode
from tests.capture.training import checked, mistakes, recorded, referenced, same_bits, sites, steps, vectors

pytestmark = [pytest.mark.feature("E6"), pytest.mark.feature("E7")]
LAST = torch.channels_last


class Applied(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Between(nn.Module):
    """A layer, the module that is tried, and another layer."""

    def __init__(self, inner: nn.Module, after: Callable[[Any], Tensor] = lambda value: value) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), inner, nn.Linear(6, 2)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.after(self.inner(self.first(x))))
        return result


class Doubled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


INNER: dict[str, Callable[[Tensor], Tensor]] = {
    "used three times": lambda x: x * x + x,
    "written in place": lambda x: x.mul_(2).sin(),
    "given back written in place": lambda x: x.tanh_(),
    "given back as a view": lambda x: x.view(-1, 2, 3).view(-1, 6),
    "partly used": lambda x: torch.cat([x[:, :3], x[:, :3].detach()], 1),
    "detached": lambda x: x.detach() * 2,
    "a leaf beside it": lambda x: x + torch.ones(6, dtype=x.dtype, requires_grad=True),
    "custom function": lambda x: Doubled.apply(x),  # type: ignore[no-untyped-call]  # torch's own
    "without gradients": lambda x: x.sign(),
}


@pytest.mark.parametrize("name", INNER)
def test_what_flows_back_through_a_module_is_that_of_its_inside(name: str) -> None:
    checked(lambda: Between(Applied(INNER[name])).double(), steps)


@pytest.mark.parametrize("inner", [nn.Identity(), nn.Flatten(), nn.Dropout(0.0)], ids=lambda m: type(m).__name__)
def test_a_module_that_gives_its_input_back_passes_the_gradient_on(inner: nn.Module) -> None:
    sink = checked(lambda: Between(inner).double(), steps)
    assert "inner" in sites(sink, Kind.INPUT_GRAD)


def test_of_several_outputs_only_those_that_are_used_have_gradients() -> None:
    sink = checked(
        lambda: Between(Applied(lambda x: x.chunk(2, 1)), lambda parts: parts[0].repeat(1, 2)).double(), steps
    )
    graded = {series.port for series in sink.series if (series.site, series.kind) == ("inner", Kind.OUTPUT_GRAD)}
    assert graded == {"output.0"}


def test_outputs_that_are_written_in_place_later_keep_the_gradient_of_before() -> None:
    def squashed(value: Tensor) -> Tensor:
        value.mul_(3)
        value[:, 0] = 0.0
        return value.tanh_()

    checked(lambda: Between(nn.Linear(6, 6), squashed).double(), steps)


def test_one_tensor_given_as_query_key_and_value_has_one_gradient() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 4)
            self.layer = nn.TransformerEncoderLayer(
                4, 2, 8, batch_first=True, bias=False
            )  # a bias of the key would get rounding only

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(self.first(x.view(-1, 3, 2)))
            return result

    sink = checked(lambda: Attending().double(), steps)
    rows = recorded(sink, 0)
    norms = {rows["layer.self_attn", f"input.{i}", Kind.INPUT_GRAD, Mode.TRAIN]["norm"] for i in range(3)}
    assert len(norms) == 1


def test_an_input_that_is_a_leaf_has_a_gradient() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            x = vectors().requires_grad_()
            model(x).square().mean().backward()
            optimizer.step()
            yield x.grad

    sink = checked(lambda: Between(nn.Tanh()).double(), loop)
    assert {"(model)", "first"} <= sites(sink, Kind.INPUT_GRAD)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x).tanh()
        return self.one(x), self.two(x)


@pytest.mark.parametrize("backwards", ["apart", "one only", "by autograd.grad"])
def test_heads_with_losses_of_their_own_share_a_trunk(backwards: str) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            one, two = model(vectors())
            if backwards == "by autograd.grad":
                torch.autograd.grad(one.sum(), [model.get_parameter("one.weight")], retain_graph=True)
            one.square().mean().backward(retain_graph=True)
            if backwards == "apart":
                two.sum().backward()
            optimizer.step()
            yield [one, two]

    if backwards != "by autograd.grad":  # which reaches the head's output, but no zero that is added to it
        checked(lambda: TwoHeads().double(), loop)
        return
    sink = same_bits(lambda: TwoHeads().double(), loop)
    row = recorded(sink, 0)["one", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]
    assert row["merged"] in (1, 2)


def test_parametrised_weights_are_recorded_as_they_are_kept() -> None:
    def make() -> nn.Module:
        model = Between(nn.Tanh())
        parametrizations.weight_norm(model.first)
        return model.double()

    sink = checked(make, steps)
    assert "first.parametrizations.weight.original1" in sites(sink, Kind.WEIGHT_GRAD)


def test_per_sample_gradients_by_vmap_run_as_without() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            parameters = {name: p.detach() for name, p in model.named_parameters()}

            def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
                result: Tensor = torch.func.functional_call(model, values, (x[None],)).square().mean()
                return result

            per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, vectors())
            yield per_sample
            yield from steps(model, optimizer)

    same_bits(lambda: Between(nn.Tanh()).double(), loop)


def test_tensors_in_other_memory_orders_are_read_whole() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
        for parameter in (p for p in model.parameters() if p.dim() == 4):
            parameter.data = parameter.data.to(memory_format=LAST)
        return model

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            output = model(torch.randn(2, 3, 6, 6, dtype=torch.float64).to(memory_format=LAST))
            output.transpose(1, 3)[:, ::2].square().mean().backward()
            optimizer.step()
            yield output

    checked(make, loop)


@pytest.mark.parametrize("with_pauses", [False, True])
def test_a_scale_that_changes_at_every_step_is_followed(with_pauses: bool) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return scaled(model, optimizer, enabled=True)

    def unscaled(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return scaled(model, optimizer, enabled=False)

    def scaled(model: nn.Module, optimizer: Optimizer, *, enabled: bool) -> Iterator[object]:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1, enabled=enabled)
        for step in range(4):
            optimizer.zero_grad()
            output = model(vectors())
            scaler.scale(output.square().mean()).backward()
            if with_pauses and step % 2:  # the user leaves the update out
                yield output
                continue
            scaler.step(optimizer)
            scaler.update()
            yield output

    def make() -> nn.Module:
        return Between(nn.Tanh()).double()

    sink = same_bits(make, loop)
    of_modules = (Kind.OUTPUT_GRAD, Kind.INPUT_GRAD, Kind.OUTPUT_GRAD_NORM, Kind.INPUT_GRAD_NORM)
    for step, parts in enumerate(referenced(make, unscaled)):
        expected = {key: tensors for key, tensors in parts.items() if key[2] in of_modules}
        found = {key: row for key, row in recorded(sink, step).items() if key[2] in of_modules}
        assert mistakes(found, expected) == []
