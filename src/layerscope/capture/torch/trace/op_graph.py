"""The graph of a trace: nodes, parameters and buffers, gradients.

Parameters and buffers are tensors with names that exist outside the forward. An argument that is one of them is stored
as a number. Calls before and after a write read different values: each write starts a new number for the same name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from layerscope.capture.core.call_graph import CallStack
from layerscope.capture.torch.tensor_tree import shape_of_nested
from layerscope.capture.torch.trace.arguments import HOLE, FlatTensors
from layerscope.capture.torch.trace.functions import Function, FunctionFacts, facts, source
from layerscope.capture.torch.trace.memory import (
    SavedValues,
    Write,
    alias,
    copy_of,
    covers,
    overlap,
    span_of,
    storage_of,
    unwrapped,
    update,
    version_of,
)
from layerscope.capture.torch.trace.module_calls import Frames, OpModuleCall


class External:
    """One named tensor between two writes."""

    __slots__ = ("is_used", "name", "since", "tensor", "value", "version")

    def __init__(self, name: str, tensor: Tensor, since: int) -> None:
        self.name = name
        self.tensor = tensor  # kept alive, so that its identity is not reused
        self.value: Tensor | None = tensor  # a copy once it was written, None if values are not kept
        self.since = since  # number of nodes when it had this value
        self.is_used = False
        self.version = 0  # version of the tensor at its first use

    @property
    def is_changed(self) -> bool:
        """Whether an unobserved writer changed it since, such as an optimizer after the forward."""
        return self.value is self.tensor and version_of(self.tensor) != self.version


class Externals:
    """The named tensors of a trace."""

    def __init__(self, *, keep: bool) -> None:
        self.all: list[External] = []
        self._keep = keep
        self.numbers: dict[int, int] = {}  # identity of a tensor → its current number
        self.written: dict[int, tuple[str, ...]] = {}  # first node of a call → names of the tensors it wrote
        self._at: dict[int, list[int]] = {}  # memory → numbers that calls have read
        self._changing: dict[int, dict[str, Tensor]] = {}  # written memory → the named tensors in it

    def add(self, named: Iterable[tuple[str, Tensor]], since: int) -> None:
        """Name tensors that have no name yet."""
        for name, tensor in named:
            if id(tensor) not in self.numbers:
                self.numbers[id(tensor)] = len(self.all)
                self.all.append(External(name, tensor, since))

    def number_of(self, tensor: Tensor) -> int:
        """The current number of a named tensor."""
        number = self.numbers[id(tensor)]
        if not self.all[number].is_used:
            self.all[number].is_used = True
            self.all[number].version = version_of(tensor)
            self._at.setdefault(storage_of(tensor), []).append(number)
        return number

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor has a name."""
        return id(tensor) in self.numbers

    def sharing(self, tensor: Tensor) -> int | None:
        """The number of a named tensor in the same memory."""
        numbers = self._at.get(storage_of(tensor))
        return numbers[-1] if numbers else None

    def before_write(self, tensors: list[Tensor], since: int) -> None:
        """Copy the named tensors whose memory is about to be written, and give them new numbers."""
        for tensor in tensors:
            memory = storage_of(tensor)
            for number in self._at.pop(memory, ()):
                external = self.all[number]
                self._changing.setdefault(memory, {})[external.name] = external.tensor
                external.value = copy_of(external.tensor) if self._keep else None
                self.numbers[id(external.tensor)] = len(self.all)
                self.all.append(External(external.name, external.tensor, since))

    def after_write(self, lead: int, tensors: list[Tensor]) -> None:
        """Record which named tensors a call wrote."""
        if not self._changing:
            return
        names: dict[str, None] = {}
        for tensor in tensors:
            if (number := self.numbers.get(id(tensor))) is not None:
                names[self.all[number].name] = None
            if (others := self._changing.get(storage_of(tensor))) is not None:
                names.update({name: None for name, other in others.items() if _may_share(tensor, other)})
        if names:
            self.written[lead] = tuple(names)


def _may_share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors that were in the same memory may overlap."""
    if one is other:
        return True
    if storage_of(one) != storage_of(other):
        return False  # the named one was moved
    span, other_span = span_of(one), span_of(other)
    return span is None or other_span is None or overlap(span, other_span)


class OpGradients(dict[int, list[Tensor]]):
    """Node → its gradients, one for each backward that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self._hooked: set[int] = set()
        self._leaves: list[object] = []  # autograd drops the node of a leaf that no graph has used yet
        self._me = weakref.ref(self)

    def await_node(self, node: int, tensor: Tensor) -> None:
        """Record the gradient of a node's tensor in every later backward."""
        if node in self._hooked or is_functorch_wrapped_tensor(tensor):
            return
        function = tensor.grad_fn
        if function is None:
            function = _accumulator(tensor)
            if function is None:
                return
            self._leaves.append(function)
        self._hooked.add(node)
        function.register_prehook(partial(_catch, self._me, node, tensor.output_nr))

    def let_go(self) -> None:
        """Release all leaves: the autograd graph keeps them alive, if there is one."""
        self._leaves.clear()


