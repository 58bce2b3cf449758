"""Tracing a case and comparing with the plain call."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.torch.tensor_tree import tensors_in
from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.execute import same
from layerscope.capture.torch.trace.op_graph import Keep, Nodes
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.model.trace_record import TraceRecord
from tests.trace.zoo import Case


@dataclass
class Traced:
    """One traced call."""

    tracer: Tracer
    record: TraceRecord
    output: Any


def trace(case: Case, *, keep: Keep = True, gradients: bool = True) -> Traced:
    """The record of one call of the case."""
    model = case.call if isinstance(case.call, nn.Module) else None
    with Tracer(model, keep=keep, gradients=gradients, open_composites=case.open_composites) as tracer:
        if model is None:
            tracer.add_inputs((case.args, case.kwargs))
        output = case.call(*case.args, **case.kwargs)
        if model is None:
            tracer.add_outputs(output)
    return Traced(tracer, describe(tracer, "case", None, None), output)


def replace_node(nodes: Nodes, index: int, **fields: Any) -> None:
    """Falsify what was seen of one node."""
    node = nodes[index]._replace(**fields)
    kwargs = tuple(part for pair in node.kwargs.items() for part in pair)
    maker, call = nodes.maker(node.facts, node.function), nodes.calls.index(node.module)
    nodes.rows[index] = (maker, node.args, kwargs, *node[4:6], call, *node[7:])


def plain(case: Case) -> Any:
    """What the case gives without a tracer, on copies, so that it can be called once more."""
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    call = copy.deepcopy(case.call) if isinstance(case.call, nn.Module) else case.call
    return call(*args, **kwargs)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in a result."""
    return [tensor for _, tensor in tensors_in(value, "")]


def same_everywhere(one: Any, other: Any) -> bool:
    """Whether two results hold the same tensors, bit for bit."""
    ones, others = tensors(one), tensors(other)
    return len(ones) == len(others) and all(map(same, ones, others))


def grad_mode(grad: bool) -> AbstractContextManager[Any]:
    return nullcontext() if grad else torch.no_grad()


def ancestors(record: TraceRecord, index: int) -> set[int]:
    """Every operation that one was computed from."""
    found: set[int] = set()
    left = [index]
    while left:
        current = left.pop()
        if current not in found:
            found.add(current)
            left.extend(parent.operation for parent in record.operations[current].parents)
    return found
