"""What is known of each operation beside its value, in a live trace and in one that was read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.traces import Op

pytestmark = pytest.mark.feature("L5")


class Eventful(nn.Module):
    """Statistics that are updated, buffers that are written, two branches of unequal length, a loop."""

    seen: Tensor
    halves: Tensor
    upper: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.cell = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("halves", torch.zeros(8))
        self.register_buffer("upper", self.halves[4:])

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(x))
        self.upper.neg()
        row = self.seen[:2]
        row.add_(1)
        row.mul_(2)
        self.halves[:2].fill_(1)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            far = self.cell(self.cell(x))
        near, _ = x.split(2, dim=1)
        return torch.add(far, torch.cat([near, near], dim=1))


@pytest.fixture(params=["live", "read back"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> ls.Trace:
    torch.manual_seed(0)
    trace = ls.trace(Eventful(), torch.randn(6, 4))
    if request.param == "live":
        return trace
    trace.save(tmp_path / "run")
    return ls.open(tmp_path / "run").traces()[0]


def one(trace: ls.Trace, key: str | int) -> Op:
    found = trace[key]
    assert isinstance(found, Op)
    return found


def test_buffers_that_a_call_wrote_are_told_from_those_it_took(trace: ls.Trace) -> None:
    norm = one(trace, "batchnorm_1")
    assert norm.written == norm.buffers == ("norm.running_mean", "norm.running_var")
    assert one(trace, "add_1").written == ("norm.num_batches_tracked",)
    assert one(trace, "getitem_1").buffers == ("seen",)
    assert one(trace, "getitem_1").written == ()
    assert one(trace, "linear_1:1").written == ()
    assert "\tWrites: norm.running_mean, norm.running_var" in str(norm)


def test_a_buffer_written_through_a_view_is_written_each_time(trace: ls.Trace) -> None:
    assert [one(trace, key).written for key in ("add_2", "mul_1")] == [("seen",), ("seen",)]
    assert [one(trace, key).buffers for key in ("add_2", "mul_1")] == [(), ()]


def test_a_buffer_beside_the_written_part_of_the_memory_is_not_written(trace: ls.Trace) -> None:
    assert one(trace, "fill_1").written == ("halves",)


def test_in_evaluation_the_running_statistics_are_taken_and_not_written() -> None:
    trace = ls.trace(nn.BatchNorm1d(4).eval(), torch.randn(3, 4))
    norm = one(trace, "batchnorm_1")
    assert (norm.buffers, norm.written) == (("running_mean", "running_var"), ())


def test_a_write_that_raised_wrote_nothing() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Buffer(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(RuntimeError):
                self.seen.add_(torch.ones(3))
            return x + self.seen

    assert not any(op.written for op in ls.trace(Careless(), torch.ones(4)))


def test_branches_feed_several_calls_and_merges_take_several_results(trace: ls.Trace) -> None:
    assert [op.label for op in trace if op.is_branch] == [one(trace, "dropout_1").label]
    assert [op.label for op in trace if op.is_merge] == [op.label for op in trace.find("add_3")]
    pair = one(trace, "cat_1")
    assert pair.parent_arguments == ["0.0", "0.1"]
    assert {parent.label for parent in pair.parents} == {one(trace, "split_1").label}
    assert one(trace, "split_1").child_arguments == [["0.0", "0.1"]]
    assert "\tChildren (a branch): linear_1_10:1 (argument 0), split_1_11 (argument 0)" in str(trace["dropout_1"])
    assert "\tParents: split_1_11 (argument 0.0), split_1_11 (argument 0.1)" in str(pair)


def test_distances_go_by_the_shortest_and_the_longest_way(trace: ls.Trace) -> None:
    assert one(trace, "dropout_1").from_input == (2, 2)
    assert one(trace, "dropout_1").to_output == (4, 4)
    steps = ls.trace(lambda x: x + x.relu().tanh(), torch.ones(2))
    assert one(steps, "add_1").from_input == (1, 3)
    assert one(steps, "input_1").to_output == (2, 4)
    assert "Distance: 1-3 from the input, 1 to the output" in str(steps["add_1"])
    assert one(trace, "add_1").from_input is one(trace, "add_1").to_output is None


def test_the_pass_of_a_layer_and_the_call_of_a_module_are_counted(trace: ls.Trace) -> None:
    second = one(trace, "linear_1:2")
    assert (second.number, len(second.layer), second.module, second.module_call) == (2, 2, "cell", 2)
    assert "(pass 2/2)" in str(second)
    assert "Computed inside module: cell, call 2" in str(second)


def test_the_innermost_of_nested_modules_is_the_bottom_level_one() -> None:
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Identity())
    text = str(ls.trace(nested, torch.ones(1, 2))["linear_1"])
    assert "Output of modules: 0, 0.0, 1\n\tOutput of bottom-level module: 0.0" in text


def test_gradient_mode_autocast_and_chance_are_said(trace: ls.Trace) -> None:
    linear = one(trace, "linear_1:1")
    assert (linear.grad_mode, linear.autocast) == (False, "cpu:bfloat16")
    assert "Ran: without gradients, autocast to cpu:bfloat16" in str(linear)
    assert [op.label for op in trace if op.is_random] == [one(trace, "dropout_1").label]


def test_the_table_says_what_the_operations_say(trace: ls.Trace) -> None:
    rows = trace.table().arrow().to_pylist()
    for op, row in zip(trace, rows, strict=True):
        said = (op.is_branch, op.is_merge, op.is_random, op.grad_mode, op.autocast, op.number, op.module_call)
        names = ("is_branch", "is_merge", "is_random", "grad_mode", "autocast", "pass", "module_call")
        assert said == tuple(row[name] for name in names)
        assert list(op.written) == list(row["written"])
        assert [child.label for child in op.children] == list(row["children"])
        assert op.child_arguments == [list(arguments) for arguments in row["child_arguments"]]
        assert op.from_input is None or op.from_input == (row["from_input"], row["from_input_longest"])
        assert op.to_output is None or op.to_output == (row["to_output"], row["to_output_longest"])


def test_the_random_state_replays_an_operation_of_a_live_trace(tmp_path: Path) -> None:
    trace = ls.trace(Eventful(), torch.randn(6, 4))
    drop = one(trace, "dropout_1")
    with torch.random.fork_rng(devices=[]):
        assert drop.random_state is not None
        torch.set_rng_state(drop.random_state)
        assert torch.equal(nn.functional.dropout(drop.parents[0].value), drop.value)
    assert one(trace, "linear_1:1").random_state is None
    assert one(ls.trace(Eventful().eval(), torch.randn(6, 4)), "dropout_1").random_state is None
    trace.save(tmp_path / "run")
    assert one(ls.open(tmp_path / "run").traces()[0], "dropout_1").random_state is None


def test_the_stack_shows_the_code_around_the_line(trace: ls.Trace) -> None:
    frame = next(frame for frame in one(trace, "dropout_1").stack if frame.file == __file__)
    lines = Path(__file__).read_text().splitlines()
    assert lines[frame.line - 1].strip() == "x = self.drop(self.norm(x))"
    assert list(frame.lines) == lines[frame.line - 3 : frame.line + 2]
    assert f">{frame.line:6} {lines[frame.line - 1]}" in str(frame).splitlines()
    assert "x = self.drop(self.norm(x))" in str(trace["dropout_1"])


def test_a_function_of_torch_was_called_where_its_caller_stands(trace: ls.Trace) -> None:
    assert Path(one(trace, "dropout_1").stack[0].file).parts[-3:] == ("nn", "modules", "dropout.py")


def test_code_that_cannot_be_read_is_left_out() -> None:
    scope: dict[str, object] = {}
    exec(compile("def double(x):\n    return x * 2\n", "<no such file>", "exec"), scope)
    double = scope["double"]
    assert callable(double)
    frame = one(ls.trace(double, torch.ones(2)), "mul_1").stack[0]
    assert (frame.line, frame.function, frame.lines) == (2, "double", ())
    assert str(frame) == "<no such file>:2 in double"
