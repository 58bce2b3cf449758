"""What a tracer saw → the plain record of the pass."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.arguments import HOLE, POSITIONS, holes
from layerscope.capture.torch.trace.flops import flops
from layerscope.capture.torch.trace.modulecalls import Frames, ModuleCall
from layerscope.capture.torch.trace.nodes import Node
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.operations import (
    Frame,
    ModuleCallRecord,
    Operation,
    ParameterRecord,
    Parent,
    PassRecord,
    Role,
)

LONGEST_ARGUMENT = 80
_ROLES = {role.value: role for role in (Role.INPUT, Role.OUTPUT, Role.CONSTANT)}


def describe(tracer: Tracer, name: str, seed: int | None, failure: str | None) -> PassRecord:
    """The record of everything the tracer saw."""
    model = tracer.model
    describer = _Describer(tracer)
    return PassRecord(
        model=name,
        operations=describer.operations(),
        calls=tuple(describer.call(call) for call in tracer.calls),
        parameters=() if model is None else tuple(_parameter(*named) for named in model.named_parameters()),
        modules=tuple(tracer.classes.items()),
        elapsed_s=tracer.elapsed_s,
        seed=seed,
        failure=failure,
        stale=tracer.ops.memory.stale(),
    )


class _Describer:
    """Turns nodes and module calls into records; places in the code become small numbers."""

    def __init__(self, tracer: Tracer) -> None:
        self._nodes = list(tracer.ops.nodes)
        self._classes = tracer.classes
        self._externals = tracer.graph.externals.all
        self._sites: dict[object, int] = {}
        self._call_sites: dict[int, int] = {}
        self._lines: dict[tuple[int, ...], tuple[Frame, ...]] = {}

    def operations(self) -> tuple[Operation, ...]:
        return tuple([self._operation(index, node) for index, node in enumerate(self._nodes)])

    def _operation(self, index: int, node: Node) -> Operation:
        about, parents, frames = node.facts, node.parents, node.frames
        place = _identities(frames)
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = _lines(frames)
        parameters, buffers = self._names(node) if node.externals else ((), ())
        return Operation(
            index,
            _ROLES.get(about.name, Role.OPERATION) if node.function is None else Role.OPERATION,
            about.name,
            tuple([Parent(parents[at], parents[at + 1]) for at in range(0, len(parents), 2)]),  # type: ignore[arg-type]
            _arguments(node),
            parameters,
            buffers,
            node.module.index,
            self._site(node.module, place, about.name),
            lines,
            node.lead,
            node.position,
            node.shape,
            _type_name(node.dtype),
            _device_name(node.device),
            size_bytes=math.prod(node.shape) * node.dtype.itemsize if -1 not in node.shape else 0,
            grad_fn=node.grad_fn,
            elapsed_s=node.elapsed_s,
            flops=self._flops(node),
            in_place=about.in_place,
            is_random=about.is_random,
            grad_mode=node.grad_mode,
            autocast=node.autocast,
        )

    def _names(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters and buffers that a call read."""
        used = [self._externals[int(number)] for number in node.externals[1::2]]
        learnt = tuple([external.name for external in used if isinstance(external.tensor, nn.Parameter)])
        return learnt, tuple([external.name for external in used if not isinstance(external.tensor, nn.Parameter)])

    def call(self, call: ModuleCall) -> ModuleCallRecord:
        return ModuleCallRecord(
            path=call.path,
            number=call.number,
            parent=None if call.parent is None else call.parent.index,
            class_name=self._classes.get(call.path, "") if call.number else "",
            training=call.training,
            frames=_lines(call.frames),
            inputs=call.inputs,
            outputs=call.outputs,
            elapsed_s=call.elapsed_s,
        )

    def _site(self, call: ModuleCall, place: tuple[int, ...], function: str) -> int:
        around = self._call_sites.get(call.index)
        if around is None:
            outer = 0 if call.parent is None else self._site(call.parent, _identities(call.frames), "")
            around = self._call_sites[call.index] = self._number((call.path, outer))
        return self._number((function, place, around))

    def _number(self, place: object) -> int:
        return self._sites.setdefault(place, len(self._sites))

    def _flops(self, node: Node) -> int | None:
        if node.position:
            return 0  # counted with the first result of the call
        if len(node.parents) == 2 and not node.externals:
            return flops(node.facts.name, node.shape, [self._nodes[int(node.parents[1])].shape])
        return flops(node.facts.name, node.shape, self._shapes(node))

    def _shapes(self, node: Node) -> list[tuple[int, ...]]:
        """Shapes of the tensor arguments, in their order."""
        shapes: dict[int | str, tuple[int, ...]] = {
            argument: tuple(self._externals[int(number)].tensor.shape)
            for argument, number in zip(node.externals[::2], node.externals[1::2], strict=True)
        }
        for argument, parent in zip(node.parents[::2], node.parents[1::2], strict=True):
            shapes[argument] = self._nodes[int(parent)].shape
        return [shapes[argument] for argument in holes(node.args, node.kwargs)[0]]


def _identities(frames: Frames) -> tuple[int, ...]:
    """The frames, comparable: a code object's own comparison reads its whole body."""
    return tuple([part if isinstance(part, int) else id(part) for part in frames])


def _arguments(node: Node) -> dict[str, str]:
    """Arguments that are no tensors, by name where it is known."""
    named = zip(node.facts.parameters or POSITIONS, node.args, strict=False)
    found = {name: text for name, value in named if (text := _text(value)) is not None}
    for name, value in node.kwargs.items():
        if (text := _text(value)) is not None:
            found[name] = text
    return found


@cache
def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _device_name(device: torch.device) -> str:
    return str(device)


def _lines(frames: Frames) -> tuple[Frame, ...]:
    return tuple(_line(frames[at], frames[at + 1]) for at in range(0, len(frames), 2))


@cache
def _line(code: CodeType, instruction: int) -> Frame:
    starts, lines = _table(code)
    line = lines[max(bisect_right(starts, instruction) - 1, 0)]
    return Frame(code.co_filename, line or code.co_firstlineno, code.co_name)


@cache
def _table(code: CodeType) -> tuple[list[int], list[int | None]]:
    rows = [(start, line) for start, _, line in code.co_lines()]
    return [start for start, _ in rows], [line for _, line in rows]


def _text(value: Any) -> str | None:  # Any: an argument of the user's
    """An argument as text; None for one that is a tensor."""
    if type(value) in (int, float, bool):
        return repr(value)
    if value is HOLE or (type(value) in (list, tuple) and any(item is HOLE for item in value)):
        return None
    text = str(value).removeprefix("torch.") if isinstance(value, (torch.dtype, torch.device)) else repr(value)
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 1]}…"


def _parameter(name: str, parameter: Tensor) -> ParameterRecord:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return ParameterRecord(name, tuple(parameter.shape), dtype, parameter.nbytes, parameter.requires_grad)
