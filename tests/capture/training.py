"""One training three times: plain, watched, and with references. The bits must not differ, the numbers must agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerscope.model import summary_spec
from layerscope.model.records import Kind
from layerscope.stats import derived
from tests.capture.reference import Key, Parts, Reference, in_context, mapped, statistics
from tests.capture.sinks import ListSink
from tests.capture.test_reading_points import watching

Make = Callable[[], nn.Module]
Optimizers = Callable[[nn.Module], list[Optimizer]]
#: The user's loop: gets the model and its optimizers, and yields at the end of each step what is to be compared.
Loop = Callable[..., Iterator[object]]

#: Of these no number can be foreseen, but what is recorded may be there.
OPTIONAL = {Kind.UPDATE, Kind.TENSOR, Kind.TENSOR_GRAD}
EXACT = {"count", "zeros", "subnormal", "nan", "pos_inf", "neg_inf", "merged"}


class Stepped(Protocol):
    def step(self) -> None: ...
    def context(self, name: str) -> AbstractContextManager[None]: ...


_around: list[Stepped | None] = []  # the training in progress
Around = Callable[[nn.Module, list[Optimizer]], AbstractContextManager[Stepped | None]]


def unwatched(model: nn.Module, optimizers: list[Optimizer]) -> AbstractContextManager[None]:
    return nullcontext()


def adamw(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=0.01)]


def sgd(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.01)]


def no_optimizer(model: nn.Module) -> list[Optimizer]:
    return []


def trained(make: Make, loop: Loop, around: Around, optimizers: Optimizers = adamw) -> dict[str, Tensor]:
    """Everything a training can be compared by, bit for bit."""
    torch.manual_seed(7)
    model = make()
    several = optimizers(model)
    kept: dict[str, Tensor] = {}

    def keep(name: str, value: object) -> None:
        mapped(value, name, lambda port, tensor: kept.update({port: tensor.detach().clone()}))

    with around(model, several) as run:
        _around.append(run)
        for step, result in enumerate(loop(model, *several)):
            keep(f"step {step} result", result)
            keep(f"step {step} grad", {name: p.grad for name, p in model.named_parameters()})
            keep(f"step {step} state", dict(model.state_dict()))
            for optimizer in several:
                states = [dict(optimizer.state.get(p, {})) for group in optimizer.param_groups for p in group["params"]]
                keep(f"step {step} {type(optimizer).__name__}", states)
            keep(f"step {step} random state", torch.get_rng_state())
            if run is not None:
                run.step()
    _around.clear()
    return kept


def context(name: str) -> AbstractContextManager[None]:
    """The context of that name of whoever is around the training, for its loop."""
    return nullcontext() if _around[0] is None else _around[0].context(name)


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of what is not the same bit for bit."""
    return [name for name in one | other if not (name in one and name in other and _same(one[name], other[name]))]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.is_sparse or other.is_sparse:
        return one.is_sparse == other.is_sparse and _same(one.to_dense(), other.to_dense())
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def same_bits(make: Make, loop: Loop, optimizers: Optimizers = adamw) -> ListSink:
    """The recording of all kinds of a training that comes out, bit for bit, as without it."""
    sinks: list[ListSink] = []

    def watched(model: nn.Module, several: list[Optimizer]) -> AbstractContextManager[Stepped]:
        sink, run = watching(model, several or None, kinds="all")
        sinks.append(sink)
        return run

    plain = trained(make, loop, unwatched, optimizers)
    changed = differences(plain, trained(make, loop, watched, optimizers))
    assert not changed, f"watching changed {changed}"
    return sinks[0]


def checked(
    make: Make, loop: Loop, optimizers: Optimizers = adamw, *, reference_loop: Loop | None = None, scale: float = 1.0
) -> ListSink:
    """The recording of a training that it did not change, after all its numbers were compared with the references."""
    sink = same_bits(make, loop, optimizers)
    steps = referenced(make, reference_loop or loop, optimizers, scale)
    for step, parts in enumerate(steps):
        lines = mistakes(recorded(sink, step), parts)
        assert not lines, "\n".join([f"in step {step}:", *lines])
    return sink


