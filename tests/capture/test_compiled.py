"""A compiled model: outputs, weights and their gradients are recorded, and compiled no oftener than twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerscope.model.records import Event, Kind
from tests.capture.reference import statistics
from tests.capture.sinks import ListSink
from tests.capture.test_reading_points import watching
from tests.capture.training import recorded, wrong

pytestmark = [
    pytest.mark.feature("E7"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what the compiler warns of is not our concern
]

BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
    ),
]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend: str) -> None:
        self.graphs = 0
        self._compile: Callable[..., Any] = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return self._compile(graph, inputs)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


Seen = dict[tuple[int, str, Kind], Tensor]


def train(run: Any, model: nn.Module, forward: Callable[[Tensor], Tensor], every: int) -> Seen:
    """Six steps; what the recording of each that is recorded must show."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Seen = {}
    for step in range(6):
        optimizer.zero_grad()
        output = forward(torch.randn(4, 6))
        output.square().mean().backward()
        optimizer.step()
        if step % every == 0:
            seen[step, "2", Kind.OUTPUT] = output.detach()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                seen[step, name, Kind.WEIGHT] = parameter.detach().clone()
                seen[step, name, Kind.WEIGHT_GRAD] = parameter.grad.clone()
        if run is not None:
            run.step()
    return seen


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_is_recorded_and_compiled_at_most_twice(backend: str, whole: bool, every: int) -> None:
    torch.manual_seed(2)
    plain = network()
    expected = train(None, plain, torch.compile(plain, backend=backend, fullgraph=True), every)
    torch._dynamo.reset()
    torch.manual_seed(2)
    model, counted = network(), Counted(backend)
    compiled: Any = torch.compile(model, backend=counted, fullgraph=True)
    sink, run = watching(compiled if whole else model, kinds="all", every=every)
    with run:
        seen = train(run, model, compiled, every)
    assert {key for key in seen if not torch.allclose(seen[key], expected[key], rtol=1e-6, atol=1e-7)} == set()
    assert counted.graphs <= 2
    check(sink, seen)


def check(sink: ListSink, seen: Seen) -> None:
    """Sites may carry the name of the compiler's wrapper."""
    steps = {step for step, _, _ in seen}
    assert {s.step for s in sink.summaries()} == steps
    for step in steps:
        rows = {(k[0].removeprefix("_orig_mod."), k[2]): row for k, row in recorded(sink, step).items()}
        for (_, site, kind), tensor in ((k, t) for k, t in seen.items() if k[0] == step):
            assert wrong(rows[site, kind], statistics([tensor])) == []


def test_a_step_that_a_grad_scaler_skipped_is_noticed_and_compiles_nothing_anew() -> None:
    model, counted = network(), Counted("aot_eager")
    compiled: Any = torch.compile(model, backend=counted, fullgraph=True)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    sink, run = watching(compiled, every=1)
    with run:
        for step in range(6):
            loss = compiled(torch.randn(4, 6)).square().mean() * (float("inf") if step in (2, 3) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.step()
    assert [event.step for event in sink.records if isinstance(event, Event) and event.level == "skipped"] == [2, 3]
    gradients = [row for key, row in recorded(sink, 3).items() if key[2] is Kind.WEIGHT_GRAD]
    assert len(gradients) == 4
    assert all(row["nan"] + row["pos_inf"] + row["neg_inf"] > 0 for row in gradients)
    assert counted.graphs == 1
