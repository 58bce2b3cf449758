"""Gaps of a trace: tensors that entered from outside torch although they depend on the inputs."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.arguments import rebuild
from layerscope.capture.torch.trace.execute import can_perturb, circumstances, has_values, perturbed, same
from layerscope.capture.torch.trace.memory import copy_of
from layerscope.capture.torch.trace.module_calls import is_compiled
from layerscope.capture.torch.trace.tracer import Tracer

_SOURCES = frozenset(("constant", "tensor", "as_tensor", "asarray"))  # nodes that may contain arbitrary values


class Repeat(NamedTuple):
    """What the trace called, so that it can be called again."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, tracer: Tracer) -> Any:  # Any: the result of the target
        """Call it again under a tracer."""
        return tracer.call(*self)

    def obstacle(self, *, asked: bool | None) -> str:
        """Why the forward cannot be repeated; empty if it can."""
        model = self.target if isinstance(self.target, nn.Module) else None
        if asked is False:
            return "validate(rerun=False)"
        if model is not None and any(map(is_compiled, model.modules())):
            return "a compiled model is not run again"
        if asked or model is not None or inspect.ismethod(self.target):
            return ""
        return "a function, of which no copy can be made, is run again only by validate(rerun=True)"

    def run(self, tracer: Tracer, change: Callable[[Tensor], Tensor]) -> Tracer:
        """Repeat the forward with other inputs, on a copy that shares the parameters that it does not write."""
        named = () if tracer.model is None else tracer.model.named_parameters()
        written = {name for names in tracer.graph.externals.written.values() for name in names}
        shared = {id(parameter): parameter for name, parameter in named if name not in written}
        target = copy.deepcopy(self.target, shared)

        def copied(value: Any, at: str) -> Any:
            if isinstance(value, Tensor):
                return value if id(value) in shared else change(value)
            other = rebuild(value, at, copied)
            return copy.deepcopy(value, shared) if other is value else other

        args, kwargs = copied(self.args, ""), copied(self.kwargs, "")
        model = target if isinstance(target, nn.Module) else None
        again = tracer.twin(model, keep=lambda facts, _: facts.name in _SOURCES)
        with _same_numbers(tracer), circumstances(tracer.graph.nodes[0]._replace(random_state=None), {}), again:
            again.call(target, args, kwargs)
        return again


def find_gaps(tracer: Tracer, repeat: Repeat | None, *, asked: bool | None) -> tuple[list[int], dict[int, str]]:
    """Nodes from outside that depend on the inputs, and those for which that is unknown, with the reason."""
    nodes, left = tracer.graph.nodes, tracer.graph.left_torch
    sources = [i for i, node in enumerate(nodes) if node.facts.name in _SOURCES and not node.parents + node.externals]
    changes: dict[int, bool] = {}  # whether a source changes with the inputs
    why = "a block cannot be run again" if repeat is None else repeat.obstacle(asked=asked)
    if sources and repeat is not None and not why:
        why = "the pass takes another way with other inputs"
        try:
            base = repeat.run(tracer, copy_of)
            for change in (_slightly, _strongly, _negated):
                if change is _negated and any(changes.values()):
                    continue
                for index, equal in _compared(tracer, base, repeat.run(tracer, change), sources):
                    changes[index] = changes.get(index, False) or not equal
            if any(changes.values()):  # some may differ between runs with the same inputs
                for index, equal in _compared(tracer, base, repeat.run(tracer, copy_of), sources):
                    if not equal:
                        del changes[index]
        except Exception as error:  # noqa: BLE001  whatever the user's model makes of other inputs
            why = f"run again it raised {type(error).__name__}: {error}"
    unknown = [index for index in sources if index not in changes]
    entered = [index for index in unknown if nodes[index].function is None or (left is not None and left <= index)]
    return [index for index in sources if changes.get(index)], dict.fromkeys(entered, why)


def _compared(first: Tracer, base: Tracer, other: Tracer, sources: list[int]) -> Iterator[tuple[int, bool]]:
    """Whether each source is equal in both runs, as far as their control flow is the same."""
    alike = 0
    for nodes in zip(first.graph.nodes, base.graph.nodes, other.graph.nodes, strict=False):
        if len({(node.facts.name, node.module.path, node.parents) for node in nodes}) > 1:
            break
        alike += 1
    one, two = base.graph.memory.values, other.graph.memory.values
    for index in sources:
        if index < alike and index in one and index in two and has_values(one[index]):
            yield index, same(one[index], two[index])


def _slightly(tensor: Tensor) -> Tensor:
    """Similar values, for which most models have the same control flow."""
    if not tensor.is_floating_point() or not can_perturb(tensor, "") or 0 in tensor.stride():
        return copy_of(tensor)
    other = _strongly(tensor)
    with torch.no_grad():
        target = other.detach()
        target.copy_(torch.where(tensor.isfinite(), tensor + (target - tensor) * 0.01, tensor))
    return other


def _negated(tensor: Tensor) -> Tensor:
    """Values in the reverse order: an argmax, which random values may leave as it was, becomes another one."""
    other = _strongly(tensor)
    if tensor.is_floating_point() and can_perturb(tensor, "") and 0 not in tensor.stride():
        with torch.no_grad():
            other.detach().copy_(-tensor)
    return other


def _strongly(tensor: Tensor) -> Tensor:
    return next(perturbed(tensor)) if can_perturb(tensor, "") else copy_of(tensor)


@contextmanager
def _same_numbers(tracer: Tracer) -> Iterator[None]:
    """A `with` block with torch's random state of the forward; restores those of Python and numpy."""
    state, numbers = random.getstate(), np.random.get_state()
    torch.set_rng_state(tracer.random_state)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numbers)
