"""The smallest framework that can be recorded: numpy tensors with reverse-mode autograd, modules, and hooks on both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from layerscope.capture.core.framework import Framework, GradientEdge, Targets
from layerscope.capture.core.listener import ModelListener
from layerscope.model.patterns import ROOT
from layerscope.model.records import Floats, Kind, ModuleNode
from layerscope.stats.kernel import format_number

HOOKS: list[Any] = []
TRACES: list[Operations] = []
STATE = SimpleNamespace(made=0, running=-1, after=[])


class Tensor:
    def __init__(self, data: Any, parents: Sequence[Tensor] = (), backs: Sequence[Any] = (), *, grad: bool = False):
        self.data: Floats = np.array(data, np.float64, order="C")
        self.parents, self.backs = tuple(parents), tuple(backs)  # what it is made of, and how gradients go there
        self.requires_grad: bool = grad or any(parent.requires_grad for parent in parents)
        self.grad: Floats | None = None
        self.hooks: list[Any] = []
        self.node_hooks: list[Any] = []
        self.number = STATE.made = STATE.made + 1
        for operations in TRACES if parents else ():
            operations.add(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        a, b = self.data, other.data
        return Tensor(a @ b, (self, other), (lambda g: g @ b.T, lambda g: a.T @ g))

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.data + other.data, (self, other), (lambda g: g, lambda g: g))

    def tanh(self) -> Tensor:
        value = np.tanh(self.data)
        return Tensor(value, (self,), (lambda g: g * (1 - value * value),))

    def backward(self) -> None:
        STATE.running = self.number
        gradients = {self: np.ones_like(self.data)}
        while gradients:
            tensor = max(gradients, key=lambda waiting: waiting.number)
            gradient = gradients.pop(tensor)
            for listen in tuple(tensor.hooks):
                listen(Tensor(gradient))
            if not tensor.parents:
                tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
            flows = [Tensor(back(gradient)) for back in tensor.backs]
            for listen_flows in tensor.node_hooks:
                listen_flows(flows)
            for parent, flow in zip(tensor.parents, flows, strict=True):
                if parent.requires_grad:
                    gradients[parent] = gradients.get(parent, 0) + flow.data
        while STATE.after:
            STATE.after.pop()()
        STATE.running = -1


class Module:
    training = True
    forward: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for forwards in HOOKS:
            forwards.before_module(self, args, sys._getframe())
        output = self.forward(*args, **kwargs)
        for forwards in HOOKS:
            forwards.after_module(self, output, sys._getframe())
        return output

    def named(self, kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
        if kind is Module:
            yield prefix or ROOT, self
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.named(kind, f"{prefix}.{name}".strip("."))
            elif isinstance(value, kind):
                yield f"{prefix}.{name}".strip("."), value


class Operations(list[Tensor]):
    trouble = None

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__(inputs)
        TRACES.append(self)

    def node_of(self, tensor: Tensor) -> int | None:
        return self.index(tensor) if tensor in self else None

    def add(self, tensor: Tensor) -> int:
        if tensor not in self:
            self.append(tensor)
        return self.index(tensor)

    def parents(self, node: int) -> list[int]:
        return [self.index(parent) for parent in self[node].parents if parent in self]

    def parameters(self, node: int) -> list[Tensor]:
        return [parent for parent in self[node].parents if parent not in self]

    def leave(self) -> None:
        TRACES[:] = [trace for trace in TRACES if trace is not self]


class ToyFramework(Framework):
    tensor_type = Tensor
    version = staticmethod(lambda tensor: 0)  # nothing here writes into a tensor
    array = staticmethod(lambda tensor: tensor.data)
    in_place = staticmethod(lambda tensor: [tensor.data.ctypes.data, tensor.data.size, format_number("float64")])
    norms = staticmethod(lambda gradient: Tensor(np.linalg.norm(gradient.data.reshape(len(gradient.data), -1), axis=1)))
    requires_grad = staticmethod(lambda tensor: tensor.requires_grad)
    is_leaf = staticmethod(lambda tensor: not tensor.parents)
    backward = staticmethod(lambda: STATE.running)
    next_node = staticmethod(lambda: STATE.made + 1)
    edge = staticmethod(lambda tensor: GradientEdge(tensor, 0))
    node_number = staticmethod(lambda node: node.number)
    next_edges = staticmethod(lambda node: [(parent, 0) for parent in node.parents])
    on_node = staticmethod(lambda node, listen: node.node_hooks.append(listen))
    after_backward = staticmethod(lambda call: STATE.after.append(call))
    trace_forward = staticmethod(lambda module, args, kwargs, frame: Operations([*args, *kwargs.values()]))
    trace_step = staticmethod(lambda model: Operations([]))

    def on_gradient(self, tensor: Tensor, listen: Callable[[Tensor], None]) -> Any:
        tensor.hooks.append(listen)
        return None if tensor.parents else SimpleNamespace(remove=lambda: tensor.hooks.remove(listen))


def select(model: Module, kinds: frozenset[Kind]) -> Any:
    modules, parameters = {module: path for path, module in model.named(Module)}, list(model.named(Tensor))
    nodes = tuple(ModuleNode(path, type(module).__name__, 0, "") for module, path in modules.items())
    targets = Targets(modules, modules, {tensor: (name,) for name, tensor in parameters}, {}, kinds, {model: ROOT})
    asked = {"targets": lambda: targets, "named_parameters": lambda: parameters, "module_nodes": lambda: nodes}
    return SimpleNamespace(model=model, models=(model,), kinds=kinds, is_bare=False, is_training=True, **asked)


class ToyListener(ModelListener):
    framework = ToyFramework()

    def _hook_forwards(self, hooks: Any) -> None:
        HOOKS.append(self.forwards)
        hooks.callback(HOOKS.remove, self.forwards)
