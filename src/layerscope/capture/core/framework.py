"""What a framework must provide for its tensors and modules to be recorded.

Everything else in `capture/core` names no framework. `capture/torch/framework.py` is the one of PyTorch; the smallest
that works is `tests/capture/toy_framework.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from layerscope.errors import SelectError
from layerscope.model.records import Kind, ModuleNode
from layerscope.stats.kernel import Arena, format_number

Tensor = Any  # each framework has its own; modules too: hashable, weakly referable, with an attribute `training`
Array = npt.NDArray[Any]  # whatever a tensor holds
DEEPEST = 8  # a structure nested deeper than this is a graph of objects, not a result


class NoValues(SelectError):
    """The framework computes with tensors that have no values yet: reported once for all of them."""


class Handle(Protocol):
    """A hook that is in place."""

    def remove(self) -> None:
        """Take the hook away."""


class Port(NamedTuple):
    """One tensor that a call takes or gives, by its name."""

    name: str
    tensor: Tensor


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor goes: a node of the autograd graph, and which of the node's outputs it is."""

    node: Hashable
    output: int


@dataclass(frozen=True, slots=True)
class Targets:
    """What is recorded: modules by their paths, parameters and buffers by their names, and the kinds of tensor.

    The mappings from modules are weak: a recorder does not keep its model alive.
    """

    members: Mapping[Any, str]  # every module of the model, selected or not
    modules: Mapping[Any, str]
    parameters: Mapping[Tensor, tuple[str, ...]]  # one that modules share has several names
    buffers: Mapping[Tensor, tuple[str, ...]]
    kinds: frozenset[Kind]
    roots: Mapping[Any, str]  # of all modules, those whose forwards are those of the model


