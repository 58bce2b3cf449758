"""Gradients, in every order in which optimizers, scalers, clipping, accumulation and `zero_grad` are put together.

The references come from a second training of the same model that nobody watches, without a scaler.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerscope.model.records import Kind, Phase
from tests.capture.training import mistakes, recorded, referenced, same_bits

FULL = os.environ.get("LAYERSCOPE_FULL") == "1"
STEPS = 3
SCALE = 1024.0  # a power of two, so that scaling rounds nothing

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}
WAYS: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True)
class Setting:
    optimizer: str
    way: str
    scaler: bool
    clipping: bool
    micro_batches: int
    zero_grad: str
    backwards: str
    residual: bool

    def __str__(self) -> str:
        return "-".join(str(value) for value in astuple(self))


CHOICES: list[tuple[Any, ...]] = [
    tuple(OPTIMIZERS),
    tuple(WAYS),
    (False, True),
    (False, True),
    (1, 3),
    ("before forward", "after step", "to zero"),
    ("one", "retain_graph", "two losses"),
    (False, True),
]


def pairs(setting: Setting) -> set[Any]:
    return set(itertools.combinations(enumerate(astuple(setting)), 2))


def every_pair(settings: list[Setting]) -> list[Setting]:
    """As few of the settings as a quick look finds, in which every two choices meet."""
    met: set[Any] = set()
    chosen = []
    for setting in random.Random(0).sample(settings, len(settings)):
        if pairs(setting) - met:
            met |= pairs(setting)
            chosen.append(setting)
    return chosen


EVERYTHING = [Setting(*choice) for choice in itertools.product(*CHOICES)]
SETTINGS = EVERYTHING if FULL else every_pair(EVERYTHING)


class Block(nn.Module):
    """Two layers, and with `residual` a way around them."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.branch = nn.Sequential(nn.Tanh(), nn.Linear(6, 6))
        self.last = nn.Linear(6, 2)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        inner = self.branch(hidden)
        result: Tensor = self.last(hidden + inner if self.residual else inner)
        return result


def backward(output: Tensor, setting: Setting, scaled: Callable[[Tensor], Tensor]) -> None:
    loss = output.square().mean() * 3
    if setting.backwards == "one":
        scaled(loss).backward()
        return
    scaled(loss).backward(retain_graph=True)
    second = loss if setting.backwards == "retain_graph" else (output - 1).abs().sum()
    scaled(second).backward()


def training(setting: Setting, *, scaler: bool, model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
    scaling = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaler)
    for _ in range(STEPS):
        if setting.zero_grad == "before forward":
            optimizer.zero_grad()
        for _ in range(setting.micro_batches):
            backward(model(torch.randn(5, 6, dtype=torch.float64)), setting, scaling.scale)
        if setting.clipping:
            scaling.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaling.step(optimizer)
        scaling.update()
        if setting.zero_grad != "before forward":
            optimizer.zero_grad(set_to_none=setting.zero_grad == "after step")
        yield None


@pytest.mark.feature("E6")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_gradients_are_those_of_an_unscaled_unwatched_training(setting: Setting) -> None:
    def make() -> nn.Module:
        return Block(residual=setting.residual).double()

    def optimizers(model: nn.Module) -> list[Optimizer]:
        return [OPTIMIZERS[setting.optimizer](model.parameters(), **WAYS[setting.way])]

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return training(setting, scaler=setting.scaler, model=model, optimizer=optimizer)

    def unscaled(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return training(setting, scaler=False, model=model, optimizer=optimizer)

    sink = same_bits(make, loop, optimizers)
    for step, parts in enumerate(referenced(make, unscaled, optimizers)):
        assert mistakes(recorded(sink, step), parts) == []
    assert {s.phase for s in sink.series if s.kind is Kind.WEIGHT_GRAD} == {Phase.OPTIMIZER}


def test_the_settings_tested_by_default_hold_every_pair_of_choices() -> None:
    def met(settings: list[Setting]) -> set[Any]:
        return set().union(*map(pairs, settings))

    assert met(every_pair(EVERYTHING)) == met(EVERYTHING)


def test_the_branch_and_the_way_around_it_are_told_apart() -> None:
    """By hand: the gradient of `h + tanh(h)` by h is 1 around the branch and 1 − tanh² through it."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branch = nn.Linear(3, 3).double(), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = self.first(x)
            result: Tensor = self.hidden + self.branch(self.hidden)
            return result

    hidden: list[Tensor] = []

    def loop(model: Split) -> Iterator[object]:
        model(torch.randn(4, 3, dtype=torch.float64)).sum().backward()
        hidden.append(model.hidden.detach())
        yield None

    rows = recorded(same_bits(Split, loop, lambda model: []), 0)
    through = 1 - hidden[0].tanh().square()
    by_kind = {key[2]: row["mean"] for key, row in rows.items() if key[0] == "branch"}
    assert by_kind[Kind.INPUT_GRAD] == pytest.approx(float(through.mean()), rel=1e-6)
    assert by_kind[Kind.OUTPUT_GRAD] == 1.0
    (total,) = [row["mean"] for key, row in rows.items() if key[0] == "first" and key[2] is Kind.OUTPUT_GRAD]
    assert total == pytest.approx(float((1 + through).mean()), rel=1e-6)
