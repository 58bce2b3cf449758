"""What `torch.compile` has compiled, inside a trace: one operation, the same bits, nothing compiled again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import layerscope as ls
from tests.trace.test_isolation import traces_of_torch
from tests.trace.zoo import Calls, numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.feature("L1"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own making
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.nn.functional.gelu(self.first(x)))


def outer(inner: Any) -> nn.Module:
    return Calls(lambda m, x: m.head(m.inner(x * 2).relu()), inner=inner, head=nn.Linear(4, 2))


def wrapped(backend: str) -> nn.Module:
    return outer(torch.compile(Inner(), backend=backend))


def in_place(backend: str) -> nn.Module:
    inner = Inner()
    inner.compile(backend=backend)
    return outer(inner)


def whole(backend: str) -> nn.Module:
    model = outer(Inner())
    model.compile(backend=backend)
    return model


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


FUNCTIONS: dict[Callable[[str], nn.Module], list[str]] = {
    wrapped: ["input", "mul", "OptimizedModule", "relu", "linear", "output"],
    in_place: ["input", "mul", "Inner", "relu", "linear", "output"],
    whole: ["input", "Calls", "output"],
}


@BACKENDS
@pytest.mark.parametrize("make", FUNCTIONS)
def test_a_compiled_module_is_one_operation_and_is_not_compiled_again(
    make: Callable[[str], nn.Module], backend: str
) -> None:
    before = traces_of_torch()
    model, x = make(backend), numbers(4, 8)
    plain = model(x)
    compiled = graphs()
    assert compiled
    calls = [module._compiled_call_impl for module in model.modules()]
    for _ in range(3):
        trace = ls.trace(model, x)
    assert torch.equal(trace.output, plain)  # type: ignore[arg-type]
    assert [op.function for op in trace] == FUNCTIONS[make]
    assert all(op.record.parents for op in trace if op.function != "input")
    assert graphs() == compiled
    assert torch.equal(model(x), plain)
    assert graphs() == compiled
    assert [module._compiled_call_impl for module in model.modules()] == calls
    assert traces_of_torch() == before


@BACKENDS
@pytest.mark.parametrize("make", FUNCTIONS)
def test_the_trace_of_a_compiled_module_can_be_proven_and_has_gradients(
    make: Callable[[str], nn.Module], backend: str
) -> None:
    trace = ls.trace(make(backend), numbers(4, 8))
    report = trace.validate()
    assert report, str(report)
    assert torch.is_grad_enabled()
    trace.output.sum().backward()  # type: ignore[attr-defined]
    assert all(op.grad is not None for op in trace if op.function in ("OptimizedModule", "Inner", "Calls"))


def test_modules_first_compiled_in_a_trace_give_the_same_outside_it() -> None:
    model, x = wrapped("aot_eager"), numbers(4, 8)
    traced = ls.trace(model, x).output
    assert torch.equal(model(x), traced)  # type: ignore[arg-type]


def test_a_compiled_function_that_is_traced_is_one_operation() -> None:
    @torch.compile(backend="aot_eager")
    def function(x: Tensor) -> Tensor:
        return (x * 2).tanh()

    trace = ls.trace(function, numbers(3))
    assert [op.function for op in trace] == ["input", "function", "output"]
    assert trace.validate()


def test_what_a_function_compiled_inside_the_pass_gave_is_said_to_be_unseen() -> None:
    function = torch.compile(lambda x: (x * 2).tanh(), backend="inductor")
    trace = ls.trace(Calls(lambda m, x: function(m.f(x)) + 1, f=nn.Linear(4, 4)), numbers(3, 4))
    assert [parent.function for parent in trace["add_1"].parents] == ["compiled"]  # type: ignore[union-attr]
    assert "how it came about was not seen" in str(trace.validate())


def test_traces_inside_one_another_each_see_the_compiled_module() -> None:
    before = traces_of_torch()
    model, x = wrapped("aot_eager"), numbers(4, 8)
    with ls.tracing(model) as one, ls.tracing(model) as other:
        model(x)
    for trace in (one, other):
        assert [op.function for op in trace] == FUNCTIONS[wrapped]
    assert traces_of_torch() == before


def test_an_error_inside_compiled_code_leaves_nothing_behind() -> None:
    before = traces_of_torch()
    for make in FUNCTIONS:
        model, x = make("aot_eager"), numbers(4, 7)
        calls = [module._compiled_call_impl for module in model.modules()]
        with pytest.raises(RuntimeError):
            ls.trace(model, x)
        assert [module._compiled_call_impl for module in model.modules()] == calls
    assert traces_of_torch() == before
