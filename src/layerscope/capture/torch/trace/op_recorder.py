"""Intercepts every torch call of one thread and records the results.

`torch.overrides.TorchFunctionMode` sees what the user wrote, on this thread only, and nothing is patched. A *node* is
one tensor that a call returned or changed; a call with several results is several nodes. A table of tensor identities
maps tensors to nodes; no attribute is set on a tensor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from layerscope.capture.torch.tensor_tree import tensors_of
from layerscope.capture.torch.trace.arguments import FlatTensors, rebuild, skeleton_of
from layerscope.capture.torch.trace.functions import (
    Function,
    FunctionFacts,
    facts,
    opened,
    random_state_of,
    source,
    writes,
)
from layerscope.capture.torch.trace.module_calls import frames_between
from layerscope.capture.torch.trace.op_graph import OpGraph, Row
from layerscope.errors import ArgumentError

Change = Callable[[Tensor], Tensor]
unwatched = torch._C.DisableTorchFunction  # our own reads of a tensor are not recorded
Written = tuple[list[Tensor], list[Tensor]]  # tensors that a call is asked to write, and side effects

_is_compiling = torch.compiler.is_dynamo_compiling
_NOTHING: Written = ([], [])


class Editor:
    """Replaces functions or results while a forward runs."""

    def __init__(self) -> None:
        self.edited: set[int] = set()  # nodes whose result was replaced

    def function(self, node: int, function: Function) -> Function:
        """The function to call for a node: by default its own."""
        return function

    def changes(self, node: int, call: tuple[FunctionFacts, Row], position: int, tensor: Tensor) -> Iterable[Change]:
        """What to do with one of the tensors that a call returned."""
        raise NotImplementedError

    def result(self, lead: int, call: tuple[FunctionFacts, Row], result: Any, written: list[Tensor]) -> Any:
        """What the call is to return; what it wrote in place is overwritten, since others read it."""

        def exchanged(value: Any, at: str = "") -> Any:
            return other if value is tensor else rebuild(value, at, exchanged)

        for position, tensor in enumerate(results_of(result, written)):
            for change in self.changes(lead + position, call, position, tensor):
                self.edited.add(lead + position)
                other = change(tensor)
                if not isinstance(other, Tensor):
                    raise ArgumentError(
                        f"The edit of operation {lead + position} returned {type(other).__name__}, not a tensor."
                    )
                if any(tensor is target for target in written):
                    tensor.copy_(other)
                else:
                    result, tensor = exchanged(result), other
        return result


class OpRecorder(TorchFunctionMode):
    """Records every call that returns or writes a tensor, while it is entered."""

    def __init__(self, graph: OpGraph, *, open_composites: bool) -> None:
        super().__init__()
        self.graph = graph
        self.failing: tuple[int, str] | None = None  # identity of the last error, which would keep its frames; the call
        self.editor: Editor | None = None
        self.forgiving = False  # whether an internal error ends the recording instead of the forward
        self.trouble: Exception | None = None
        self.most = sys.maxsize  # nodes
        self._opens = open_composites
        self._opening: list[Function] = []  # functions being executed

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
        if about.is_query:
            return function(*args, **kwargs) if not about.leaves_torch else self._leave(function, args, kwargs)
        # A method may call the builtin of the same name.
        if self._opens and function not in self._opening and (inside := opened(function)) is not None:
            return self._inside(function, inside, args, kwargs)
        try:
            with unwatched():
                arguments = self.arguments_of(args, kwargs)
                written = writes(about, args, kwargs) if about.may_write or "out" in kwargs else _NOTHING
                if written is not _NOTHING:
                    self.graph.before_write(written[0] + written[1])
                random_state = random_state_of(about, args, kwargs) if about.is_random else None
                called = function if self.editor is None else self.editor.function(len(self.graph.nodes), function)
        except Exception as error:  # noqa: BLE001  re-raised, unless it must not reach the training
            self._give_up(error)
            called = None
        if called is None:
            return function(*args, **kwargs)
        began = time.perf_counter()
        try:
            result = called(*args, **kwargs)
        except BaseException as error:
            path = self.graph.module.path
            self.failing = id(error), f"{about.name} in {path}" if path else about.name
            raise
        circumstances = (time.perf_counter() - began, random_state)
        try:
            with unwatched():
                if self.editor is not None:
                    result = self.editor.result(len(self.graph.nodes), (about, arguments), result, written[0])
                self._record((about, function, arguments, sys._getframe(1)), circumstances, result, written)
        except Exception as error:  # noqa: BLE001  as above
            self._give_up(error)
        return result

    def _leave(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.graph.left_torch is None:
            self.graph.left_torch = len(self.graph.nodes)
        return function(*args, **kwargs)

    def _give_up(self, error: Exception) -> None:
        """Stop recording after an internal error; raise it if errors are not suppressed."""
        if not self.forgiving:
            raise error
        self.trouble = error

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

    def arguments_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row:
        """The arguments of a call: two skeletons, its parents, its parameters and buffers."""
        tensors: FlatTensors = []
        skeletons = skeleton_of(args, kwargs, tensors)
        return *skeletons, *self.graph.resolve(tensors)

    def add_opaque(self, function: Function | None, name: str, arguments: Row, result: object) -> None:
        """Add nodes for the results of an opaque call."""
        graph = self.graph
        if results := tensors_of(result):
            call = (graph.nodes.maker(source(name), function), *arguments, graph.module.index, ())
            graph.add(call, (time.perf_counter() - graph.module.began, None), results)

    def _record(
        self,
        call: tuple[FunctionFacts, Function, Row, FrameType],
        circumstances: Row,
        result: Any,  # Any: the result of the function
        written: Written,
    ) -> None:
        about, function, arguments, frame = call
        outputs, side = written
        is_one = type(result) is Tensor and not outputs
        results = [result] if is_one else results_of(result, outputs)
        if outputs:  # a lazy parameter is being materialized: it has no shape yet
            results = [tensor for tensor in results if not is_lazy(tensor)]
        if results:
            graph = self.graph
            if len(graph.nodes) > self.most:
                raise OverflowError(f"there are more than {self.most:,} operations")
            module = graph.module
            frames = frames_between(frame, module.entry)
            row = (graph.nodes.maker(about, function), *arguments, module.index, frames)
            maker = graph.memory.node_of(result) if is_one else None  # already known if it is an unchanged argument
            lead = graph.add(row, circumstances, results)
            if maker is not None:
                graph.borrow(result, lead, maker)
            if written is not _NOTHING:
                graph.after_write(lead, outputs, side)


def results_of(result: object, written: list[Tensor]) -> list[Tensor]:
    """The tensors that a call returned, and those it was asked to write, each once."""
    results = tensors_of(result)
    return results + [tensor for tensor in written if not any(tensor is other for other in results)]
