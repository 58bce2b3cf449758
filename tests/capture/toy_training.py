"""A small network of the toy framework, trained and recorded into a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.model.records import Floats, Kind
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.capture.recording import record_with
from tests.capture.toy_framework import Module, Tensor, ToyListener, select

STEPS, RATE = 3, 0.1


class Linear(Module):
    def __init__(self, weight: Floats) -> None:
        self.weight = Tensor(weight, grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Block(Module):
    def __init__(self, weight: Floats) -> None:
        self.linear = Linear(weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        return hidden.tanh()


class Net(Module):
    def __init__(self, weights: dict[str, Floats]) -> None:
        self.first = Linear(weights["first"])
        self.block = Block(weights["block"])
        self.head = Linear(weights["head"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.block(x)
        x = x + self.block(x)
        output: Tensor = self.head(x)
        return output


def first_weights() -> dict[str, Floats]:
    random = np.random.default_rng(0)
    return {name: random.normal(size=size) for name, size in (("first", (4, 6)), ("block", (6, 6)), ("head", (6, 1)))}


def batch(step: int) -> Floats:
    return np.random.default_rng(step + 1).normal(size=(5, 4))


def train(folder: Path) -> None:
    model = Net(first_weights())
    selection = select(model, frozenset(Kind))
    with record_with(ToyListener, selection, 1, FolderSink(create(folder))) as run:
        for step in range(STEPS):
            x = run.record("x", Tensor(batch(step)), type="input")
            output = run.record("output", model(x))
            mean = Tensor(np.full((1, len(x.data)), 1 / len(x.data)))
            loss = run.record("loss", mean @ output.tanh(), type="loss", batch_dim=None)
            loss.backward()
            run.gradients("loss")
            for _, parameter in selection.named_parameters():
                assert parameter.grad is not None
                parameter.data = parameter.data - RATE * parameter.grad
                parameter.grad = None
            run.step(loss=loss.data.item())
