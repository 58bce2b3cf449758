"""Executing one recorded call again, under the circumstances of the first time, leaving nothing changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from layerscope.capture.torch.trace.arguments import put_together
from layerscope.capture.torch.trace.functions import writes
from layerscope.capture.torch.trace.graph import Graph
from layerscope.capture.torch.trace.nodes import Node
from layerscope.capture.torch.trace.ops import results_of
from layerscope.capture.torch.trace.places import copy_of


class Lost(Exception):
    """A value that a call needs was not kept."""


def execute(graph: Graph, node: Node, value_of: Callable[[int], Tensor]) -> list[Tensor]:
    """The results of a node's call, computed from the values that `value_of` gives for its parents."""
    assert node.function is not None
    fetch = _fetcher(graph, node, value_of)
    args, kwargs = put_together(node.args, node.kwargs, fetch)
    loud, quiet = writes(node.facts, args, kwargs)
    if loud or quiet:
        copies = {
            id(tensor): copy_of(tensor).detach() for tensor in (*loud, *quiet)
        }  # autograd lets no leaf be written
        args, kwargs = put_together(node.args, node.kwargs, lambda at: copies.get(id(fetch(at)), fetch(at)))
        loud = [copies[id(tensor)] for tensor in loud]
    with circumstances(node, kwargs):
        return results_of(node.function(*args, **kwargs), loud)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep other recorders from seeing what happens, and the user's random numbers as they are."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings(), _disable_current_modes():
            warnings.simplefilter("ignore")  # they were given the first time
            yield
    finally:
        torch.set_rng_state(state)
        for mode in reversed(modes):
            _push_mode(mode)


def pairs_of(pairs: tuple[int | str, ...]) -> dict[str, int]:
    """Argument → number, from the flat form."""
    return {str(at): int(number) for at, number in zip(pairs[::2], pairs[1::2], strict=True)}


def _fetcher(graph: Graph, node: Node, value_of: Callable[[int], Tensor]) -> Callable[[str], Tensor]:
    parents, externals = pairs_of(node.parents), pairs_of(node.externals)

    def fetch(at: str) -> Tensor:
        if at in parents:
            return value_of(parents[at])
        external = graph.externals.all[externals[at]]
        if external.value is None:
            raise Lost(f"{external.name} was written later, and values are not kept")
        if external.is_changed:
            raise Lost(f"{external.name} has changed since")
        return external.value

    return fetch


@contextmanager
def circumstances(node: Node, kwargs: dict[str, Any]) -> Iterator[None]:
    """Grad mode, autocast and random numbers as they were."""
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(node.grad_mode))
        for part in node.autocast.split(",") if node.autocast else ():
            kind, dtype = part.split(":")
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype), cache_enabled=False))
        if node.random_state is not None:
            generator = kwargs.get("generator") or torch.default_generator
            stack.callback(generator.set_state, generator.get_state())
            generator.set_state(node.random_state)
        yield