def _accumulator(tensor: Tensor) -> torch.autograd.graph.Node | None:
    """Autograd's node that accumulates a leaf's gradient; a view made without grad mode has none."""
    with torch.enable_grad():
        function = tensor.view_as(tensor).grad_fn
    return None if function is None else function.next_functions[0][0]


def _catch(store: weakref.ref[OpGradients], node: int, slot: int, gradients: Sequence[Tensor | None]) -> None:
    alive = store()
    if alive is None or slot >= len(gradients) or (gradient := gradients[slot]) is None:
        return
    with torch._C.DisableTorchFunction():
        alive.setdefault(node, []).append(gradient.detach() if gradient.requires_grad else gradient)


#: The fields of a node, except: the first two are one number, that of the function; keyword arguments are a flat
#: tuple name, value, name, value …; the module call is a number.
Row = tuple[Any, ...]
#: Columns of a row: names and nodes alternate in PARENTS, names and numbers of parameters and buffers in EXTERNALS.
PARENTS, EXTERNALS, CALL, FRAMES, POSITION, SHAPE = 3, 4, 5, 6, 12, 13
Maker = tuple[FunctionFacts, Function | None]


class OpNode(NamedTuple):
    """One tensor of the forward, and the call that computed it."""

    facts: FunctionFacts
    function: Function | None  # None for a tensor whose creation was not observed: an input, a constant
    args: tuple[Any, ...]  # Any: the user's arguments, with holes for tensors
    kwargs: dict[str, Any]
    parents: tuple[int | str, ...]  # argument, node, argument, node …
    externals: tuple[int | str, ...]  # argument, number of a parameter or buffer …
    module: OpModuleCall
    frames: Frames
    elapsed_s: float
    grad_mode: bool
    autocast: str | None
    random_state: Tensor | None
    lead: int  # the first node of the call
    position: int  # index among the results of the call
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    grad_fn: str | None


def pairs(flat: Row) -> Iterator[tuple[Any, Any]]:
    """(name, value) pairs of a flat tuple."""
    return zip(flat[::2], flat[1::2], strict=True)


