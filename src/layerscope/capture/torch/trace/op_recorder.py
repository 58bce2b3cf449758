"""Intercepts every torch call of one thread and records the results.

`torch.overrides.TorchFunctionMode` sees what the user wrote, on this thread only, and nothing is patched. A *node* is
one tensor that a call returned or changed; a call with several results is several nodes. A table of tensor identities
maps tensors to nodes; no attribute is set on a tensor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from layerscope.capture.torch.trace.arguments import Found, take_apart
from layerscope.capture.torch.trace.functions import Function, FunctionFacts, draws, facts, opened, source, writes
from layerscope.capture.torch.trace.memory import SavedValues
from layerscope.capture.torch.trace.module_calls import frames_between
from layerscope.capture.torch.trace.op_graph import Nodes, OpGraph, Row

unwatched = torch._C.DisableTorchFunction  # our own reads of a tensor are not recorded
Written = tuple[list[Tensor], list[Tensor]]  # tensors that a call is asked to write, and side effects

_is_compiling = torch.compiler.is_dynamo_compiling
_NOTHING: Written = ([], [])


class FailedCall(NamedTuple):
    """The last call that raised."""

    error: int  # identity only: the error itself would keep its frames alive
    function: str
    module: str


class Editor(Protocol):
    """Replaces functions or results while a forward runs."""

    edited: set[int]  # nodes whose result was replaced

    def function(self, node: int, function: Function) -> Function:
        """The function to call for a node."""
        ...

    def result(self, node: int, call: tuple[FunctionFacts, Row], result: Any, written: list[Tensor]) -> Any:
        """The result that the call returns."""
        ...


class OpRecorder(TorchFunctionMode):
    """Records every call that returns or writes a tensor, while it is entered."""

    def __init__(self, graph: OpGraph, *, open_composites: bool) -> None:
        super().__init__()
        self.graph = graph
        self.failing: FailedCall | None = None
        self.editor: Editor | None = None
        self.forgiving = False  # whether an internal error ends the recording instead of the forward
        self.trouble: Exception | None = None
        self.most = sys.maxsize  # nodes
        self._opens = open_composites
        self._opening: list[Function] = []  # functions being executed

    @property
    def nodes(self) -> Nodes:
        """Everything recorded so far."""
        return self.graph.nodes

    @property
    def memory(self) -> SavedValues:
        """The kept values."""
        return self.graph.memory

    def __torch_function__(
        self,
        function: Function,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # Any: the result of the function
        kwargs = kwargs or {}
        if _is_compiling() or self.trouble is not None:  # torch.compile ignores this mode
            return function(*args, **kwargs)
        about = facts(function)
        if about.is_silent:
            return function(*args, **kwargs) if not about.leaves_torch else self._leave(function, args, kwargs)
        if self._opens and (inside := self._way_in(about, function)) is not None:
            return self._inside(function, inside, args, kwargs)
        try:
            with unwatched():
                taken = self.taken(args, kwargs)
                written = writes(about, args, kwargs) if about.may_write or "out" in kwargs else _NOTHING
                if written is not _NOTHING:
                    self.graph.before_write(written[0] + written[1])
                random_state = _random_state(about, args, kwargs) if about.is_random else None
                called = function if self.editor is None else self.editor.function(len(self.nodes), function)
        except Exception as error:  # noqa: BLE001  re-raised, unless it must not reach the training it
            self._give_up(error)
            called = None
        if called is None:
            return function(*args, **kwargs)
        began = time.perf_counter()
        try:
            result = called(*args, **kwargs)
        except BaseException as error:
            self.failing = FailedCall(id(error), about.name, self.graph.module.path)
            raise
        circumstances = (time.perf_counter() - began, random_state)
        try:
            with unwatched():
                if self.editor is not None:
                    result = self.editor.result(len(self.nodes), (about, taken), result, written[0])
                self._record((about, function, taken, sys._getframe(1)), circumstances, result, written)
        except Exception as error:  # noqa: BLE001  as above
            self._give_up(error)
        return result

    def _leave(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.graph.left_torch is None:
            self.graph.left_torch = len(self.nodes)
        return function(*args, **kwargs)

    def _give_up(self, error: Exception) -> None:
        """Stop recording after an internal error; raise it if errors are not suppressed."""
        if not self.forgiving:
            raise error
        self.trouble = error

    def _way_in(self, about: FunctionFacts, function: Function) -> Function | None:
        """The function to call so that its inner calls are visible, if it is a composite."""
        if not about.is_composite or function in self._opening:  # a method may call the builtin of the same name
            return None
        return opened(function)

    def _inside(self, function: Function, inside: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._opening.append(function)
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._opening.pop()

    def is_looking(self) -> bool:
        """Whether calls are recorded now; not inside a call that is being recorded."""
        modes = torch._C._len_torch_function_stack()
        return modes > 0 and (
            torch._C._get_function_stack_at(modes - 1) is self
            or any(torch._C._get_function_stack_at(at) is self for at in range(modes - 1))
        )

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row:
        """The arguments of a call: two skeletons, its parents, its parameters and buffers."""
        found: Found = []
        skeletons = take_apart(args, kwargs, found)
        return *skeletons, *self.graph.resolve(found)

    def add_closed(self, function: Function | None, name: str, taken: Row, result: object) -> None:
        """Add nodes for the results of a module that ran untraced."""
        graph = self.graph
        if results := tensors_of(result):
            call = (graph.nodes.maker(source(name), function), *taken, graph.module.index, ())
            graph.add(call, (time.perf_counter() - graph.module.began, None), results)

    def _record(
        self,
        call: tuple[FunctionFacts, Function, Row, FrameType],
        circumstances: Row,
        result: Any,  # Any: the result of the function
        written: Written,
    ) -> None:
        about, function, taken, frame = call
        loud, quiet = written
        is_one = type(result) is Tensor and not loud
        results = [result] if is_one else results_of(result, loud)
        if loud:  # a lazy parameter is being materialized: it has no shape yet
            results = [tensor for tensor in results if not is_lazy(tensor)]
        if results:
            graph = self.graph
            if len(graph.nodes) > self.most:
                raise OverflowError(f"there are more than {self.most:,} operations")
            module = graph.module
            frames = frames_between(frame, module.entry)
            row = (graph.nodes.maker(about, function), *taken, module.index, frames)
            maker = graph.memory.node_of(result) if is_one else None  # already known if it is an unchanged argument
            lead = graph.add(row, circumstances, results)
            if maker is not None:
                graph.borrow(result, lead, maker)
            if written is not _NOTHING:
                graph.after_write(lead, loud, quiet)


def _random_state(about: FunctionFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The random state before a call that draws random numbers, else None."""
    if not draws(about, args, kwargs):
        return None
    state: Tensor = (kwargs.get("generator") or torch.default_generator).get_state()
    return state


def tensors_of(result: object) -> list[Tensor]:
    """The tensors in a function's result."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in tensors_of(item)]
    return [tensor for item in result.values() for tensor in tensors_of(item)] if isinstance(result, dict) else []


def results_of(result: object, written: list[Tensor]) -> list[Tensor]:
    """The tensors that a call returned, and those it was asked to write, each once."""
    results = tensors_of(result)
    return results + [tensor for tensor in written if not any(tensor is other for other in results)]
