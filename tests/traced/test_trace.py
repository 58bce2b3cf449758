"""The public trace: look-ups, values, gradients, tables, files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.model.trace_record import Operation
from layerscope.traces import Op
from tests.traced.models import Residual, SimpleRecurrent


@pytest.fixture
def trace() -> ls.Trace:
    torch.manual_seed(0)
    return ls.trace(Residual(), torch.randn(3, 4), scale=2.0)


def op(trace: ls.Trace, key: str | int) -> Op:
    found = trace[key]
    assert isinstance(found, Op)
    return found


def test_the_output_is_what_the_call_gave(trace: ls.Trace) -> None:
    assert isinstance(trace.output, dict)
    assert set(trace.output) == {"sum", "hidden"}
    assert torch.equal(trace.output["hidden"], op(trace, "relu_1").value)


def test_parents_and_children_are_the_flow_of_the_data(trace: ls.Trace) -> None:
    merged = op(trace, "add_1")
    assert {parent.label for parent in merged.parents} == {"relu_2_5", "input_1_0"}
    assert {child.function for child in op(trace, "relu_1").children} == {"linear", "output"}


def test_a_module_used_at_two_places_is_two_layers(trace: ls.Trace) -> None:
    assert [o.label for o in trace.find("relu")] == ["relu_1_2", "relu_2_5"]
    assert op(trace, "act:1").label == "relu_1_2"
    assert op(trace, "act").label == "relu_2_5"


def test_an_exact_name_beats_a_substring_and_many_are_found_by_glob(trace: ls.Trace) -> None:
    assert [o.label for o in trace.find("linear_*")] == ["linear_1_1", "linear_2_3"]
    assert [o.label for o in trace.find("first")] == ["linear_1_1"]
    by_rule = trace.find(lambda operation: operation.function == "mul")
    assert [o.label for o in by_rule] == ["mul_1_4"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lienar_1", r"No operation or module is called 'lienar_1'\. Near it: 'linear_1_1"),
        ("linear", r"'linear' matches 2 operations: linear_1_1, linear_2_3\. Give one of them"),
        (99, r"There is no operation 99: the pass has \d+, from 0"),
    ],
)
def test_a_wrong_key_names_the_nearest(key: str | int, message: str, trace: ls.Trace) -> None:
    with pytest.raises(SelectError, match=message):
        trace[key]


@pytest.mark.feature("L8")
def test_gradients_come_with_every_backward(trace: ls.Trace) -> None:
    assert isinstance(trace.output, dict)
    assert op(trace, "linear_1").grad is None
    trace.output["sum"].sum().backward(retain_graph=True)
    first = op(trace, "relu_1").grad
    trace.output["hidden"].sum().backward()
    hidden = op(trace, "relu_1")
    assert first is not None
    assert torch.equal(hidden.grads[0], first)
    assert torch.equal(hidden.grads[1], torch.ones_like(hidden.value))


@pytest.mark.feature("L8")
def test_a_block_records_forwards_losses_and_backwards() -> None:
    model = SimpleRecurrent()
    with ls.tracing(model) as trace:
        loss = model(torch.randn(2, 5)).square().mean()
        loss.backward()
    assert "square_1" in " ".join(trace.labels)
    assert op(trace, "mean_1").grad == 1.0
    assert op(trace, "linear_1:4").grad is not None


@pytest.mark.feature("L10")
def test_the_table_has_a_row_for_every_operation(trace: ls.Trace) -> None:
    table = trace.table().pandas()
    assert list(table["label"]) == trace.labels
    row = table[table["label"] == "linear_1_1"].iloc[0]
    assert list(row["shape"]) == [3, 4]
    assert row["flops"] == 2 * 3 * 4 * 4 + 3 * 4
    assert list(row["parameters"]) == ["first.weight", "first.bias"]
    assert (row["from_input"], row["to_output"]) == (1, 2)
    assert row["module"] == "first"


@pytest.mark.feature("L10")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_uses_its_parameters_once_for_each_element_of_a_sequence(
    kind: Callable[..., nn.Module],
) -> None:
    layer = kind(6, 5, num_layers=2, bidirectional=True)
    found = ls.trace(layer, torch.randn(7, 3, 6)).table().pandas()["flops"]
    once = sum(p.numel() * (2 if p.dim() == 2 else 1) for p in layer.parameters())
    assert found.sum() == 7 * 3 * once


def test_a_saved_trace_opens_again(trace: ls.Trace, tmp_path: Path) -> None:
    assert isinstance(trace.output, dict)
    trace.output["sum"].sum().backward()
    trace.save(tmp_path / "run")
    trace.save(tmp_path / "run")
    again, _ = ls.open(tmp_path / "run").traces()
    assert again.record == trace.record
    assert str(again).splitlines()[2:] == str(trace).splitlines()[2:]
    for index, value in trace.values.items():
        np.testing.assert_array_equal(again.values[index], value.detach().numpy())
    grad = op(again, "linear_1").grad
    expected = op(trace, "linear_1").grad
    assert expected is not None
    np.testing.assert_array_equal(grad, expected.numpy())
    with pytest.raises(StateError, match="needs the model"):
        again.validate()


@pytest.mark.feature("L10")
def test_a_saved_number_has_no_axis(tmp_path: Path) -> None:
    ls.trace(lambda x: x.sum(), torch.ones(3)).save(tmp_path / "run")
    (again,) = ls.open(tmp_path / "run").traces()
    assert [value.shape for value in again.values.values()] == [(3,), (), ()]


@pytest.mark.feature("L10")
def test_the_record_is_exported_as_json(trace: ls.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["labels"] == trace.labels
    assert [row["function"] for row in content["operations"]] == [o.record.function for o in trace]
    with pytest.raises(ArgumentError, match=r"exported as \.html or \.json"):
        trace.export(tmp_path / "pass.xml")


def test_a_trace_is_saved_into_a_run_that_is_being_watched(trace: ls.Trace, tmp_path: Path) -> None:
    with ls.watch(Residual(), to=tmp_path / "run", every=1) as run:
        run.step(loss=1.0)
        trace.save(tmp_path / "run")
        run.step(loss=2.0)
    opened = ls.open(tmp_path / "run")
    assert len(opened.traces()) == 1
    assert opened.metrics()["loss"] == [1.0, 2.0]


@pytest.mark.feature("L9")
def test_validation_finds_the_trace_right_and_a_planted_value_wrong(trace: ls.Trace) -> None:
    assert trace.validate()
    index = op(trace, "mul_1").record.index
    assert isinstance(trace.values, dict)
    trace.values[index] = trace.values[index] + 1
    report = trace.validate()
    assert not report
    assert "mul" in str(report)


@pytest.mark.feature("L11")
def test_without_values_everything_but_the_values_is_known(trace: ls.Trace) -> None:
    bare = ls.trace(Residual(), torch.randn(3, 4), scale=2.0, save=None)
    assert bare.labels == trace.labels
    assert not bare.values
    assert bare.record.operations[1].shape == (3, 4)


@pytest.mark.feature("L11")
def test_an_error_carries_the_trace_so_far() -> None:
    class Broken(Residual):
        def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            hidden = self.first(x)
            return {"never": hidden @ torch.zeros(7, 7)}

    with pytest.raises(RuntimeError) as caught:
        ls.trace(Broken(), torch.randn(3, 4))
    partial = caught.value.layerscope_trace  # type: ignore[attr-defined]
    assert partial.labels[:2] == ["input_1_0", "linear_1_1"]
    assert "matmul" in str(partial)


def test_a_seed_is_set_for_the_pass_and_the_random_state_restored() -> None:
    model = nn.Dropout(0.5)
    before = torch.get_rng_state()
    first, second = (ls.trace(model, torch.ones(50), seed=3) for _ in range(2))
    assert isinstance(first.output, Tensor)
    assert isinstance(second.output, Tensor)
    assert torch.equal(first.output, second.output)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.record.seed == 3


def test_plain_functions_are_traced_with_inputs_and_outputs() -> None:
    trace = ls.trace(lambda x, *, power: (x**power).sum(), torch.ones(3), power=2)
    assert [operation.role.value for operation in trace.record.operations] == [
        "input",
        "operation",
        "operation",
        "output",
    ]


@pytest.mark.feature("L7")
@pytest.mark.parametrize("name", ["net.svg", "net.dot", "folder/net.svg"])
def test_the_graph_is_drawn_into_a_file(name: str, trace: ls.Trace, tmp_path: Path) -> None:
    drawn = trace.draw(tmp_path / name)
    ET.fromstring(drawn)
    text = (tmp_path / name).read_text()
    assert "linear_1_1" in text
    with pytest.raises(ArgumentError, match=r"drawn as \.svg, \.png, \.dot, not as '\.jpg'"):
        trace.draw(tmp_path / "net.jpg")


@pytest.mark.feature("L8")
def test_the_way_of_the_backward_pass_is_drawn_over_the_graph(trace: ls.Trace) -> None:
    assert isinstance(trace.output, dict)
    assert "way of the gradient" not in trace.draw(gradient=trace.gradients)
    trace.output["sum"].sum().backward()
    assert "way of the gradient" in trace.draw(gradient=trace.gradients)


def test_the_summary_adds_up() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    summary = ls.summary(model, torch.randn(5, 4))
    rows = summary.rows.pandas().set_index("path")
    assert rows.loc["", "parameters"] == sum(p.numel() for p in model.parameters())
    assert rows.loc["", "flops"] == rows.loc[["0", "1", "2"], "flops"].sum()
    assert list(rows.loc["2", "output_shapes"][0]) == [5, 2]
    assert "Linear" in str(summary)


@pytest.mark.feature("L13")
def test_tracing_changes_no_result_and_leaves_nothing() -> None:
    torch.manual_seed(1)
    model, x = Residual(), torch.randn(3, 4)
    plain = model(x)
    before = [sorted(vars(module)) for module in model.modules()]
    traced = ls.trace(model, x).output
    assert isinstance(traced, dict)
    assert all(torch.equal(plain[key], traced[key]) for key in plain)
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def rule(operation: Operation) -> bool:
    return operation.function == "relu"


def test_what_is_saved_can_be_chosen_by_a_function() -> None:
    trace = ls.trace(Residual(), torch.randn(3, 4), save=rule)
    assert {trace.record.operations[index].function for index in trace.values} == {"relu"}


@pytest.mark.feature("L12")
def test_a_pass_is_run_again_with_something_replaced() -> None:
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(3, 4)
    plain = ls.trace(model, x)
    zeroed = plain.rerun({"act:1": torch.zeros_like})
    expected = torch.relu(model.second(torch.zeros(3, 4))) + x
    assert isinstance(zeroed.output, dict)
    assert torch.equal(zeroed.output["sum"], expected)
    patched = zeroed.rerun({"relu_1": op(plain, "relu_1").value})
    assert isinstance(patched.output, dict)
    assert isinstance(plain.output, dict)
    assert torch.equal(patched.output["sum"], plain.output["sum"])
    bent = plain.rerun(functions={"relu_1": lambda value, **options: torch.tanh(value)})
    assert torch.equal(op(bent, "relu_1").value, torch.tanh(op(plain, "linear_1").value))
    doubled = plain.rerun(parameters={"first.weight": model.first.weight * 2, "first.bias": model.first.bias * 2})
    assert torch.allclose(op(doubled, "linear_1").value, 2 * op(plain, "linear_1").value)
    difference = ls.compare(plain, zeroed).pandas().set_index("label")
    assert difference.loc["linear_1_1", "equal"]
    assert not difference.loc["relu_1_2", "equal"]
    assert difference.loc["relu_1_2", "relative"] == pytest.approx(1.0)


def test_a_block_cannot_be_run_again() -> None:
    with ls.tracing() as trace:
        torch.ones(2) + 1
    with pytest.raises(StateError, match="A block cannot be run again"):
        trace.rerun()


def test_what_cannot_be_called_is_refused_and_an_empty_model_gives_its_input() -> None:
    with pytest.raises(ArgumentError, match=r"needs a model or function to call, not Tensor"):
        ls.trace(torch.ones(2), nn.Linear(2, 2))  # type: ignore[arg-type]
    empty = ls.trace(nn.Sequential(), torch.ones(2))
    assert empty.labels == ["input_1_0", "output_1_1"]
    assert empty.validate()


def test_an_input_that_is_no_tensor_gives_the_models_own_error() -> None:
    with pytest.raises(TypeError) as caught:
        ls.trace(nn.Linear(2, 2), "not a tensor")
    assert caught.value.layerscope_trace.record.failure.startswith("TypeError")  # type: ignore[attr-defined]


def test_a_trace_looked_at_too_early_says_so_and_is_whole_afterwards() -> None:
    with ls.tracing() as trace:
        x = torch.ones(2) + 1
        with pytest.raises(StateError, match="still being recorded"):
            len(trace)
        x.relu()
    assert [operation.function for operation in trace.record.operations] == ["ones", "add", "relu"]
