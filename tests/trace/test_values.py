"""What is kept is what was computed, whatever happens to the memory later; and nothing more is kept than was asked."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.tracer import Tracer
from tests.trace.examine import trace
from tests.trace.zoo import Case, numbers

pytestmark = pytest.mark.feature("L4")


def test_a_kept_value_survives_a_later_write() -> None:
    x = numbers(3, 4)

    def forward(x: Tensor) -> Any:
        y = x * 2
        y.relu_()
        y[0] = 7
        return y

    traced = trace(Case(forward, (x,)))
    values = traced.tracer.graph.memory.values
    assert torch.equal(values[1], x * 2)
    assert torch.equal(values[2], (x * 2).relu())
    assert torch.equal(values[3], traced.output)


def test_a_value_that_is_not_written_is_kept_by_reference() -> None:
    traced = trace(Case(lambda x: (x * 2).exp(), (numbers(3, 4),)))
    assert traced.tracer.graph.memory.values[2] is traced.output


def test_views_that_share_memory_share_the_copy_too() -> None:
    def forward(x: Tensor) -> Any:
        y = x * 2
        parts = [y[row] for row in range(3)]
        y.add_(1)
        return parts[0]

    traced = trace(Case(forward, (numbers(3, 4),)))
    values = traced.tracer.graph.memory.values
    assert len({values[index].untyped_storage()._cdata for index in range(1, 5)}) == 1
    assert values[3].stride() == (1,)
    assert torch.equal(values[3], numbers(3, 4)[1] * 2)


def test_metadata_alone_holds_no_activation() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def forward(x: Tensor) -> Any:
        for _ in range(5):
            x = x * 2
            seen.append(weakref.ref(x))
        return x.sum()

    x = numbers(3, 4).requires_grad_(False)
    traced = trace(Case(forward, (x,)), keep=False)
    assert [ref() for ref in seen] == [None] * 5
    assert not traced.tracer.graph.memory.values
    assert [operation.function for operation in traced.record.operations] == ["input", *["mul"] * 5, "sum", "output"]
    assert [parent.operation for op in traced.record.operations for parent in op.parents] == [0, 1, 2, 3, 4, 5, 6]


def test_a_function_says_which_values_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    traced = trace(Case(model, (numbers(3, 4),)), keep=lambda facts, module: facts.name == "relu")
    kept = {traced.record.operations[index].function for index in traced.tracer.graph.memory.values}
    assert kept == {"relu"}


def test_a_dropped_trace_frees_its_tensors_without_the_garbage_collector() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    gc.collect()
    gc.disable()
    try:
        traced = trace(Case(model, (numbers(3, 4),)))
        traced.output.sum().backward()
        refs = [weakref.ref(value) for value in traced.tracer.graph.memory.values.values()]
        assert len(traced.tracer.graph.gradients) == 4
        del traced
        assert all(ref() is None for ref in refs)
    finally:
        gc.enable()


def test_a_write_by_something_unseen_makes_the_value_stale() -> None:
    x = numbers(3, 4)
    with Tracer(None, keep=True) as tracer:
        y = x * 2
        with torch._C.DisableTorchFunction():
            y.add_(1)
        z = y * 3
    assert tracer.graph.memory.stale() == {1}
    names = [node.facts.name for node in tracer.graph.nodes]
    assert names == ["constant", "mul", "update", "mul"]
    assert torch.equal(z, (x * 2 + 1) * 3)


def test_a_value_overwritten_after_the_block_is_stale() -> None:
    traced = trace(Case(lambda x: x * 2, (numbers(3, 4),)))
    assert not traced.tracer.graph.memory.stale()
    traced.output.zero_()
    assert traced.tracer.graph.memory.stale() == {1, 2}


def test_parameters_written_in_the_block_keep_their_earlier_value() -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    with Tracer(model, keep=True) as tracer:
        model(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        model(torch.ones(1, 2))
    values = {external.name: [] for external in tracer.graph.externals.all}  # type: ignore[var-annotated]
    for external in tracer.graph.externals.all:
        values[external.name].append(external.value)
    first, second = values["weight"]
    assert torch.equal(first, before)
    assert torch.equal(second, model.weight)