class Selection(Protocol):
    """What is recorded of a model, looked up anew whenever its modules or parameters were replaced."""

    kinds: frozenset[Kind]

    @property
    def model(self) -> Any:
        """The model, as the framework knows it."""

    @property
    def models(self) -> tuple[object, ...]:
        """The models of the user, which keep the recorder alive until its first step ends."""

    @property
    def is_bare(self) -> bool:
        """Whether there is no model: only what the user names is recorded."""

    @property
    def is_training(self) -> bool:
        """Whether the model is in training mode."""

    def targets(self) -> Targets:
        """The modules, parameters and buffers as they are now."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """All parameters of the model, each once."""

    def module_nodes(self) -> tuple[ModuleNode, ...]:
        """The modules, in the order of registration."""


class ForwardOperations(Protocol):
    """The operations of one thread while they are traced: every tensor is a node, numbered as they are made."""

    @property
    def trouble(self) -> Exception | None:
        """Why the operations are not known, if they are not."""

    def __len__(self) -> int:
        """How many nodes there are."""

    def node_of(self, tensor: Tensor) -> int | None:
        """The node of a tensor; None if no traced operation made it."""

    def add(self, tensor: Tensor) -> int:
        """The node of a tensor; one that came from outside becomes a node now."""

    def parents(self, node: int) -> Sequence[int]:
        """The nodes that an operation made this one of."""

    def parameters(self, node: int) -> Iterable[Tensor]:
        """Parameters and buffers that it used beside."""

    def leave(self) -> None:
        """Trace no more."""


class Framework(ABC):
    """Tensors, autograd and operations of one framework. What has a default may stay as it is."""

    tensor_type: type  # of every tensor

    # Tensors

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape in plain whole numbers."""
        return self.array(tensor).shape

    def dtype(self, tensor: Tensor) -> str:
        """The name of its number format: `float32`."""
        return self.array(tensor).dtype.name

    @abstractmethod
    def version(self, tensor: Tensor) -> int | None:
        """A number that changes when the tensor is written; None if that cannot be known."""

    def in_place(self, tensor: Tensor) -> list[int] | None:
        """Address, number of elements and `format_number` of a tensor in one piece of memory; None if it is not."""
        return None

    @abstractmethod
    def array(self, tensor: Tensor) -> Array:
        """The values; may share the tensor's memory. Formats that numpy lacks become float32."""

    def summarize(self, arena: Arena, tensor: Tensor, most: int | None) -> int:
        """Summarize at most `most` elements; returns the row in the arena. `SelectError` if that is impossible."""
        values = self.array(tensor).ravel()
        values = np.ascontiguousarray(values if most is None else values[:: -(-values.size // most) or 1])
        return arena.add(values.ctypes.data, values.size, format_number(values.dtype.name))

    def summarize_all(self, arena: Arena, tensors: Sequence[Tensor]) -> tuple[list[int], dict[int, SelectError]]:
        """The same of several tensors; those that cannot be read have row -1 and an error under their position."""
        rows, errors = [], {}
        for position, tensor in enumerate(tensors):
            try:
                rows.append(self.summarize(arena, tensor, None))
            except SelectError as error:
                rows.append(-1)
                errors[position] = error
        return rows, errors

    def threads(self, elements: int) -> int:
        """How many threads may share the summary of a tensor."""
        return 1

    def local_part(self, tensor: Tensor) -> tuple[Tensor, str]:
        """The tensor in this process's memory, and what it is of the whole: `shard`, `before reduction`, or ""."""
        return tensor, ""

    def is_oversized(self, tensor: Tensor) -> bool:
        """Whether the tensor is a view that repeats elements so often that it must not be copied."""
        return False

    def largest_singular_value(self, matrix: Tensor) -> float:
        """The largest singular value of a matrix; NaN if not all its elements are finite."""
        values = self.array(matrix)
        return float(np.linalg.norm(values, 2)) if np.isfinite(values).all() else float("nan")

    def sum(self, one: Tensor, other: Tensor) -> Tensor | None:
        """The sum of two gradients; None if that would mean to wait for other processes."""
        return one + other

    @abstractmethod
    def norms(self, gradient: Tensor) -> Tensor | None:
        """The norm of each sample, along dimension 0; None if the tensor has none."""

    def statistics(self, function: Callable[[Tensor], Mapping[str, Any]], tensor: Tensor) -> Mapping[str, Any]:
        """What the user's function makes of a tensor, which is apart from autograd."""
        return function(tensor)

    # Autograd

    @abstractmethod
    def requires_grad(self, tensor: Tensor) -> bool:
        """Whether a backward computes the tensor's gradient."""

    @abstractmethod
    def is_leaf(self, tensor: Tensor) -> bool:
        """Whether no operation of the autograd graph made the tensor."""

    def is_grad_enabled(self) -> bool:
        """Whether operations are recorded for a backward."""
        return True

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether gradients of the tensor accumulate, over several losses and backwards."""
        return self.is_leaf(tensor) and self.requires_grad(tensor)

    @abstractmethod
    def backward(self) -> int:
        """Number of the backward that runs on this thread; -1 if none does."""

    def outermost_backward(self) -> int | None:
        """The same; None if another backward, which still runs, has begun it."""
        return self.backward()

    @abstractmethod
    def next_node(self) -> int:
        """The number of the next node of the autograd graph on this thread."""

    def running_node(self) -> int | None:
        """The number of the node whose gradient the backward computes now, if that is known."""
        return None

    @abstractmethod
    def edge(self, tensor: Tensor) -> GradientEdge:
        """Where the tensor's gradient goes."""

    @abstractmethod
    def node_number(self, node: Any) -> int:
        """The number of a node: nodes are numbered as they are made."""

    @abstractmethod
    def next_edges(self, node: Any) -> Sequence[tuple[Any, int]]:
        """Where the gradients go that a node computes: to nodes, or None, and to which of their outputs."""

    @abstractmethod
    def on_gradient(self, tensor: Tensor, listen: Callable[[Tensor], None]) -> Handle | None:
        """Have the function called with the tensor's whole gradient; a handle if the hook outlives the step."""

    @abstractmethod
    def on_node(self, node: Any, listen: Callable[[Sequence[Tensor | None]], None]) -> None:
        """Have the function called with the gradients that a node has computed, one for each of its `next_edges`."""

    @abstractmethod
    def after_backward(self, call: Callable[[], None]) -> None:
        """Have the function called when the backward that runs is over."""

    def accumulator(self, parameter: Tensor) -> Any:
        """The node that adds up a parameter's gradient, to be kept as long as it is followed; None if it has none."""
        return parameter if self.requires_grad(parameter) else None

    def on_accumulation(self, node: Any, listen: Callable[[Tensor], None]) -> Handle | None:
        """Have the function called with what each backward adds to a gradient, before that is added."""
        return self.on_gradient(node, listen)

    def gradient_part(self) -> str:
        """What a contribution is of the whole gradient: `before reduction` over processes, or ""."""
        return ""

    def kept(self, gradient: Tensor) -> Tensor:
        """A gradient that may be kept for the rest of the step."""
        return gradient

    # Surroundings and operations

    def shield(self) -> AbstractContextManager[object]:
        """A `with` block in which nobody else sees what we compute."""
        return nullcontext()

    def is_recorded_by_others(self) -> bool:
        """Whether a compiler looks at what is computed, and must not find our operations in it."""
        return False

    def same_memory(self, tensor: Tensor) -> tuple[int, Callable[[], bool]] | None:
        """Identity of the tensor's memory, and whether that memory was freed since; None if it has none of its own."""
        return None

    @abstractmethod
    def trace_forward(
        self, module: Any, args: tuple[object, ...], kwargs: Mapping[str, object], frame: FrameType
    ) -> ForwardOperations | None:
        """Trace the operations of a module that is about to be called; None if it must not be traced."""

    @abstractmethod
    def trace_step(self, model: Any) -> ForwardOperations:
        """Trace the operations of this thread until the step ends."""

    def ports(self, value: object, port: str) -> Iterator[Port]:
        """Every tensor in nested dicts, lists, tuples and dataclasses, by its port; a bare tensor is number 0."""
        return tensors_in(value, port, self.tensor_type)

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[Port]:
        """Every tensor that a call takes, by its port: `input.0`, or `input.mask` for a keyword."""
        yield from self.ports(args, "input")
        yield from self.ports(dict(kwargs), "input")


def tensors_in(value: object, port: str, tensor_type: type, depth: int = 0) -> Iterator[Port]:
    """Every tensor in nested dicts, lists, tuples and dataclasses, by its port; a bare tensor is number 0.

    Other objects are passed over, None included.
    """
    if isinstance(value, tensor_type):
        yield Port(f"{port}.0" if depth == 0 else port, value)
    elif depth < DEEPEST:
        for key, item in _items(value):
            yield from tensors_in(item, f"{port}.{key}", tensor_type, depth + 1)


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name, getattr(value, field.name, None)  # a field may never have been set
