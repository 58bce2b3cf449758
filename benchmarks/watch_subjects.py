"""What the watch benchmark trains, and how steps are compared; needs torch and transformers alone, as peers do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched
TOKENS, WIDTH, LAYERS, HEADS, LENGTH = 50257, 256, 6, 4, 64


class Training(NamedTuple):
    """A model, its optimizer, and how its loss comes about."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[], Tensor]

    def step(self) -> Tensor:
        """The loss of one more step of the training."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def gpt2() -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "use_cache": False}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).train()  # type: ignore[no-untyped-call]
    ids = torch.randint(0, TOKENS, (4, LENGTH))
    return Training(model, AdamW(model.parameters()), lambda: model(ids, labels=ids).loss)


class Transformer(nn.Module):
    """GPT-2's sizes in torch's own layers, for peers that cannot watch Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """The next token's logits at every place."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        embedded = self.tokens(ids) + self.places.weight
        logits: Tensor = self.head(self.layers(embedded, mask=mask, is_causal=True))
        return logits


def transformer() -> Training:
    model, ids = Transformer(), torch.randint(0, TOKENS, (4, LENGTH))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return Training(model, AdamW(model.parameters()), loss)


def mlp() -> Training:
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())][:-1]
    model, x, y = nn.Sequential(*layers), torch.randn(32, 64), torch.randn(32, 64)
    return Training(model, AdamW(model.parameters()), lambda: nn.functional.mse_loss(model(x), y))


SUBJECTS: dict[str, Callable[[], Training]] = {"GPT-2": gpt2, "torch's transformer": transformer, "MLP": mlp}


STEPS = {"GPT-2": 3, "torch's transformer": 3, "MLP": 100}  # in a row, before plain and watched ones change places


class Watched(NamedTuple):
    """A training step that somebody watches, and how to have them finish what they do beside it."""

    step: Callable[[], object]
    settle: Callable[[], object] = lambda: None


class Times(NamedTuple):
    """What steps took: in seconds, or against others."""

    cpu: float
    wall: float


def times(watched: Watched, steps: int) -> Times:
    """Seconds of a step, the mean of so many; the processor's of all threads, until nothing is left to be finished."""
    watched.step()  # the first one meets what others have left in the caches
    watched.settle()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        watched.step()
    wall = time.perf_counter() - began
    watched.settle()
    return Times((time.process_time() - began_cpu) / steps, wall / steps)


def against_plain(
    plain: Callable[[], object], watching: Callable[[], AbstractContextManager[Watched]], repeat: int, steps: int
) -> Times:
    """Medians of what watched steps took against the plain ones before and after, at which nobody listened."""
    ratios = []
    before = times(Watched(plain), steps)
    for _ in range(repeat):
        with watching() as watched:
            taken = times(watched, steps)
        after = times(Watched(plain), steps)
        ratios.append([2 * taken[i] / (before[i] + after[i]) for i in range(2)])
        before = after
    return Times(*(statistics.median(found) for found in zip(*ratios, strict=True)))
