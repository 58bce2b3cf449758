"""Results replaced while the pass runs: `tracing(edits={selector: function})`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.capture.torch.trace.edits import RunningOp
from layerscope.errors import ArgumentError, SelectError
from tests.trace.zoo import numbers

pytestmark = pytest.mark.feature("L12")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x) + x)


@pytest.fixture
def model() -> Net:
    return Net()


def edited(model: nn.Module, edit: Any) -> tuple[ls.Trace, Tensor]:
    x = numbers(3, 4)
    with ls.tracing(model, edits=edit) as trace:
        output = model(x)
    return trace, output


def test_every_result_of_a_function_is_replaced_and_the_pass_goes_on_with_it(model: Net) -> None:
    trace, output = edited(model, {"relu": torch.zeros_like})
    assert [bool(op.value.any()) for op in trace.find("relu")] == [False, False]
    assert torch.equal(output, model.head(numbers(3, 4)))


def test_a_module_path_a_glob_and_a_rule_choose_where(model: Net) -> None:
    seen: list[RunningOp] = []

    def second_linear(running: RunningOp) -> bool:
        seen.append(running)
        return "features.2.weight" in running.parameters

    for selector in ("features.2", second_linear):
        trace, _ = edited(model, {selector: torch.ones_like})
        assert [bool((op.value == 1).all()) for op in trace.find("linear")] == [False, True, False]
    assert [(r.function, r.module, r.shape) for r in seen][:2] == [
        ("linear", "features.0", (3, 4)),
        ("relu", "features.1", (3, 4)),
    ]
    everywhere, _ = edited(model, {"features.*": torch.zeros_like})
    assert len([op for op in everywhere if op.function in ("linear", "relu") and not op.value.any()]) == 4


def test_a_tensor_takes_the_results_place_and_several_edits_follow_one_another(model: Net) -> None:
    patch = numbers(3, 4) + 5
    trace, _ = edited(model, {"features.1": patch, "relu": lambda result: result * 2})
    assert torch.equal(trace["relu_1"].value, patch * 2)  # type: ignore[union-attr]


def test_gradients_flow_through_the_edit(model: Net) -> None:
    with ls.tracing(model, edits={"features.2": lambda result: result * 3}) as trace:
        model(numbers(3, 4)).sum().backward()
    inner = trace["features.1"].grad  # type: ignore[union-attr]
    traced = model.features[0].weight.grad
    model.zero_grad()
    plain = model.features[1](model.features[0](numbers(3, 4)))
    plain.retain_grad()
    model.head(model.features[3](model.features[2](plain) * 3) + numbers(3, 4)).sum().backward()
    assert torch.equal(inner, plain.grad)  # type: ignore[arg-type]
    assert torch.equal(traced, model.features[0].weight.grad)  # type: ignore[arg-type]


def test_the_edited_trace_compares_with_the_plain_one(model: Net) -> None:
    plain = ls.trace(model, numbers(3, 4))
    trace, _ = edited(model, {"features.2": torch.zeros_like})
    assert trace.labels == plain.labels
    difference = ls.compare(plain, trace).pandas().set_index("label")["equal"]
    assert [label for label in plain.labels if not difference[label]][:2] == ["linear_2_3", "relu_2_4"]


def test_a_result_written_in_place_is_written_over() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        y.relu_()
        return y + 1

    with ls.tracing(edits={"relu": torch.zeros_like}):
        output = forward(numbers(3, 4))
    assert torch.equal(output, torch.ones(3, 4))


def test_validation_leaves_out_what_was_edited_and_proves_the_rest(model: Net) -> None:
    trace, _ = edited(model, {"relu": torch.zeros_like})
    report = trace.validate()
    assert report, str(report)
    assert "replaced by an edit" in str(report)
    again = ls.trace(model, numbers(3, 4)).rerun({"relu_1": torch.zeros_like})
    assert "replaced by an edit" in str(again.validate())


def test_another_shape_is_allowed_where_the_model_takes_it(model: Net) -> None:
    _, output = edited(model, {"add": lambda result: result[:1]})
    assert output.shape == (1, 2)
    with pytest.raises(RuntimeError) as caught:
        edited(model, {"features.1": lambda result: result[:, :2]})
    assert "linear" in caught.value.layerscope_trace.record.failure  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"relu": 3}, "The edit of 'relu' is int: give a function of the result, or a tensor"),
        ({3: torch.zeros_like}, "chosen by a name, a glob or a function, not by int"),
        ({"rleu": torch.zeros_like}, r"The edit of 'rleu' was never applied: .* Near it: 'relu'"),
        ({lambda running: False: torch.zeros_like}, "said yes to no operation"),
    ],
)
def test_a_wrong_edit_is_an_error_that_helps(edit: Any, message: str, model: Net) -> None:
    with pytest.raises((ArgumentError, SelectError), match=message):
        edited(model, edit)


def test_an_edit_must_give_a_tensor(model: Net) -> None:
    with pytest.raises(ArgumentError, match=r"returned NoneType, not a tensor"):
        edited(model, {"relu": lambda result: None})


def test_an_error_of_the_model_is_not_hidden_by_an_edit_that_was_never_applied(model: Net) -> None:
    with pytest.raises(ZeroDivisionError), ls.tracing(model, edits={"nowhere": torch.zeros_like}):
        raise ZeroDivisionError
