"""What each backward adds to the gradients of parameters, read before it is added to `.grad`.

Pre-hooks on the nodes that accumulate gradients see just that, after the parameter's own hooks and before any reduction
over processes; `torch.autograd.grad`, which accumulates nothing, passes them by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from layerscope.capture.named import Entry
from layerscope.capture.torch.gradients import edge_of
from layerscope.capture.torch.guard import Guard
from layerscope.stats.torch import is_wrapper

Sums = dict[Tensor, Tensor]  # by parameter


class Contributions:
    """The sums of contributions to parameters' gradients: those whose loss is not known yet, and those of each loss.

    A contribution is held, not copied: autograd then makes `.grad` a copy, where it would have taken the tensor itself.
    """

    def __init__(self, guard: Guard, arrive: Callable[[], None]) -> None:
        self._guard = guard
        self._arrive = arrive  # called before a contribution is added to those that are waiting
        self._nodes: dict[Tensor, Node] = {}
        self._handles: list[RemovableHandle] = []
        self.waiting: Sums = {}
        self.of_loss: dict[str, Sums] = {}
        self.recorded: dict[Tensor, list[Entry]] = {}  # parameters that were recorded by name in the step
        self.is_named: bool | None = None  # whether the training names its losses; None: not known yet

    def end_backwards(self) -> None:
        """An optimizer steps, or the step ends: a training that has named no loss by then does not name any."""
        if self.is_named is None:
            self.is_named = False
        if not (self.is_named or self.recorded):
            self.start_over()

    def start_over(self) -> None:
        """Forget the step, and take every hook away."""
        self.recorded.clear()
        self._nodes.clear()
        while self._handles:
            self._handles.pop().remove()
        self.waiting, self.of_loss = {}, {}

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Hear of the parameters' gradients for the rest of the step."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # vmap and grad build graphs of their own, in which a parameter has no node
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf and not (is_lazy(parameter) or is_wrapper(parameter)):
                with torch.inference_mode(mode=False):  # in which nothing has a node
                    node, _ = edge_of(parameter)
                if self._nodes.get(parameter) is not node:
                    self._nodes[parameter] = node  # which lives only as long as somebody holds it
                    self._handles.append(node.register_prehook(partial(self._hear, parameter)))

    def look_again(self) -> None:
        """Follow the same parameters by the nodes they have now: `.double()` replaces them, for one."""
        self.follow(list(self._nodes))

    def name(self, loss: str) -> Sums:
        """Count what is waiting as of a loss, and give it."""
        named, self.waiting = self.waiting, {}
        if named:
            total = self.of_loss.setdefault(loss, {})
            for parameter, gradient in named.items():
                _add(total, parameter, gradient)
        return named

    def _hear(self, parameter: Tensor, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            self._guard.run(self._take, parameter, gradients[0])

    def _take(self, parameter: Tensor, gradient: Tensor) -> None:
        self._arrive()
        _add(self.waiting, parameter, gradient.detach().clone() if gradient.requires_grad else gradient)


def _add(sums: Sums, parameter: Tensor, gradient: Tensor) -> None:
    """Checkpointing may bring several parts of one gradient, and several micro-batches are of one loss."""
    with torch.no_grad():
        sums[parameter] = sums[parameter] + gradient if parameter in sums else gradient