class Nodes:
    """The nodes in the order of execution."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.calls: list[OpModuleCall] = []  # in the order in which they began; the first is the enclosing block
        self.makers: list[Maker] = []
        self._numbers: dict[Maker, int] = {}

    def maker(self, about: FunctionFacts, function: Function | None) -> int:
        """The number of a function: the first field of a row."""
        number = self._numbers.get((about, function))
        if number is None:
            number = self._numbers[about, function] = len(self.makers)
            self.makers.append((about, function))
        return number

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> OpNode:
        row = self.rows[index]
        about, function = self.makers[row[0]]
        named = dict(pairs(row[2]))
        # As `Node(…)`, but without a Python-level call.
        return tuple.__new__(OpNode, (about, function, row[1], named, *row[3:5], self.calls[row[5]], *row[6:]))

    def __iter__(self) -> Iterator[OpNode]:
        return (self[index] for index in range(len(self.rows)))


Keep = bool | Callable[[FunctionFacts, OpModuleCall], bool]
Pairs = tuple[int | str, ...]  # argument, number, argument, number …


class OpGraph:
    """Nodes, the memory of their tensors, the parameters and buffers, the gradients."""

    def __init__(self, outside: OpModuleCall, *, keep: Keep, gradients: bool) -> None:
        self.nodes = Nodes()
        self.nodes.calls.append(outside)
        self.memory = SavedValues()
        self.externals = Externals(keep=keep is not False)
        self.gradients = OpGradients()
        self.stack = CallStack[OpModuleCall]()
        self.stack.enter(outside)
        self.left_torch: int | None = None  # number of nodes when values first left torch, for example to numpy
        self._keep = keep
        self._wants_gradients = gradients
        self._borrowed: list[tuple[int, weakref.ref[Tensor], int, int]] = []  # call, tensor, borrower, maker

    @property
    def module(self) -> OpModuleCall:
        """The current module call; outside all modules, the enclosing block."""
        return self.stack.current or self.nodes.calls[0]

    def resolve(self, tensors: FlatTensors) -> tuple[Pairs, Pairs]:
        """The nodes, parameters and buffers of a call's tensors."""
        parents: list[int | str] = []
        externals: list[int | str] = []
        numbers, writes = self.externals.numbers, self.memory.writes
        for i in range(0, len(tensors), 2):
            at, tensor = tensors[i], tensors[i + 1]
            if id(tensor) in numbers:
                number = self.externals.number_of(tensor)
                externals.append(at)
                externals.append(number)
                if not (writes and self._is_written(number, tensor)):
                    continue
            parents.append(at)
            parents.append(self.node_of(tensor))
        return tuple(parents), tuple(externals)

    def node_of(self, tensor: Tensor) -> int:
        """The node of a tensor; a tensor from outside gets a new node."""
        memory = self.memory
        node = memory.node_of(tensor)
        if node is None:
            return self.add_outside(tensor)
        if memory.writes and (unseen := memory.unseen_writes(node, tensor)):
            node = self._catch_up(node, tensor, unseen)
        try:
            changed = tensor._version != memory.versions[node]
        except RuntimeError:  # made in inference mode
            changed = False
        if changed:
            memory.unproven.add(node)
            return self._add_seen("update", tensor, ("0", node))
        if self._wants_gradients and tensor.requires_grad:
            self.gradients.await_node(node, tensor)
        return node

    def knows(self, tensor: Tensor) -> bool:
        """Whether a recorded call returned the tensor, or it is an input."""
        return self.memory.node_of(tensor) is not None

    def can_place(self, tensor: Tensor) -> bool:
        """Whether the origin of the tensor is known: it has a node or a name, or shares memory with such a tensor."""
        return self.knows(tensor) or self.externals.has(tensor) or self.memory.neighbor_of(tensor) is not None

    def add(self, call: Row, circumstances: Row, results: Sequence[Tensor], *, track: bool = True) -> int:
        """Add nodes for the results of a call; returns the first.

        `call` has the first seven fields of a row, `circumstances` the elapsed time and the random state before.
        """
        rows = self.nodes.rows
        lead = len(rows)
        grad_mode = torch.is_grad_enabled()
        autocast = _autocast() if torch._C._is_any_autocast_enabled() else None
        elapsed_s, random_state = circumstances
        keep = self._keep if isinstance(self._keep, bool) else self._keep(self.nodes.makers[call[0]][0], self.module)
        for position, tensor in enumerate(results):
            node = len(rows)
            grad_fn = tensor.grad_fn
            rows.append(
                (*call, elapsed_s, grad_mode, autocast, random_state, lead, position,
                 tuple(tensor.shape) if not tensor.is_nested else shape_of_nested(tensor),
                 tensor.dtype, tensor.device, None if grad_fn is None else type(grad_fn).__name__)
            )  # fmt: skip
            self.memory.add(node, tensor, keep=keep, track=track)
            if self._wants_gradients and grad_mode and tensor.requires_grad:
                self.gradients.await_node(node, tensor)
        return lead

    def borrow(self, tensor: Tensor, borrower: int, maker: int) -> None:
        """Record that a call returned its argument unchanged, such as a cast to the same type."""
        if self.module.index:  # outside all modules nothing is restored
            self._borrowed.append((self.module.index, weakref.ref(tensor), borrower, maker))

    def give_back(self, outputs: list[Tensor]) -> None:
        """Restore tensor ownership after a module call, except for the tensors it returns."""
        around = self.module.parent.index if self.module.parent else 0
        given_on = []
        while self._borrowed and self._borrowed[-1][0] >= self.module.index:
            _, ref, borrower, maker = self._borrowed.pop()
            tensor = ref()
            if tensor is None:
                continue
            if not any(tensor is output for output in outputs):
                self.memory.give_back(tensor, borrower, maker)
            elif around:
                given_on.append((around, ref, borrower, maker))
        self._borrowed.extend(reversed(given_on))

    def add_input(self, tensor: Tensor) -> int:
        """Add a node for an input of the forward."""
        return self._add_seen("input", tensor, ())

    def add_output(self, tensor: Tensor) -> int:
        """Add a node for an output of the forward."""
        parents, externals = self.resolve(["0", tensor])
        call = self._row(source("output"), None, (HOLE,), (parents, externals))
        return self.add(call, (0.0, None), [tensor], track=False)

    def add_outside(self, tensor: Tensor) -> int:
        """Add a node for a tensor whose creation was not observed; its memory may reveal its origin."""
        if is_functorch_wrapped_tensor(tensor):
            inner = get_unwrapped(tensor)
            parent = self.node_of(inner) if is_functorch_wrapped_tensor(inner) or self.knows(inner) else None
            parent = self.memory.neighbor_of(unwrapped(tensor)) if parent is None else parent
        else:
            parent = self.memory.neighbor_of(tensor)
        if parent is not None:
            return self._add_alias(parent, tensor)
        if (number := self.externals.sharing(tensor)) is not None:
            return self._add_seen("alias", tensor, (), ("0", number))
        compiled = (
            type(tensor.grad_fn).__name__ == "CompiledFunctionBackward"
        )  # a compiled function called during the forward
        return self._add_seen("compiled" if compiled else "constant", tensor, ())

    def before_write(self, tensors: list[Tensor]) -> None:
        """Copy kept values in memory that is about to be written."""
        self.memory.before_write(tensors)
        self.externals.before_write(tensors, len(self.nodes))

    def after_write(self, lead: int, written: list[Tensor], side: list[Tensor]) -> None:
        """Record what a call wrote: its results, and other tensors as a side effect.

        Parameters and buffers are copied: they outlive the forward and change again.
        """
        self.externals.after_write(lead, written + side)
        self.memory.before_write([tensor for tensor in written if self.externals.has(tensor)])
        for tensor in written:
            node = self.memory.node_of(tensor)
            self.memory.after_write(lead if node is None else node, tensor)
        for tensor in side:
            self.memory.after_write(len(self.nodes) - 1, tensor, known=False)

    def _is_written(self, number: int, tensor: Tensor) -> bool:
        """Whether a recorded call wrote the parameter or buffer, so that it has a node."""
        if self.knows(tensor):
            return True
        unseen = self.memory.unseen_writes(self.externals.all[number].since, tensor)
        span = span_of(tensor)
        writes = [write for write in unseen if span and write.span and overlap(write.span, span)]
        if writes:
            self._add_update((), ("0", number), tensor, writes)
        return bool(writes)

    def _catch_up(self, node: int, tensor: Tensor, unseen: list[Write]) -> int:
        """The node of a tensor whose memory was written through other tensors meanwhile."""
        span = span_of(tensor)
        writes = [write for write in unseen if not (span and write.span) or overlap(write.span, span)]
        if not writes:
            self.memory.refresh(node, tensor)
            return node
        if span is None or any(write.span is None for write in writes):
            parents = ("0", node, *(part for at, write in enumerate(writes) for part in (str(at + 1), write.node)))
            return self._add_seen("update", tensor, parents)
        return self._add_update(("0", node), (), tensor, writes)

    def _add_update(self, old: Pairs, old_external: Pairs, tensor: Tensor, writes: list[Write]) -> int:
        """Add a node for a tensor that was changed through other views of its memory."""
        span = span_of(tensor)
        assert span is not None
        covering = [at for at, write in enumerate(writes) if write.span is not None and covers(write.span, span)]
        if covering:  # the previous content is completely overwritten
            writes = writes[covering[-1] :]
            old = old_external = ()
            if len(writes) == 1:
                return self._add_alias(writes[0].node, tensor)
        parents = (*old, *(part for at, write in enumerate(writes) for part in (f"1.{at}", write.node)))
        spans = tuple(tuple(write.span) for write in writes if write.span is not None)
        args = (HOLE if not covering else None, (HOLE,) * len(writes), tuple(span), spans)
        call = self._row(facts(update), update, args, (parents, old_external))
        return self.add(call, (0.0, None), [tensor])

    def _add_alias(self, parent: int, tensor: Tensor) -> int:
        """Add a node for a tensor that is another view of a node's memory."""
        original = self.memory.values.get(parent)
        span, other = span_of(tensor), None if original is None else span_of(original)
        if span is None or other is None or not covers(other, span):
            return self._add_seen("alias", tensor, ("0", parent))
        call = self._row(facts(alias), alias, (HOLE, tuple(other), tuple(span)), (("0", parent), ()))
        return self.add(call, (0.0, None), [tensor])

    def _add_seen(self, name: str, tensor: Tensor, parents: Pairs, externals: Pairs = ()) -> int:
        """Add a node of which only the result was observed."""
        args = (HOLE,) * ((len(parents) + len(externals)) // 2)
        return self.add(self._row(source(name), None, args, (parents, externals)), (0.0, None), [tensor])

    def _row(
        self, about: FunctionFacts, function: Function | None, args: tuple[Any, ...], pairs: tuple[Pairs, Pairs]
    ) -> Row:
        return self.nodes.maker(about, function), args, (), *pairs, self.module.index, ()


def _autocast() -> str | None:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ",".join(f"{kind}:{str(torch.get_autocast_dtype(kind)).removeprefix('torch.')}" for kind in kinds) or None
