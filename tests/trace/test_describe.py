"""The record of a pass: operations put into words when they are asked for, and layers found without that."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.graph.layers import name_layers
from layerscope.model.trace_record import TraceRecord
from tests.trace.examine import replace_node

pytestmark = pytest.mark.feature("L2")


class Recurrent(nn.Module):
    """A loop over one layer, an operation with several results, named and positional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        for power in range(3):
            x = torch.tanh(self.norm(self.step(x))) * 0.5
            x = torch.add(x, x**power, alpha=power)
        low, high = x.chunk(2, dim=1)
        return torch.cat([low, high.relu()], 1).sum(dim=(0, 1))


def unrolled(x: Tensor) -> Tensor:
    x = x.sin() + 1
    x = x.sin() + 1
    return x.sin() + 1.0


def traced(target: Callable[[Tensor], Tensor]) -> tuple[Tracer, TraceRecord]:
    torch.manual_seed(0)
    with Tracer(target if isinstance(target, nn.Module) else None, keep=True) as tracer:
        target(torch.randn(3, 4))
    return tracer, describe(tracer, "model", None, None)


@pytest.mark.parametrize("target", [Recurrent(), unrolled, nn.LSTMCell(4, 4), nn.TransformerEncoderLayer(4, 2)])
def test_layers_are_those_of_the_operations_in_words(target: Callable[[Tensor], Tensor]) -> None:
    _, record = traced(target)
    written_out = replace(record, operations=tuple(record.operations))
    assert name_layers(record) == name_layers(written_out)


def test_arguments_that_are_equal_but_not_the_same_keep_their_own_words() -> None:
    def same_places(x: Tensor) -> Tensor:
        for factor in (1, 1.0, True, -0.0, 0.0):
            x = x * factor
        return x.sum(0).sum(dim=0)

    _, record = traced(same_places)
    texts = [[*operation.arguments.items()] for operation in record.operations if operation.function in ("mul", "sum")]
    factors = [[("1", text)] for text in ("1", "1.0", "True", "-0.0", "0.0")]
    assert texts == [*factors, [("1", "0")], [("dim", "0")]]


def test_operations_are_a_sequence_that_copies_and_compares() -> None:
    _, record = traced(Recurrent())
    whole = tuple(record.operations)
    assert record.operations == whole
    assert whole == record.operations
    assert record.operations != whole[1:]
    assert record.operations[-2] is whole[-2]
    assert record.operations[1:-1:2] == whole[1:-1:2]
    assert copy.deepcopy(record) == record
    with pytest.raises(IndexError):
        record.operations[len(whole)]


def test_what_happens_to_the_tracer_later_does_not_change_the_record() -> None:
    tracer, record = traced(Recurrent())
    index = next(op.index for op in traced(Recurrent())[1].operations if op.function == "tanh")
    replace_node(tracer.graph.nodes, index, parents=("0", 0))
    assert record.operations[index].parents[0].operation == index - 1


def test_layers_of_many_operations_leave_little_for_the_garbage_collector() -> None:
    def loop(x: Tensor) -> Tensor:
        for _ in range(2000):
            x = x * 1.5 + 0.1
        return x

    tracer, _ = traced(loop)
    gc.collect()
    before = len(gc.get_objects())
    record = describe(tracer, "loop", None, None)
    naming = name_layers(record)
    gc.collect()
    assert len(naming.layer) == len(record.operations) > 4000
    assert len(gc.get_objects()) - before < 100
