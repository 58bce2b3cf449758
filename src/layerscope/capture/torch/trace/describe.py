"""Turns what a tracer recorded into a `TraceRecord`; FLOPs of a call from its shapes (a multiply-add is two)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.arguments import HOLE, POSITIONS, holes
from layerscope.capture.torch.trace.functions import writes_first
from layerscope.capture.torch.trace.module_calls import Frames, OpModuleCall
from layerscope.capture.torch.trace.op_graph import CALL, EXTERNALS, FRAMES, PARENTS, POSITION, SHAPE, Nodes, Row, pairs
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.model.trace_record import (
    ModuleCallRecord,
    Operation,
    Outline,
    ParameterRecord,
    Parent,
    Role,
    StackFrame,
    TraceRecord,
)
from layerscope.stats.torch import dtype_text

Shape = Sequence[int]
Shapes = Sequence[Shape]  # shapes of the call's tensor arguments, in order


def _attention(out: Shape, given: Shapes) -> int:
    query, key, value = given[:3]
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * query[-1] + 2 * scores * value[-1] + 5 * scores


def _recurrent(out: Shape, given: Shapes) -> int:
    """Matrices and biases of all layers and directions, once per element of each sequence."""
    matrices = [shape for shape in given[1:] if len(shape) == 2]
    high = {shape[0] for shape in matrices}
    biases = [shape[0] for shape in given[1:] if len(shape) == 1 and shape[0] in high]
    return math.prod(given[0][:-1]) * (2 * sum(shape[0] * shape[1] for shape in matrices) + sum(biases))


def _bias(out: Shape, given: Shapes) -> int:
    return math.prod(out) if len(given) > 2 else 0


_COUNTS: dict[str, Callable[[Shape, Shapes], int]] = {
    "linear": lambda out, given: 2 * math.prod(out) * given[0][-1] + _bias(out, given),
    "conv1d conv2d conv3d": lambda out, given: 2 * math.prod(out) * math.prod(given[1][1:]) + _bias(out, given),
    "conv_transpose1d conv_transpose2d conv_transpose3d": lambda out, given: (
        2 * math.prod(given[0]) * math.prod(given[1][1:]) + _bias(out, given)
    ),
    "matmul mm bmm mv dot chain_matmul": lambda out, given: 2 * math.prod(out) * given[0][-1],
    "addmm baddbmm addmv addbmm": lambda out, given: 2 * math.prod(out) * given[1][-1] + math.prod(out),
    "scaled_dot_product_attention": _attention,
    "lstm gru rnn_tanh rnn_relu": _recurrent,
    # element by element
    """
    add sub mul div pow neg abs exp log sqrt rsqrt sin cos tanh sigmoid relu relu6 leaky_relu elu selu celu
    gelu silu mish hardtanh hardswish hardsigmoid softplus softsign threshold clamp where maximum minimum
    reciprocal square floor_divide remainder eq ne lt le gt ge erf log1p expm1 lerp addcmul addcdiv dropout
    """: lambda out, given: math.prod(out),
    # reductions
    """
    sum mean max min prod norm var std argmax argmin amax amin logsumexp cumsum cumprod max_pool1d max_pool2d
    max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d mse_loss l1_loss
    """: lambda out, given: math.prod(given[0]) if given else 0,
    # normalizations
    "batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax local_response_norm normalize": (
        lambda out, given: 5 * math.prod(out)
    ),
    # no arithmetic
    """
    view reshape permute transpose t T mT contiguous flatten unflatten squeeze unsqueeze expand expand_as
    getitem cat stack split chunk unbind select narrow clone detach to type float half bfloat16 data
    embedding zeros ones empty full arange zeros_like ones_like empty_like full_like new_zeros new_ones pad
    roll flip gather index_select repeat tile movedim swapaxes tensor as_strided masked_fill setitem copy
    fill zero tril triu rand randn input output constant alias update
    """: lambda out, given: 0,
}
_BY_NAME = {name: count for names, count in _COUNTS.items() for name in names.split()}


def flops(function: str, out: Shape, given: Shapes) -> int | None:
    """FLOPs of one call; None for an unknown function."""
    count = _BY_NAME.get(function)
    try:
        return None if count is None else count(out, given)
    except IndexError:  # called in a way that the formula does not cover
        return None


LONGEST_ARGUMENT = 80

Texts = tuple[tuple[str, str], ...]  # argument and text

_DETOUR = torch.overrides.handle_torch_function.__code__
_WITHOUT_SITE = frozenset(("alias", "update", "compiled"))  # tensors whose creation was not observed
_ROLES = {role.value: role for role in (Role.INPUT, Role.OUTPUT, Role.CONSTANT)}


def describe(tracer: Tracer, name: str, seed: int | None, failure: str | None) -> TraceRecord:
    """The record of everything the tracer observed."""
    model = tracer.model
    return TraceRecord(
        model=name,
        operations=Operations(tracer),
        calls=tuple(_call(call, tracer.classes) for call in tracer.calls),
        parameters=() if model is None else tuple(_parameter(*named) for named in model.named_parameters()),
        modules=tuple(tracer.classes.items()),
        elapsed_s=tracer.elapsed_s,
        seed=seed,
        failure=failure,
        stale=tracer.graph.memory.stale(),
    )


class Operations(Sequence[Operation]):
    """The operations so far; the record of each is built on first access.

    Few of thousands are read, and each would be one more object for the garbage collector.
    """

    def __init__(self, tracer: Tracer) -> None:
        nodes = tracer.graph.nodes
        self._rows = tuple(nodes.rows)
        self._makers = tuple(nodes.makers)
        self._paths = tuple([call.path for call in nodes.calls])
        self._externals = {
            number: _External(external.name, isinstance(external.tensor, nn.Parameter), tuple(external.tensor.shape))
            for number, external in enumerate(tracer.graph.externals.all)
            if external.is_used
        }
        self._written = dict(tracer.graph.externals.written)
        self._sites = _sites(nodes)
        self._texts: dict[tuple[int, ...], Texts] = {}
        self._lines: dict[int, tuple[StackFrame, ...]] = {}  # site → frames
        self._made: list[Operation | None] = [None] * len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Operation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Operation, ...]: ...
    def __getitem__(self, index: int | slice) -> Operation | tuple[Operation, ...]:
        if isinstance(index, slice):
            return tuple([self[at] for at in range(*index.indices(len(self)))])
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._operation(index % len(self))
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)  # holes for tensors are compared by identity and would not survive a copy

    def outlines(self) -> Iterator[Outline]:
        """The outlines of the operations, which determine their layers."""
        makers, paths = self._makers, self._paths
        for row, site in zip(self._rows, self._sites, strict=True):
            about, function = makers[row[0]]
            parameters, buffers = self._names(row)
            given = site if function is not None or about.name not in _ROLES else None
            yield (
                about.name,
                row[POSITION],
                parameters,
                given,
                paths[row[CALL]],
                self._arguments(row),
                row[PARENTS][1::2],
                buffers,
            )

    def _operation(self, index: int) -> Operation:
        row = self._rows[index]
        maker, _, _, parents, _, call, frames, elapsed_s, grad_mode, autocast, _, lead, position = row[:13]
        shape, dtype, device, grad_fn = row[13:]
        about, function = self._makers[maker]
        site = self._sites[index]
        if (lines := self._lines.get(site)) is None:
            lines = self._lines[site] = _lines(frames)
        parameters, buffers = self._names(row)
        return Operation(
            index,
            _ROLES.get(about.name, Role.OPERATION) if function is None else Role.OPERATION,
            about.name,
            tuple([Parent(parents[at], parents[at + 1]) for at in range(0, len(parents), 2)]),
            dict(self._arguments(row)),
            parameters,
            buffers,
            call,
            site,
            lines,
            lead,
            position,
            shape,
            dtype_text(dtype),
            str(device),
            math.prod(shape) * dtype.itemsize if -1 not in shape else 0,
            grad_fn,
            elapsed_s,
            0 if position else flops(about.name, shape, self._shapes(row)),  # counted with the first result
            about.in_place or (about.inplace_at is not None and writes_first(about, row[1], dict(pairs(row[2])))),
            about.is_random,
            grad_mode,
            autocast,
            self._written.get(lead, ()),
        )

    def _names(self, row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters and buffers that a call used."""
        if not row[EXTERNALS]:
            return (), ()
        used = [self._externals[number] for _, number in pairs(row[EXTERNALS])]
        return tuple([e.name for e in used if e.is_learnt]), tuple([e.name for e in used if not e.is_learnt])

    def _arguments(self, row: Row) -> Texts:
        """Arguments that are not tensors, by name if known; formatted once for the same objects."""
        maker, args, kwargs = row[:3]
        key = (maker, len(args), *map(id, args), *map(id, kwargs))
        texts = self._texts.get(key)
        if texts is None:
            named = (*zip(self._makers[maker][0].parameters or POSITIONS, args, strict=False), *pairs(kwargs))
            named_texts = {name: text for name, value in named if (text := _text(value)) is not None}
            texts = self._texts[key] = tuple(named_texts.items())
        return texts

    def _shapes(self, row: Row) -> list[tuple[int, ...]]:
        """Shapes of the tensor arguments, in their order."""
        args, kwargs, parents, externals = row[1:5]
        if len(parents) == 2 and not externals:
            return [self._rows[parents[1]][SHAPE]]
        shapes = {argument: self._externals[number].shape for argument, number in pairs(externals)}
        shapes.update({argument: self._rows[parent][SHAPE] for argument, parent in pairs(parents)})
        return [shapes[argument] for argument in holes(args, dict(pairs(kwargs)))[0]]


