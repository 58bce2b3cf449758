"""What is recorded of a pass: operations, edges, modules, and nothing that was not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.execute import same
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.model.trace_record import Role, TraceRecord
from tests.trace.examine import Traced, trace
from tests.trace.zoo import Calls, Case, numbers

pytestmark = pytest.mark.feature("L1")


def names(traced: Traced) -> list[str]:
    return [operation.function for operation in traced.record.operations]


def edges(record: TraceRecord) -> list[tuple[str, list[int]]]:
    return [(op.function, [parent.operation for parent in op.parents]) for op in record.operations]


def test_a_write_through_a_view_is_an_edge_to_all_who_share_the_memory() -> None:
    def forward(x: Tensor) -> Any:
        y = x * 2
        y[0].add_(1)
        return y + 1

    assert edges(trace(Case(forward, (numbers(3, 4),))).record) == [
        ("input", []),
        ("mul", [0]),
        ("getitem", [1]),
        ("add", [2]),
        ("update", [1, 3]),
        ("add", [4]),
        ("output", [5]),
    ]


def test_what_a_module_took_and_gave_back_unchanged_is_its_makers_again() -> None:
    class Casting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(x.dtype).square()

    case = Case(Calls(lambda m, x: (y := x * 2) + m.inner(y), inner=Casting()), (numbers(3, 4),))
    assert edges(trace(case).record) == [
        ("input", []),
        ("mul", [0]),
        ("to", [1]),
        ("square", [2]),
        ("add", [1, 3]),
        ("output", [4]),
    ]


def test_so_it_is_when_a_module_inside_gave_it_on() -> None:
    inner = nn.Sequential(nn.Dropout(0.5), nn.ReLU()).eval()
    case = Case(Calls(lambda m, x: (y := x * 2) + m.inner(y), inner=inner).eval(), (numbers(3, 4),))
    assert edges(trace(case).record) == [
        ("input", []),
        ("mul", [0]),
        ("dropout", [1]),
        ("relu", [2]),
        ("add", [1, 3]),
        ("output", [4]),
    ]


def test_a_call_that_was_told_to_work_in_place_does_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.ReLU())
    operations = trace(Case(model, (numbers(3, 4),))).record.operations
    assert [op.in_place for op in operations if op.function == "relu"] == [True, False]


def test_a_dropout_that_does_nothing_stays_on_the_way() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    found = edges(trace(Case(model, (numbers(3, 4),))).record)
    assert found == [("input", []), ("linear", [0]), ("dropout", [1]), ("linear", [2]), ("output", [3])]


def test_a_write_elsewhere_in_the_memory_is_no_edge() -> None:
    def forward(x: Tensor) -> Any:
        first, second = x.clone().split(2)
        first.add_(1)
        return second * 2

    record = trace(Case(forward, (numbers(4, 4),))).record
    assert record.operations[-2].function == "mul"
    assert record.operations[record.operations[-2].parents[0].operation].function == "split"


def test_the_output_of_vmap_comes_from_what_was_computed_inside() -> None:
    traced = trace(Case(lambda x: torch.vmap(lambda row: row.sin().sum())(x) * 2, (numbers(3, 4),)))
    assert names(traced) == ["input", "alias", "sin", "sum", "alias", "mul", "output"]
    for keep in (True, False):
        record = trace(Case(lambda x: torch.vmap(lambda row: row.sin())(x) * 2, (numbers(3, 4),)), keep=keep).record
        assert all(operation.parents or operation.role is Role.INPUT for operation in record.operations)


def test_a_hook_that_replaces_the_models_output_is_seen() -> None:
    model = nn.Linear(4, 4)
    handle = model.register_forward_hook(lambda module, args, output: output * 3)
    traced = trace(Case(model, (numbers(3, 4),)))
    assert names(traced) == ["input", "linear", "mul", "output"]
    assert list(model._forward_hooks) == [handle.id]


def test_module_calls_know_their_inputs_and_outputs() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    record = trace(Case(model, (numbers(3, 4),))).record
    called = {call.path: (call.inputs, call.outputs) for call in record.calls[1:]}
    assert called == {"": ((0,), (3,)), "0": ((0,), (1,)), "1": ((1,), (3,)), "1.0": ((1,), (2,)), "1.1": ((2,), (3,))}


def test_numbers_of_calls_count_up_for_a_module_called_again() -> None:
    traced = trace(Case(Calls(lambda m, x: m.f(m.f(x)), f=nn.Linear(4, 4), idle=nn.Linear(4, 4)), (numbers(3, 4),)))
    assert [(call.path, call.number) for call in traced.record.calls] == [("", 0), ("", 1), ("f", 1), ("f", 2)]
    assert ("idle", "Linear") in traced.record.modules


def test_a_checkpointed_forward_is_recorded_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with Tracer(model, keep=True) as tracer:
        torch.utils.checkpoint.checkpoint(model, numbers(3, 4).requires_grad_(), use_reentrant=False).sum().backward()
    assert [node.facts.name for node in tracer.graph.nodes].count("linear") == 1
    assert [call.path for call in tracer.calls] == ["", "", "0", "1"]


def test_composites_are_one_operation_or_many() -> None:
    def forward(x: Tensor) -> Any:
        return F.cross_entropy(torch.einsum("ij,kj->ik", x, x), torch.tensor([0, 1, 2]))

    closed = trace(Case(forward, (numbers(3, 4),)))
    opened = trace(Case(forward, (numbers(3, 4),), open_composites=True))
    assert names(closed) == ["input", "einsum", "tensor", "cross_entropy", "output"]
    assert "cross_entropy_loss" in names(opened)
    assert same(closed.output, opened.output)


def fused_models() -> dict[str, Case]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = numbers(2, 3, 8)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    return {
        "layer": Case(layer, (x,)),
        "attention": Case(attention, (x, x, x)),
        "encoder": Case(nn.TransformerEncoder(layer, 2), (x,)),
        "padded encoder": Case(nn.TransformerEncoder(layer, 2), (x,), {"src_key_padding_mask": mask}),
        "inside a model": Case(Calls(lambda m, x: m.a(x, x, x)[0] + m.b(x), a=attention, b=layer), (x,)),
        "through a submodule": Case(Calls(lambda m, x: m.e.layers[0](x) * 2, e=nn.TransformerEncoder(layer, 1)), (x,)),
        "forward itself": Case(Calls(lambda m, x: m.b.self_attn(x, x, x)[0], b=layer), (x,)),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("frozen", [False, True], ids=["without grad", "frozen"])
@pytest.mark.parametrize("name", sorted(fused_models()))
def test_fused_paths_are_taken_under_the_tracer_too(name: str, frozen: bool) -> None:
    case = fused_models()[name]
    assert isinstance(case.call, nn.Module)
    case.call.eval().requires_grad_(not frozen)
    with torch.set_grad_enabled(frozen):
        expected = case.call(*case.args, **case.kwargs)
        traced = trace(case)
    pairs = zip(expected, traced.output, strict=True) if isinstance(expected, tuple) else [(expected, traced.output)]
    assert all(same(*pair) for pair in pairs)


def test_a_failing_call_is_named_and_what_came_before_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))
    tracer = Tracer(model, keep=True)
    x = numbers(3, 4)
    with pytest.raises(RuntimeError) as caught, tracer:
        model(x)
    assert tracer.failing_call(caught.value) == "linear in 1.1"
    assert tracer.failing_call(ValueError("another")) is None
    record = describe(tracer, "case", None, str(caught.value))
    assert [operation.function for operation in record.operations] == ["input", "linear", "relu"]
    assert record.failure is not None


def test_an_error_that_the_model_catches_leaves_modules_in_order() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        try:
            m.bad(x)
        except RuntimeError:
            x = m.good(x)
        return x

    inner = nn.Sequential(nn.Linear(5, 4))
    record = trace(Case(Calls(forward, bad=inner, good=nn.Linear(4, 4)), (numbers(3, 4),))).record
    assert record.calls[record.operations[1].call].path == "good"
    assert record.calls[record.calls[-1].parent or 0].path == ""


def test_structure_is_recorded_on_the_meta_device() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)).to("meta")
    traced = trace(Case(model, (torch.empty(3, 4, device="meta"),)))
    assert names(traced) == ["input", "linear", "relu", "output"]
    assert traced.record.operations[1].device == "meta"


def test_structure_is_recorded_with_fake_tensors() -> None:
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        traced = trace(Case(model, (torch.empty(3, 4),)))
    assert names(traced) == ["input", "linear", "relu", "output"]
    assert traced.record.operations[2].shape == (3, 4)


def test_what_another_thread_computed_is_a_constant() -> None:
    from tests.trace.zoo_forms import computed_in_another_thread

    assert edges(trace(computed_in_another_thread()).record) == [
        ("input", []),
        ("constant", []),
        ("add", [1]),
        ("output", [2]),
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_one_operation_of_its_inputs() -> None:
    scripted = torch.jit.trace(nn.Linear(4, 4), numbers(3, 4))
    traced = trace(Case(Calls(lambda m, x: m.inner(x) + 1, inner=scripted), (numbers(3, 4),)))
    assert [len(operation.parents) for operation in traced.record.operations] == [0, 1, 1, 1]


def test_autocast_and_grad_mode_are_recorded() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            return m.f(x)

    operation = trace(Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))).record.operations[1]
    assert operation.autocast == "cpu:bfloat16"
    assert not operation.grad_mode
    assert operation.dtype == "bfloat16"


def test_empty_modules_and_functions_without_tensors_have_empty_records() -> None:
    assert names(trace(Case(lambda: 3))) == []
    assert names(trace(Case(nn.Sequential(), (numbers(2),)))) == ["input", "output"]
