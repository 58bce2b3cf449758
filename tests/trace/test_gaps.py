"""Tensors that enter a pass from outside of torch: constants, or a way past everything that was seen."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import layerscope as ls
from tests.trace.zoo import Calls

pytestmark = pytest.mark.feature("L9")


def in_a_thread(compute: Callable[[], Tensor]) -> Tensor:
    found: list[Tensor] = []
    worker = threading.Thread(target=lambda: found.append(compute()))
    worker.start()
    worker.join()
    return found[0]


GAPS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "numpy": lambda m, x: torch.from_numpy(x.numpy() * 2) + 1,
    "argmax": lambda m, x: x + torch.from_numpy(np.argmax(x.numpy(), -1)).float()[:, None],
    "list": lambda m, x: torch.tensor(x.tolist()) + 1,
    "thread": lambda m, x: in_a_thread(lambda: x * 2) + 1,
}


def test_an_index_that_random_inputs_leave_as_it_was_is_a_gap() -> None:
    model = nn.Sequential(nn.Identity(), Calls(GAPS["argmax"]))
    for seed in range(20):  # of two values, other ones have the same argmax every second time
        torch.manual_seed(seed)
        assert not ls.trace(model, torch.randn(1, 2)).validate()


@pytest.mark.parametrize("name", GAPS)
def test_a_way_of_the_inputs_past_torch_is_a_gap_that_is_named(name: str) -> None:
    model = nn.Sequential(nn.Identity(), Calls(GAPS[name]))
    report: Any = ls.trace(model, torch.randn(3, 4)).validate()
    assert not report
    assert not report.complete
    assert "NOT COMPLETE" in str(report)
    (gap,) = report.gaps
    assert "in 1 at" in gap.text
    assert "test_gaps.py:" in gap.text
    assert "it changes with the inputs" in gap.text


def constants(m: Any, x: Tensor) -> Any:
    m.calls += 1
    drawn = torch.from_numpy(np.random.rand(4)) + random.random()
    counted = torch.from_numpy(np.full(4, m.calls))
    size = torch.tensor(x.shape).sum() + torch.zeros(4) + torch.arange(4)
    return (x * m.mask + torch.from_numpy(m.table) + torch.tensor([1.0, 2, 3, 4]) + drawn + counted + size)[:, m.ids]


def test_constants_that_do_not_depend_on_the_inputs_are_no_gaps_and_nothing_is_changed() -> None:
    model: Any = Calls(constants, norm=nn.BatchNorm1d(4))
    model.calls, model.mask, model.table, model.ids = 0, torch.ones(4), np.arange(4.0), torch.arange(4)
    trace = ls.trace(model, torch.randn(3, 4))
    before, torch_before = (random.getstate(), str(np.random.get_state())), torch.get_rng_state()
    report: Any = trace.validate()
    assert report, str(report)
    assert report.complete
    assert str(report).startswith("right:")
    assert model.calls == 1
    assert (random.getstate(), str(np.random.get_state())) == before
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_what_differs_from_run_to_run_is_not_taken_for_the_inputs_doing() -> None:
    fresh = np.random.default_rng()
    model = Calls(lambda m, x: x + torch.from_numpy(fresh.random(4)))
    report: Any = ls.trace(model, torch.randn(3, 4)).validate()
    assert report
    assert not report.complete
    assert "right, and not complete" in str(report)


def test_a_function_is_run_again_only_when_asked_to() -> None:
    runs: list[int] = []
    other = torch.ones(4)

    def function(x: Tensor) -> Tensor:
        runs.append(1)
        return in_a_thread(lambda: x * 2) + other

    trace = ls.trace(function, torch.randn(3, 4))
    report: Any = trace.validate()
    assert len(runs) == 1
    assert not report.complete
    assert "whether it depends on the inputs" in str(report)
    report = trace.validate(rerun=True)
    assert len(runs) > 1
    assert [gap.operation for gap in report.gaps] == [1]
    assert not report
    assert not ls.trace(lambda x: torch.from_numpy(x.numpy() * 2), torch.randn(3)).validate()  # it was seen to leave


def test_a_block_says_that_it_did_not_find_out() -> None:
    model, target = nn.Linear(4, 4), torch.randn(3, 4)
    with ls.tracing(model) as trace:
        nn.functional.mse_loss(model(torch.randn(3, 4)), target)
    report: Any = trace.validate()
    assert report
    assert not report.complete
    assert "a block cannot be run again" in str(report)


def test_rerun_false_leaves_the_model_alone() -> None:
    runs: list[Tensor] = []
    model = Calls(lambda m, x: in_a_thread(lambda: runs.append(x) or x * 2) + 1)  # type: ignore[func-returns-value]
    report: Any = ls.trace(model, torch.randn(3, 4)).validate(rerun=False)
    assert len(runs) == 1
    assert not report.complete


@pytest.mark.parametrize("reentrant", [False, True])
def test_batch_norm_that_is_computed_again_by_checkpointing_is_not_called_wrong(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    model = Calls(lambda m, x: checkpoint(m.block, x, use_reentrant=reentrant).sum(), block=block)
    trace = ls.trace(model, torch.randn(5, 4, requires_grad=True))
    trace.output.backward()  # type: ignore[attr-defined]
    report: Any = trace.validate()
    assert report, str(report)
    assert not report.unchecked


def test_weights_that_were_trained_since_are_not_called_wrong() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trace = ls.trace(model, torch.randn(3, 4))
    trace.output.sum().backward()  # type: ignore[attr-defined]
    optimizer.step()
    report: Any = trace.validate()
    assert not report.faults
    assert "0.weight has changed since" in str(report)


def set_to_another(x: Tensor) -> Tensor:
    y = x * 1
    z = y * 2
    y.set_(z)  # type: ignore[call-overload]
    return y + 1


def set_to_a_storage(x: Tensor) -> Tensor:
    y = x.clone()
    y.set_(torch.zeros(12).untyped_storage(), 0, (3, 4), (4, 1))
    return y * 2 + x


def set_from_empty(x: Tensor) -> Tensor:
    y = torch.empty(0)
    y.set_(x)  # type: ignore[call-overload]
    return y * 2


def resized(x: Tensor) -> Tensor:
    y = x.clone()
    z = y * 2
    y.resize_(5, 6).zero_()
    return y.sum() + z


def storage_let_go(x: Tensor) -> Tensor:
    y = x * 2
    z = y + 1
    y.untyped_storage().resize_(0)
    return z * 2


def forward_mode(x: Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        primal, tangent = forward_ad.unpack_dual(dual.sin() * 2)
        return primal + tangent


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forward-mode differentiation
@pytest.mark.parametrize(
    "function", [set_to_another, set_to_a_storage, set_from_empty, resized, storage_let_go, forward_mode]
)
def test_what_cannot_be_executed_again_is_not_called_wrong(function: Callable[[Tensor], Tensor]) -> None:
    report: Any = ls.trace(function, torch.randn(3, 4)).validate()
    assert not report.faults, str(report)
    assert report.unchecked
