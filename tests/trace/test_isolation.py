"""Several traces at once, inside one another, around errors: right results, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.capture.torch.trace.validate import validate
from tests.trace.examine import trace
from tests.trace.zoo import Calls, Case, numbers

pytestmark = pytest.mark.feature("L13")


def traces_of_torch() -> dict[str, Any]:
    """Everything in torch that a tracer could have left changed."""
    return {
        "hooks": [dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks)],
        "always": dict(torch_module._global_forward_hooks_always_called),
        "modes": torch._C._len_torch_function_stack(),
        "enabled": torch._C._is_torch_function_enabled(),
        "functions": {name: id(getattr(torch, name)) for name in ("add", "relu", "matmul", "cat", "randn")},
        "methods": {name: id(getattr(Tensor, name)) for name in ("add", "relu_", "__add__", "backward")},
        "functional": {name: id(getattr(nn.functional, name)) for name in ("relu", "linear", "conv2d")},
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "grad": torch.is_grad_enabled(),
    }


def recurrent() -> nn.Module:
    torch.manual_seed(0)

    def forward(m: Any, x: Tensor, times: int) -> Any:
        for _ in range(times):
            x = m.f(x).relu() * 0.5
        return x

    return Calls(forward, f=nn.Linear(8, 8))


def test_eight_threads_trace_at_once_and_each_sees_only_its_own() -> None:
    before = traces_of_torch()
    model = recurrent()
    together = threading.Barrier(8)

    def work(number: int) -> tuple[int, bool, bool]:
        case = Case(model, (numbers(4, 8) + number, 10 + number))
        expected = model(*case.args)
        together.wait()
        right = True
        for _ in range(5):
            traced = trace(case)
            right &= torch.equal(traced.output, expected)
        return len(traced.record.operations), right, bool(validate(traced.tracer, traced.record))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [(3 * (10 + number) + 2, True, True) for number in range(8)]
    assert traces_of_torch() == before


def test_a_trace_inside_a_trace_sees_its_part_and_the_outer_sees_all() -> None:
    before = traces_of_torch()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = numbers(3, 4)
    with Tracer(model, keep=True) as outer:
        x = x * 1
        with Tracer(model, keep=True) as inner:
            y = model(x)
        y.add(1)
    assert [node.facts.name for node in inner.graph.nodes] == ["input", "linear", "relu", "output"]
    assert [node.facts.name for node in outer.graph.nodes] == ["constant", "mul", "linear", "relu", "output", "add"]
    assert [call.path for call in outer.calls] == [call.path for call in inner.calls] == ["", "", "0", "1"]
    assert traces_of_torch() == before


def test_nested_traces_of_a_fused_layer_end_with_torch_as_it_was() -> None:
    before = traces_of_torch()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = numbers(2, 3, 8)
    with torch.no_grad(), Tracer(layer, keep=True) as outer, Tracer(layer, keep=True) as inner:
        layer(x)
    for tracer in (outer, inner):
        assert [node.facts.name for node in tracer.graph.nodes] == ["input", "TransformerEncoderLayer", "output"]
    assert traces_of_torch() == before


class Interrupts(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Any:
        raise self.error("in mid-forward")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("hooked", [False, True])
def test_an_error_leaves_nothing_behind(error: type[BaseException], hooked: bool) -> None:
    before = traces_of_torch()
    model = nn.Sequential(nn.Linear(4, 4), Interrupts(error))
    if hooked:
        model[1].register_forward_hook(lambda module, args, output: None)
    hooks = len(model[1]._forward_hooks)
    tracer = Tracer(model, keep=True)
    x = numbers(3, 4)
    with pytest.raises(error), tracer:
        model(x)
    assert [node.facts.name for node in tracer.graph.nodes] == ["input", "linear"]
    assert traces_of_torch() == before
    assert len(model[1]._forward_hooks) == hooks


def test_an_interrupt_inside_a_fused_layer_leaves_torch_looking() -> None:
    before = traces_of_torch()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    layer.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), Tracer(layer, keep=True):
        layer(numbers(2, 3, 8))
    assert traces_of_torch() == before


def test_the_model_carries_nothing_after_a_trace() -> None:
    model = recurrent()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    traced = trace(Case(model, (numbers(4, 8), 3)))
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert {name: len(module._forward_hooks) for name, module in model.named_modules()} == hooks
    assert not vars(traced.output)
    assert all(not vars(parameter) for parameter in model.parameters())


def test_modules_called_on_another_thread_are_not_recorded() -> None:
    model = nn.Linear(4, 4)
    x = numbers(3, 4)
    with Tracer(model, keep=True) as tracer:
        other = threading.Thread(target=model, args=(x,))
        other.start()
        other.join()
    assert len(tracer.calls) == 1
    assert len(tracer.graph.nodes) == 0


def test_a_tracer_made_on_one_thread_can_record_on_another() -> None:
    model = nn.Linear(4, 4)
    tracer = Tracer(model, keep=True)
    x = numbers(3, 4)

    def work() -> None:
        with tracer:
            model(x)

    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert [node.facts.name for node in tracer.graph.nodes] == ["input", "linear", "output"]