def referenced(make: Make, loop: Loop, optimizers: Optimizers = adamw, scale: float = 1.0) -> list[Parts]:
    """What plain PyTorch shows of each step."""
    references: list[Reference] = []

    def around(model: nn.Module, several: list[Optimizer]) -> Reference:
        references.append(Reference(model, several, scale))
        return references[0]

    trained(make, loop, around, optimizers)
    return references[0].steps


def recorded(sink: ListSink, step: int) -> dict[Key, dict[str, float]]:
    """All statistics of one step by site, port, kind and mode; aliases are followed."""
    found: dict[Key, dict[str, float]] = {}
    for summaries in (s for s in sink.summaries() if s.step == step):
        place = {int(number): row for row, number in enumerate(summaries.series)}
        owner = [place[int(alias)] if alias >= 0 else row for row, alias in enumerate(summaries.alias)]
        moments = summaries.moments[owner]
        of_moment = dict(zip(summary_spec.MOMENTS, moments.T, strict=True))
        columns: dict[str, Any] = {name: derived.statistic(name, of_moment.__getitem__) for name in derived.STATS}
        columns["merged"] = summaries.merged
        for row, number in enumerate(summaries.series):
            series = sink.series[number]
            key = (in_context(series.site, series.context), series.port, series.kind, series.mode)
            assert key not in found, f"{key} was recorded twice, as {series}"
            found[key] = {name: float(values[row]) for name, values in columns.items()}
    return found


def mistakes(found: dict[Key, dict[str, float]], parts: Parts) -> list[str]:
    """What is missing, was recorded without being there, or is wrong, one line each."""
    lines = [f"missing: {_text(key)}" for key in parts if key not in found]
    lines += [f"not there: {_text(key)}" for key in found if key not in parts and not _may_be_there(key, parts)]
    for key in parts.keys() & found.keys():
        lines += [f"{_text(key)} {line}" for line in wrong(found[key], statistics(parts[key]))]
    return sorted(lines)


def wrong(found: dict[str, float], expected: dict[str, float]) -> list[str]:
    """The statistics that differ by more than rounding in float64 explains."""
    size = expected["rms"] if math.isfinite(expected["rms"]) else 0.0
    lines = []
    for name, value in expected.items():
        rounding = (1e-9 if name in ("mean", "std") else 1e-15) * size
        near = 0.0 if name in EXACT else 1e-6 * abs(value) + rounding
        narrow = name == "std" and value < 1e-6 * size  # which is said to be NaN
        if not (narrow or (math.isnan(value) and math.isnan(found[name])) or abs(found[name] - value) <= near):
            lines.append(f"{name}: {found[name]!r}, not {value!r}")
    return lines


def _may_be_there(key: Key, parts: Parts) -> bool:
    site, port, kind, mode = key
    if kind in (Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD_NORM):  # of a single number, which has no samples
        gradients = parts.get((site, port, Kind(kind.value.removesuffix("_norm")), mode), [])
        return any(gradient.dim() == 0 for gradient in gradients)
    return kind in OPTIONAL


def _text(key: Key) -> str:
    site, port, kind, mode = key
    return f"{kind.value} {site} {port} ({mode.value})"


def vectors(samples: int = 4) -> Tensor:
    return torch.randn(samples, 6, dtype=torch.float64)


def steps(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
    """The usual loop over vectors."""
    for _ in range(3):
        optimizer.zero_grad()
        output = model(vectors())
        output.square().mean().backward()
        optimizer.step()
        yield output


def sites(sink: ListSink, kind: Kind) -> set[str]:
    return {series.site for series in sink.series if series.kind is kind}
