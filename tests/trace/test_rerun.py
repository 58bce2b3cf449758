"""A pass run again with something replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.edits import Edits, rerun
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.capture.torch.trace.validate import validate
from layerscope.errors import ArgumentError, SelectError, StateError
from tests.trace.examine import Traced, trace
from tests.trace.zoo import Calls, Case, numbers

pytestmark = pytest.mark.feature("L12")


@pytest.fixture
def case() -> Case:
    torch.manual_seed(0)
    return Case(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)), (numbers(3, 4),))


def run_again(traced: Traced, case: Case, edits: Edits) -> tuple[Tracer, Any]:
    return rerun(traced.tracer, lambda tracer: case.call(*case.args), edits)


def number_of(traced: Traced, function: str) -> int:
    return next(op.index for op in traced.record.operations if op.function == function)


def test_a_rerun_without_edits_gives_the_same(case: Case) -> None:
    traced = trace(case)
    _, output = run_again(traced, case, Edits())
    assert torch.equal(output, traced.output)


def test_an_edited_result_is_what_the_rest_of_the_pass_sees(case: Case) -> None:
    traced = trace(case)
    index = number_of(traced, "dropout")
    again, output = run_again(traced, case, Edits({index: torch.zeros_like}))
    assert torch.equal(output, case.call[3].bias.expand(3, 2))  # type: ignore[index]
    assert torch.equal(again.graph.memory.values[index], torch.zeros(3, 4))
    assert [node.facts.name for node in again.graph.nodes] == [node.facts.name for node in traced.tracer.graph.nodes]


def test_an_edit_of_something_written_in_place_is_seen_by_all_who_look_at_it() -> None:
    def forward(x: Tensor) -> Any:
        y = x * 2
        y.relu_()
        return y + 1

    case = Case(forward, (numbers(3, 4),))
    traced = trace(case)
    _, output = rerun(traced.tracer, lambda tracer: forward(*enter(tracer, case)), Edits({2: torch.zeros_like}))
    assert isinstance(output, Tensor)
    assert torch.equal(output, torch.ones(3, 4))


def enter(tracer: Tracer, case: Case) -> tuple[Any, ...]:
    tracer.add_inputs((case.args, case.kwargs))
    return case.args


def test_another_function_takes_an_operations_place(case: Case) -> None:
    traced = trace(case)
    index = number_of(traced, "relu")
    again, _ = run_again(traced, case, Edits(functions={index: lambda x, inplace=False: torch.tanh(x)}))
    values = again.graph.memory.values
    assert torch.equal(values[index], torch.tanh(values[index - 1]))


def test_another_parameter_is_used_and_the_models_own_comes_back(case: Case) -> None:
    traced = trace(case)
    model = case.call
    assert isinstance(model, nn.Sequential)
    weight = model[3].weight
    again, output = run_again(traced, case, Edits(parameters={"3.weight": torch.zeros(2, 4)}))
    assert torch.equal(output, model[3].bias.expand(3, 2))  # type: ignore[operator]
    assert model[3].weight is weight
    assert "3.weight" in {external.name for external in again.graph.externals.all}


def test_a_result_patched_in_from_another_trace_gives_that_traces_output() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    one, other = trace(Case(model, (numbers(3, 4),))), trace(Case(model, (numbers(3, 4) * 3 + 1,)))
    value = other.tracer.graph.memory.values[1]
    _, output = run_again(one, Case(model, (numbers(3, 4),)), Edits({1: lambda tensor: value}))
    assert torch.equal(output, other.output)


def test_running_statistics_are_as_before(case: Case) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    norm = Case(model, (numbers(6, 4),))
    traced = trace(norm)
    before = [buffer.clone() for buffer in model.buffers()]
    run_again(traced, norm, Edits({1: torch.zeros_like}))
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), before, strict=True))


def test_a_way_that_changed_before_an_edited_operation_is_an_error() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        y = x * 2
        y = y + 1 if y.sum() > -1e9 else y.tanh()
        return m.f(y)

    case = Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))
    traced = trace(case)
    with pytest.raises(StateError, match="took another way before operation 4"):
        run_again(traced, case, Edits({1: lambda t: t - 1e10, 4: torch.zeros_like}))


def test_an_operation_that_is_not_reached_again_is_an_error() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        y = m.f(x)
        return y if y.sum() < -1e9 else y * 2

    case = Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))
    traced = trace(case)
    with pytest.raises(StateError, match="was not reached again"):
        run_again(traced, case, Edits({1: lambda t: t - 1e10, number_of(traced, "mul"): torch.zeros_like}))


def test_wrong_numbers_and_names_are_errors_with_the_nearest(case: Case) -> None:
    traced = trace(case)
    with pytest.raises(SelectError, match="no operation 99"):
        run_again(traced, case, Edits({99: torch.zeros_like}))
    with pytest.raises(SelectError, match=r"Near it: '3\.weight'"):
        run_again(traced, case, Edits(parameters={"3.weigth": torch.zeros(2, 4)}))
    with pytest.raises(ArgumentError, match="nothing computes it"):
        run_again(traced, case, Edits({0: torch.zeros_like}))
    with pytest.raises(ArgumentError, match="shape"):
        run_again(traced, case, Edits(parameters={"3.weight": torch.zeros(3)}))
    with pytest.raises(ArgumentError, match="not a tensor"):
        run_again(traced, case, Edits({1: lambda tensor: 3}))  # type: ignore[dict-item, return-value]


def test_an_unedited_rerun_can_be_proven(case: Case) -> None:
    traced = trace(case)
    again, _ = run_again(traced, case, Edits())
    assert validate(again, describe(again, "case", None, None))
