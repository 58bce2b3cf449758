"""A trace that is wrong is always found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.validate import ValidationReport, validate
from layerscope.model.trace_record import Operation, Parent, TraceRecord
from tests.trace.examine import Traced, replace_node, trace
from tests.trace.zoo import Calls, Case, numbers

pytestmark = pytest.mark.feature("L9")


def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    a = m.first(x)  # type: ignore[operator]
    b = torch.tanh(y)
    return F.softmax(a - b, -1) @ m.second(b).T  # type: ignore[operator]


@pytest.fixture
def traced() -> Traced:
    torch.manual_seed(0)
    model = Calls(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 4))
    return trace(Case(model, (numbers(3, 4), numbers(3, 4) * 2)))


def index_of(traced: Traced, function: str) -> int:
    return next(operation.index for operation in traced.record.operations if operation.function == function)


def again(traced: Traced) -> ValidationReport:
    return validate(traced.tracer, describe(traced.tracer, "case", None, None))


def with_operation(record: TraceRecord, index: int, change: Callable[[Operation], Operation]) -> TraceRecord:
    operations = list(record.operations)
    operations[index] = change(operations[index])
    return replace(record, operations=tuple(operations))


def test_a_right_trace_is_right(traced: Traced) -> None:
    report = again(traced)
    assert report
    assert report.resumed
    assert not report.unchecked
    assert report.checked == 7  # two linear, tanh, sub, softmax, T, matmul
    assert "right" in str(report)


def test_swapped_parents_are_found(traced: Traced) -> None:
    index = index_of(traced, "sub")
    at, left, other, right = traced.tracer.graph.nodes[index].parents
    replace_node(traced.tracer.graph.nodes, index, parents=(at, right, other, left))
    report = again(traced)
    assert not report
    assert report.faults[0].operation == index


def test_a_parent_exchanged_for_another_is_found(traced: Traced) -> None:
    index = index_of(traced, "tanh")
    replace_node(traced.tracer.graph.nodes, index, parents=("0", 0))
    assert not again(traced)


def test_parents_swapped_in_the_record_alone_are_found(traced: Traced) -> None:
    index = index_of(traced, "sub")
    record = with_operation(traced.record, index, lambda op: op._replace(parents=op.parents[::-1]))
    assert not validate(traced.tracer, record)


def test_a_missing_edge_is_found(traced: Traced) -> None:
    index = index_of(traced, "sub")
    node = traced.tracer.graph.nodes[index]
    replace_node(traced.tracer.graph.nodes, index, parents=node.parents[:2])
    report = again(traced)
    assert not report
    assert "tensor arguments" in report.faults[0].text


def test_a_tensor_hidden_among_the_arguments_is_found(traced: Traced) -> None:
    index = index_of(traced, "sub")
    node = traced.tracer.graph.nodes[index]
    hidden = traced.tracer.graph.memory.values[int(node.parents[3])]
    replace_node(traced.tracer.graph.nodes, index, args=(node.args[0], hidden), parents=node.parents[:2])
    report = again(traced)
    assert not report
    assert "without a node" in report.faults[0].text


def test_a_false_edge_is_found(traced: Traced) -> None:
    index = index_of(traced, "tanh")
    record = with_operation(traced.record, index, lambda op: op._replace(parents=(*op.parents, Parent("1", 0))))
    assert not validate(traced.tracer, record)


@pytest.mark.parametrize("function", ["input", "linear", "tanh", "sub", "softmax", "matmul", "output"])
def test_a_wrong_value_is_found(traced: Traced, function: str) -> None:
    index = index_of(traced, function)
    values = traced.tracer.graph.memory.values
    values[index] = values[index].detach() + 1e-3
    assert not again(traced)


@pytest.mark.parametrize("function", ["input", "linear", "tanh", "sub", "softmax", "matmul"])
def test_a_value_overwritten_after_the_pass_is_found(traced: Traced, function: str) -> None:
    index = index_of(traced, function)
    with torch.no_grad():
        traced.tracer.graph.memory.values[index].add_(1)
    assert index in traced.tracer.graph.memory.stale()
    assert not again(traced)


def test_the_last_bit_of_a_value_counts(traced: Traced) -> None:
    index = index_of(traced, "softmax")
    values = traced.tracer.graph.memory.values
    wrong = values[index].detach().clone()
    wrong.view(torch.int32)[0, 0] += 1
    values[index] = wrong
    report = again(traced)
    assert index in {fault.operation for fault in report.faults}


def test_another_function_is_found(traced: Traced) -> None:
    index = index_of(traced, "tanh")
    replace_node(traced.tracer.graph.nodes, index, function=torch.sigmoid)
    assert not again(traced)


def test_another_argument_is_found(traced: Traced) -> None:
    index = index_of(traced, "softmax")
    node = traced.tracer.graph.nodes[index]
    replace_node(traced.tracer.graph.nodes, index, args=(node.args[0], 0, *node.args[2:]))
    assert not again(traced)


def test_a_lost_operation_is_found(traced: Traced) -> None:
    assert not validate(traced.tracer, replace(traced.record, operations=traced.record.operations[:-1]))


def test_a_parent_that_makes_no_difference_is_listed_apart() -> None:
    report = again(trace(Case(lambda x: torch.zeros_like(x) + x, (numbers(3, 4),))))
    assert report
    assert [remark.function for remark in report.ignored] == ["zeros_like"]


def test_what_was_not_kept_is_said_to_be_unchecked() -> None:
    report = again(trace(Case(nn.Linear(4, 4), (numbers(3, 4),)), keep=False))
    assert not report  # nothing is wrong, and nothing was proven
    assert not report.faults
    assert report.checked == 0
    assert "not kept" in report.unchecked[0].text


def test_proving_changes_neither_running_statistics_nor_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    traced = trace(Case(model, (numbers(6, 4),)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert again(traced)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