class _External(NamedTuple):
    """A parameter or buffer that a call has read."""

    name: str
    is_learnt: bool
    shape: tuple[int, ...]


def _sites(nodes: Nodes) -> list[int]:
    """A small number for the line of code and the call stack of every node."""
    numbers: dict[object, int] = {}
    around: dict[int, int] = {}  # module call → its number

    def number(function: str, frames: Frames, call: int) -> int:
        outer = around.get(call)
        if outer is None:
            inside = nodes.calls[call]
            way = 0 if inside.parent is None else number("", inside.frames, inside.parent.index)
            outer = around[call] = numbers.setdefault((way, inside.path), len(numbers))
        # Code objects by identity: comparing them reads the whole body.
        return numbers.setdefault((function, outer, *frames[1::2], *map(id, frames[::2])), len(numbers))

    names = [about.name for about, _ in nodes.makers]
    sites = []
    for index, row in enumerate(nodes.rows):
        name, frames = names[row[0]], row[FRAMES]
        # No line of code computed it, so it shares its site with no other node.
        own_site = not frames and name in _WITHOUT_SITE
        sites.append(numbers.setdefault((index,), len(numbers)) if own_site else number(name, frames, row[CALL]))
    return sites


def _call(call: OpModuleCall, classes: Mapping[str, str]) -> ModuleCallRecord:
    return ModuleCallRecord(
        path=call.path,
        number=call.number,
        parent=None if call.parent is None else call.parent.index,
        class_name=classes.get(call.path, "") if call.number else "",
        training=call.training,
        frames=_lines(call.frames),
        inputs=call.inputs,
        outputs=call.outputs,
        elapsed_s=call.elapsed_s,
    )


def _lines(frames: Frames) -> tuple[StackFrame, ...]:
    if frames and frames[0] is _DETOUR:  # used by a Python function of torch, which is the operation itself
        frames = frames[4:]
    return tuple(_line(frames[at], frames[at + 1]) for at in range(0, len(frames), 2))


@cache
def _line(code: CodeType, instruction: int) -> StackFrame:
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    return StackFrame(code.co_filename, line or code.co_firstlineno, code.co_name)


def _text(value: Any) -> str | None:  # Any: an argument of the user
    """An argument as text; None for a tensor."""
    if type(value) in (int, float, bool):
        return repr(value)
    if value is HOLE or (type(value) in (list, tuple) and any(item is HOLE for item in value)):
        return None
    text = str(value).removeprefix("torch.") if isinstance(value, (torch.dtype, torch.device)) else repr(value)
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 1]}…"


def _parameter(name: str, parameter: Tensor) -> ParameterRecord:
    dtype = dtype_text(parameter.dtype)
    return ParameterRecord(name, tuple(parameter.shape), dtype, parameter.nbytes, parameter.requires_grad)
