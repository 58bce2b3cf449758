"""What loops do that makes watching hard: the training stays the same bit for bit, and the numbers are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from layerscope.model.records import Event, Kind, Mode
from tests.capture.models import Mlp
from tests.capture.training import checked, no_optimizer, recorded, same_bits, sites, steps, vectors

pytestmark = [pytest.mark.feature("E6"), pytest.mark.feature("E7")]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.inner = Mlp().layers
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return result.sin()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_each_forward_once_and_each_gradient(reentrant: bool) -> None:
    sink = checked(lambda: Checkpointed(reentrant=reentrant).double(), steps)
    assert {"first", "inner.0", "inner.3"} <= sites(sink, Kind.OUTPUT_GRAD)


def test_two_forwards_before_one_backward_are_added_up() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            one, other = model(vectors(4)), model(vectors(2))
            (one.square().mean() + other.sum()).backward()
            optimizer.step()
            yield [one, other]

    sink = checked(lambda: Mlp().double(), loop)
    row = recorded(sink, 1)["layers.0", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]
    assert (row["count"], row["merged"]) == (6 * 16, 2)


def test_a_graph_that_is_retained_gives_its_gradients_at_each_backward() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(vectors()).square().mean()
            for _ in range(3):
                loss.backward(retain_graph=True)
            optimizer.step()
            yield loss

    sink = checked(lambda: Mlp().double(), loop)
    assert recorded(sink, 0)["layers.0", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]["merged"] == 3


def test_a_gradient_of_a_gradient_can_be_trained_on() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            x = vectors().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
            slope.square().mean().backward()
            optimizer.step()
            yield slope

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    sink = same_bits(make, loop)
    assert sink.warnings() == []


def test_a_step_may_end_before_its_backward() -> None:
    """The gradients belong to the step in which they are computed, or are left out; nothing breaks."""

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(3):
            loss = model(vectors()).square().mean()
            yield loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    sink = same_bits(lambda: Mlp().double(), loop)
    assert sink.warnings() == []
    assert "layers.0.weight" in sites(sink, Kind.WEIGHT_GRAD)


class Tied(nn.Module):
    """Two layers with one weight; the first bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.two.weight = self.one.weight
        self.one.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.two(self.one(x).tanh()))
        return result


def test_shared_parameters_are_recorded_under_every_name_and_frozen_ones_have_no_gradient() -> None:
    sink = checked(lambda: Tied().double(), steps)
    shared = {"one.weight", "two.weight"}
    assert sites(sink, Kind.WEIGHT_GRAD) == {*shared, "two.bias", "last.weight", "last.bias"}
    assert sites(sink, Kind.WEIGHT) == {*shared, "one.bias", "two.bias", "last.weight", "last.bias"}


def test_layers_frozen_in_mid_training_lose_their_gradients_only() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        yield from steps(model, optimizer)
        optimizer.zero_grad()
        model.get_submodule("one").requires_grad_(False)
        yield from steps(model, optimizer)

    sink = checked(lambda: Tied().double(), loop)
    assert {k[0] for k in recorded(sink, 4) if k[2] is Kind.WEIGHT_GRAD} == {"two.bias", "last.weight", "last.bias"}


def gan() -> nn.Module:
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
    return nn.ModuleDict({"generator": generator, "critic": Mlp()}).double()


def gan_loop(model: nn.ModuleDict, of_critic: Optimizer, of_generator: Optimizer) -> Iterator[object]:
    generator, critic = model["generator"], model["critic"]
    for _ in range(3):
        fake = generator(torch.randn(4, 3, dtype=torch.float64))
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(vectors()).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        of_generator.step()
        yield loss


def test_two_optimizers_that_take_turns_each_show_the_gradients_they_applied() -> None:
    def optimizers(model: nn.Module) -> list[Optimizer]:
        critic, generator = model.get_submodule("critic"), model.get_submodule("generator")
        return [torch.optim.Adam(critic.parameters()), torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)]

    sink = checked(gan, gan_loop, optimizers)
    assert recorded(sink, 1)["critic.layers.3", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]["merged"] == 3
    assert {"critic.layers.0.weight", "generator.0.weight"} <= sites(sink, Kind.UPDATE)


def test_autocast_to_bfloat16_is_recorded_as_bfloat16() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(torch.randn(4, 6))
                loss = output.float().square().mean()
            loss.backward()
            optimizer.step()
            yield output

    sink = checked(Mlp, loop)
    assert {s.dtype for s in sink.series if (s.site, s.kind) == ("layers.0", Kind.OUTPUT)} == {"bfloat16"}
    assert {s.dtype for s in sink.series if s.kind is Kind.WEIGHT_GRAD} == {"float32"}


SCALE = 2.0**12


