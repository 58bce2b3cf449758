"""Cases of how models take, give, share and call."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.trace.zoo import Calls, Case, numbers, specimen

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    left: Tensor
    right: Tensor | None = None


@specimen
def tied_weights() -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Any:
            return self.head(self.embed(x))

    return Case(Tied(), (torch.tensor([[1, 2, 3]]),))


@specimen
def same_module_many_times() -> Case:
    return Case(Calls(lambda m, x: m.f(m.f(m.f(x))), f=nn.Linear(4, 4), unused=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def nested_structures() -> Case:
    def forward(m: Any, x: dict[str, Any], *, scale: float, none: None = None) -> dict[str, Any]:
        y = m.f(x["a"][0]) * scale
        return {"y": y, "list": [y + 1, (y * 2, None)], "text": "no tensor"}

    return Case(Calls(forward, f=nn.Linear(4, 4)), ({"a": [numbers(3, 4), None]},), {"scale": 2.0})


@specimen
def dataclass_in_and_out() -> Case:
    return Case(Calls(lambda m, b: Batch(m.f(b.left)), f=nn.Linear(4, 4)), (Batch(numbers(3, 4)),))


@specimen
def named_tuple_in_and_out() -> Case:
    return Case(Calls(lambda m, p: Pair(m.f(p.left), p.right), f=nn.Linear(4, 4)), (Pair(numbers(3, 4), numbers(2)),))


@specimen
def ordered_dict_out() -> Case:
    return Case(Calls(lambda m, x: OrderedDict(a=m.f(x), b=x), f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def output_is_the_input() -> Case:
    return Case(nn.Identity(), (numbers(3, 4),))


@specimen
def output_is_a_parameter() -> Case:
    return Case(Calls(lambda m, x: (m.f.weight, x + 1), f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def output_twice() -> Case:
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y

    return Case(forward, (numbers(3, 4),))


@specimen
def forward_called_directly() -> Case:
    return Case(Calls(lambda m, x: m.f.forward(x) + m.f(x), f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def a_generator_inside() -> Case:
    def halves(x: Tensor) -> Iterator[Tensor]:
        yield x[:, :2] * 2
        yield x[:, 2:] * 3

    return Case(Calls(lambda m, x: m.f(torch.cat(list(halves(x)), 1)), f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def iteration_over_a_tensor() -> Case:
    return Case(lambda x: sum(row * 2 for row in x), (numbers(3, 4),))


@specimen
def control_flow() -> Case:
    def forward(x: Tensor) -> Any:
        while x.norm() > 0.5:
            x = x / 2 if x.sum() > 0 else x * 0.4
        return x

    return Case(forward, (numbers(3, 4),))


@specimen
def recurrence_without_a_module() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        for _ in range(4):
            x = m.f(x)
            x = x + 1
            x = x * 2
        return x

    return Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def residual_and_branches() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        left, right = m.a(x), m.b(x).relu()
        return torch.cat([left, right, left * right], dim=-1).chunk(3, -1)[2] + x

    return Case(Calls(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def two_inputs_one_memory() -> Case:
    x = numbers(3, 4)
    return Case(lambda a, b: a + b.sum(), (x, x[0]))


@specimen
def the_same_input_twice() -> Case:
    x = numbers(3, 4)
    return Case(lambda a, b: a @ b.T, (x, x))


@specimen
def hooks_that_change_things() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda m, args, output: output + 1)
    model.register_forward_hook(lambda m, args, output: output * 3)
    return Case(model, (numbers(3, 4),))


@specimen
def full_backward_hooks() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[1].register_full_backward_hook(lambda m, given, got: None)
    return Case(model, (numbers(3, 4),))


@specimen
def checkpointed() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        return checkpoint(m.a, checkpoint(m.b, x, use_reentrant=False), use_reentrant=False)

    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())
    return Case(Calls(forward, a=inner, b=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def checkpointed_reentrant() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        return checkpoint(m.a, m.b(x), use_reentrant=True)

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return Case(Calls(forward, a=inner, b=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def autocast_inside() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.a(x)
            with torch.autocast("cpu", enabled=False):
                y = m.b(y.float())
        return F.softmax(m.a(y), -1)

    return Case(Calls(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def grad_mode_switched() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.no_grad():
            y = m.f(x)
        return m.f(y.detach()) + y

    return Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def inference_mode() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.inference_mode():
            y = m.f(x).relu_()
            y[0] = 1
            return y + 1

    return Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def gradient_computed_inside() -> Case:
    @torch.enable_grad()
    def forward(m: Any, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = m.f(x).sin().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return x - force

    return Case(Calls(forward, f=nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def computed_in_another_thread() -> Case:
    def forward(x: Tensor) -> Any:
        found: list[Tensor] = []
        worker = threading.Thread(target=lambda: found.append(x.detach() * 2))
        worker.start()
        worker.join()
        return found[0] + 1

    return Case(forward, (numbers(3, 4),), unseen=True, gap=True)


@specimen
def through_numpy() -> Case:
    return Case(lambda x: torch.from_numpy(x.detach().numpy() * 2) + 1, (numbers(3, 4),), unseen=True, gap=True)


@specimen
def random_numbers() -> Case:
    def forward(x: Tensor) -> Any:
        noise = torch.randn_like(x) + torch.rand(3, 4) + torch.bernoulli(torch.full((3, 4), 0.5))
        generator = torch.Generator().manual_seed(3)
        choice = torch.multinomial(torch.ones(4), 2, generator=generator)
        return (x + noise)[:, choice] + torch.empty(3, 2).normal_() + F.gumbel_softmax(x[:, :2], hard=True)

    return Case(forward, (numbers(3, 4),))


@specimen
def no_tensors_but_constants() -> Case:
    return Case(lambda x: torch.arange(4) * 2 + torch.tensor([1, 2, 3, 4]) + x, (numbers(3, 4),))


@specimen
def an_attribute_that_is_no_buffer() -> Case:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = numbers(4)

        def forward(self, x: Tensor) -> Any:
            return x * self.table

    return Case(Holds(), (numbers(3, 4),))


@specimen
def an_error_caught_inside() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        try:
            y: Tensor = m.f(x[:, :2])
        except RuntimeError:
            y = m.f(x) * 2
        return m.g(y)

    return Case(Calls(forward, f=nn.Linear(4, 4), g=nn.Linear(4, 2)), (numbers(3, 4),))


@specimen
def module_made_inside() -> Case:
    return Case(lambda x: nn.Sequential(nn.Linear(4, 3), nn.ReLU())(x), (numbers(2, 4),))


@specimen
def parametrized_weight() -> Case:
    return Case(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def spectrally_normalized_weight() -> Case:
    return Case(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), (numbers(3, 4),))


@specimen
def functional_call() -> Case:
    linear = nn.Linear(4, 4)

    def forward(x: Tensor) -> Any:
        weights = {"weight": linear.weight * 2, "bias": linear.bias}
        return torch.func.functional_call(linear, weights, (x,))

    return Case(forward, (numbers(3, 4),))
