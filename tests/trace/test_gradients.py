"""Gradients of every operation, from any backward, leaving nothing on the user's tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerscope.capture.torch.trace.tracer import Tracer
from tests.trace.examine import trace
from tests.trace.zoo import Case, numbers

pytestmark = pytest.mark.feature("L8")


def retained(x: Tensor) -> dict[str, Tensor]:
    """The gradients as torch itself keeps them."""
    y = x * 2
    z = y.tanh()
    for tensor in (y, z):
        tensor.retain_grad()
    z.pow(2).sum().backward()
    assert x.grad is not None and y.grad is not None and z.grad is not None
    return {"input": x.grad, "mul": y.grad, "tanh": z.grad}


def gradients(tracer: Tracer) -> dict[str, list[Tensor]]:
    return {tracer.graph.nodes[node].facts.name: found for node, found in tracer.graph.gradients.items()}


@pytest.mark.parametrize("inside", [True, False], ids=["inside the block", "after the block"])
def test_every_operation_has_the_gradient_that_torch_computes(inside: bool) -> None:
    expected = retained(numbers(3, 4).requires_grad_())
    x = numbers(3, 4).requires_grad_()
    with Tracer(None, keep=True) as tracer:
        tracer.add_inputs(x)
        loss = (x * 2).tanh().pow(2).sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    found = gradients(tracer)
    assert set(found) == {"input", "mul", "tanh", "pow", "sum"}
    for name, gradient in expected.items():
        assert [torch.equal(one, gradient) for one in found[name]] == [True]


def test_each_backward_adds_a_gradient() -> None:
    x = numbers(3, 4).requires_grad_()
    with Tracer(None, keep=True) as tracer:
        y = x * 2
        loss = y.sum()
        loss.backward(retain_graph=True)
        (y * 3).sum().backward()
    node = next(index for index, node in enumerate(tracer.graph.nodes) if node.facts.name == "mul")
    assert [float(gradient[0, 0]) for gradient in tracer.graph.gradients[node]] == [1.0, 3.0]


def test_backward_from_an_intermediate_operation_reaches_only_what_is_before_it() -> None:
    traced = trace(Case(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (numbers(3, 4),)))
    traced.tracer.graph.memory.values[2].sum().backward()
    assert set(gradients(traced.tracer)) == {"linear", "tanh"}
    assert len(traced.tracer.graph.gradients) == 2


def test_every_result_of_a_call_has_its_own_gradient() -> None:
    x = numbers(4, 4).requires_grad_()
    with Tracer(None, keep=True) as tracer:
        first, second = x.chunk(2)
        (first + 2 * second).sum().backward()
    found = [tracer.graph.gradients[node][0].mean().item() for node in (1, 2)]
    assert found == [1.0, 2.0]


def test_gradients_flow_through_checkpoints_and_custom_functions() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = numbers(3, 4).requires_grad_()
    for reentrant in (True, False):
        with Tracer(model, keep=True) as tracer:
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        assert "tanh" in gradients(tracer)
        names = [node.facts.name for node in tracer.graph.nodes]
        assert names.count("tanh") == 1


def test_a_traced_backward_gives_the_same_parameter_gradients() -> None:
    def grads(*, traced: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(108, 5), nn.Dropout(0.3)
        )
        with Tracer(model, keep=True) if traced else torch.enable_grad():
            model(numbers(2, 1, 8, 8)).pow(2).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    assert all(torch.equal(one, other) for one, other in zip(grads(traced=True), grads(traced=False), strict=True))


def test_nothing_is_left_on_the_users_tensors() -> None:
    model = nn.Linear(4, 4)
    x = numbers(3, 4).requires_grad_()
    traced = trace(Case(model, (x,)))
    for tensor in (x, traced.output, *model.parameters()):
        assert tensor._backward_hooks is None
        assert not vars(tensor)


def test_without_grad_mode_there_are_no_hooks() -> None:
    with torch.no_grad():
        traced = trace(Case(nn.Linear(4, 4), (numbers(3, 4),)))
    assert not traced.tracer.graph.gradients._hooked