def scaled_loop(model: nn.Module, optimizer: Optimizer, *, overflow_at: int = -1) -> Iterator[object]:
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 6)).float().square().mean()
        if step == overflow_at:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss


def test_under_a_grad_scaler_gradients_are_recorded_unscaled_and_the_scale_is_kept() -> None:
    sink = checked(Mlp, scaled_loop, scale=SCALE)
    for summaries in sink.summaries():
        kinds = [sink.series[number].kind for number in summaries.series]
        scales = {kind: {summaries.scale[row] for row, k in enumerate(kinds) if k is kind} for kind in set(kinds)}
        assert scales[Kind.OUTPUT_GRAD] == scales[Kind.INPUT_GRAD] == {SCALE}
        assert scales[Kind.OUTPUT] == {1.0}


def test_a_step_that_the_grad_scaler_skipped_is_recorded_as_skipped() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return scaled_loop(model, optimizer, overflow_at=1)

    sink = same_bits(Mlp, loop)
    skipped = [record.step for record in sink.records if isinstance(record, Event) and record.level == "skipped"]
    assert skipped == [1]
    rows = {step: [row for k, row in recorded(sink, step).items() if k[2] is Kind.UPDATE] for step in range(3)}
    assert all(row["abs_max"] == 0 for row in rows[1])
    assert all(row["abs_max"] > 0 for step in (0, 2) for row in rows[step] if row["count"] > 3)


@pytest.mark.parametrize("ways", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_once_a_step_was_skipped_the_gradients_of_the_next_that_are_tell_which_was_not_finite(
    ways: dict[str, Any],
) -> None:
    """The last layer has a distance of 0 in its loss, whose derivative is NaN; all are reset before the step ends."""
    means: list[float] = []

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        scaler, last = torch.amp.GradScaler("cpu", init_scale=SCALE), model.get_parameter("layers.3.weight")
        means.clear()
        for step in range(4):
            loss = model(vectors()).square().mean()
            bias = torch.autograd.grad(loss, model.get_parameter("layers.0.bias"), retain_graph=True)
            means.append(float(bias[0].mean()))
            if step in (1, 2):
                loss = loss + (last - last.detach()).square().sum().sqrt()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            yield loss

    def rows(kind: Kind, step: int) -> dict[str, dict[str, float]]:
        return {site: row for (site, _, of, _), row in recorded(sink, step).items() if of is kind}

    sink = same_bits(lambda: Mlp().double(), loop, lambda model: [torch.optim.Adam(model.parameters(), **ways)])
    gradients = {step: rows(Kind.WEIGHT_GRAD, step) for step in (0, 2, 3)}
    broken = {step: [site for site, row in found.items() if row["nan"]] for step, found in gradients.items()}
    assert broken == {0: [], 2: ["layers.3.weight"], 3: []}
    for step, found in gradients.items():
        assert found["layers.0.bias"]["mean"] == pytest.approx(means[step], rel=1e-9)
    assert rows(Kind.WEIGHT, 2) == rows(Kind.WEIGHT, 1)


def test_gradients_accumulated_over_steps_are_recorded_as_they_stand() -> None:
    """The user may end a step after each micro-batch: without an update, `.grad` is read when the step ends."""

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for micro in range(6):
            output = model(vectors())
            output.square().mean().backward()
            if micro % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            yield output

    checked(lambda: Mlp().double(), loop)


@pytest.mark.parametrize("place", ["before forward", "after forward", "after step", "through the model", "to zero"])
def test_zero_grad_may_stand_anywhere(place: str) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(3):
            if place == "before forward":
                optimizer.zero_grad()
            output = model(vectors())
            if place == "after forward":
                optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
            if place == "after step":
                optimizer.zero_grad()
            elif place == "through the model":
                model.zero_grad()
            elif place == "to zero":
                optimizer.zero_grad(set_to_none=False)
            yield output

    checked(lambda: Mlp().double(), loop)


def test_gradients_without_an_optimizer_are_recorded() -> None:
    def loop(model: nn.Module) -> Iterator[object]:
        for _ in range(2):
            model.zero_grad()
            output = model(vectors())
            output.square().mean().backward()
            yield output

    checked(lambda: Mlp().double(), loop, no_optimizer)


def halved(module: nn.Module, of_inputs: Any, of_outputs: Any) -> Any:  # Any: torch's own tuples of tensors and None
    return (of_inputs[0] * 0.5,)


def test_a_hook_of_the_users_that_changes_a_gradient_keeps_its_effect() -> None:
    def make() -> nn.Module:
        model = Mlp().double()
        first, last = model.get_submodule("layers.0"), model.get_submodule("layers.3")
        last.register_full_backward_hook(halved)
        first.register_forward_hook(lambda module, args, output: output * 2)
        first.get_parameter("weight").register_hook(lambda gradient: gradient * 3)
        return model

    sink = same_bits(make, steps)
    assert sink.warnings() == []
