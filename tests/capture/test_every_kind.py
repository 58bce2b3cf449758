"""The statistics of every kind are those of the tensors that plain PyTorch shows at the same points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import layerscope as ls
from layerscope.model.records import Kind, Mode
from tests.capture.models import InPlaceCnn, Mlp, Recurrent, gpt2, vit
from tests.capture.reference import Parts, statistics
from tests.capture.training import Make, adamw, checked, mistakes, recorded, same_bits, wrong

Inputs = Callable[[], dict[str, Tensor]]


def vectors() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 6, dtype=torch.float64)}


def tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 40, (3, 7))}


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 8, 8, dtype=torch.float64)}


NETWORKS: dict[str, tuple[Make, Inputs]] = {
    "mlp": (Mlp, vectors),
    "cnn": (InPlaceCnn, vectors),
    "lstm": (Recurrent, vectors),
    "gpt2": (gpt2, tokens),
    "vit": (vit, pictures),
}


def plain_loop(model: nn.Module, optimizer: Optimizer, *, inputs: Inputs = vectors) -> Iterator[object]:
    """Three steps of training, each with a look at the model in evaluation."""
    for _ in range(3):
        optimizer.zero_grad()
        output = model.train()(**inputs())
        output.square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            evaluated = model.eval()(**inputs())
        yield [output, evaluated]


@pytest.mark.feature("E2")
@pytest.mark.feature("T1")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of transformers' own code
@pytest.mark.parametrize("name", NETWORKS)
def test_every_statistic_of_every_kind_is_that_of_the_tensor(name: str) -> None:
    make, inputs = NETWORKS[name]
    sink = checked(lambda: make().double(), partial(plain_loop, inputs=inputs))
    kinds = {series.kind for series in sink.series}
    expected = set(Kind) - {Kind.TENSOR, Kind.TENSOR_GRAD}
    assert kinds >= expected - (set() if name == "cnn" else {Kind.BUFFER})
    assert {series.mode for series in sink.series} == set(Mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_less_precision_are_read_as_they_are(dtype: torch.dtype) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        return plain_loop(model, optimizer, inputs=lambda: {"x": torch.randn(4, 6).to(dtype)})

    def one_by_one(model: nn.Module) -> list[Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)]

    sink = same_bits(lambda: Mlp().to(dtype), loop, one_by_one)
    name = str(dtype).removeprefix("torch.")
    norms = (Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD_NORM)
    assert {s.dtype for s in sink.series if s.kind not in norms} == {name}


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd with momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam with amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "asgd": torch.optim.ASGD,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "foreach adamw": partial(torch.optim.AdamW, foreach=True),
    "fused adam": partial(torch.optim.Adam, fused=True),
    "fused sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True),
}


@pytest.mark.feature("T1")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_any_optimizer_is_recorded(name: str) -> None:
    sink = checked(lambda: Mlp().double(), plain_loop, lambda model: [OPTIMIZERS[name](model.parameters())])
    sites = {series.site for series in sink.series if series.kind is Kind.OPTIMIZER}
    assert sites == {name for name, _ in Mlp().named_parameters()}


def test_state_that_is_made_late_is_recorded_from_then_on() -> None:
    class Late(torch.optim.SGD):
        """Begins to keep an average at its second step."""

        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            for parameter in (p for group in self.param_groups for p in group["params"]):
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                if state["steps"] > 1:
                    state["average"] = state.get("average", 0) * 0.5 + parameter.detach().clone()
            return result

    sink = checked(lambda: Mlp().double(), plain_loop, lambda model: [Late(model.parameters(), lr=0.01)])
    rows = [[key for key in recorded(sink, step) if key[2] is Kind.OPTIMIZER] for step in range(3)]
    assert [len(keys) for keys in rows] == [0, 4, 4]


@pytest.mark.parametrize("order", ["reversed", "groups", "added later"])
def test_parameters_in_any_order_and_in_any_group_keep_their_names(order: str) -> None:
    def optimizers(model: nn.Module) -> list[Optimizer]:
        parameters = list(model.parameters())
        if order == "reversed":
            return [torch.optim.Adam(parameters[::-1])]
        groups: list[dict[str, Any]] = [{"params": parameters[2:], "lr": 0.1}, {"params": parameters[:1]}]
        if order == "groups":
            return [torch.optim.Adam([*groups, {"params": parameters[1:2]}])]
        optimizer = torch.optim.Adam(groups)
        optimizer.add_param_group({"params": parameters[1:2]})
        return [optimizer]

    checked(lambda: Mlp().double(), plain_loop, optimizers)


def test_lbfgs_is_recorded_with_its_closures() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(3):
            x = torch.randn(8, 6, dtype=torch.float64)

            def closure(x: Tensor = x) -> float:
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss.item()

            optimizer.step(closure)
            yield None

    def without_dropout() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    sink = checked(without_dropout, loop, lambda model: [torch.optim.LBFGS(model.parameters(), max_iter=4)])
    ports = {series.port for series in sink.series if series.kind is Kind.OPTIMIZER}
    assert {"state.d", "state.prev_flat_grad", "state.old_dirs.0"} <= ports


@pytest.mark.feature("T1")
def test_the_ratio_of_an_update_is_that_of_the_norms(tmp_path: Path) -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    expected: dict[tuple[str, int], float] = {}
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            for name, p in model.named_parameters():
                change = (p.detach().double() - before[name].double()).norm()
                expected[name, step] = float(change / before[name].double().norm())
            run.step()
    table = ls.open(tmp_path / "run").stats(kind="update")
    found = dict(zip(zip(table["site"], table["step"], strict=True), table["ratio"], strict=True))
    assert found == pytest.approx(expected, rel=1e-5)


def test_an_update_of_weights_that_are_all_zero_has_no_ratio(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds=["update"]) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            run.step()
    table = ls.open(tmp_path / "run").stats(kind="update", stat="ratio")
    found = dict(zip(zip(table["site"], table["step"], strict=True), table["ratio"], strict=True))
    assert found.keys() == {("weight", 0), ("weight", 1), ("weight", 2), ("bias", 1), ("bias", 2)}
    assert all(0 < ratio < math.inf for ratio in found.values())


class Attending(nn.Module):
    """Names its scores, which are kept for the test to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        scores = ls.attach("scores", self.query(x) @ x.T)
        if scores.requires_grad:
            scores.retain_grad()
        self.kept.append(scores)
        result: Tensor = scores.softmax(-1) @ x
        return result


class Stack(nn.Module):
    """Calls one module twice, and names a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attending()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        total = ls.attach("total", self.attn(self.attn(x)) * 3)
        total.retain_grad()
        self.kept.append(total)
        result: Tensor = total.sin()
        return result


@pytest.mark.feature("E5")
def test_attached_tensors_are_recorded_with_their_gradients() -> None:
    kept: list[tuple[list[Tensor], list[Tensor]]] = []

    def loop(model: Stack, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            model.kept.clear()
            model.attn.kept.clear()
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6, dtype=torch.float64)).mean()
            loss.backward()
            optimizer.step()
            kept.append((list(model.attn.kept), list(model.kept)))
            yield loss

    sink = same_bits(lambda: Stack().double(), loop)
    for step, (scores, totals) in enumerate(kept[-2:]):
        named = {"attn.scores": scores[0], "attn#2.scores": scores[1], "total": totals[0]}
        parts: Parts = {}
        for site, tensor in named.items():
            assert tensor.grad is not None
            parts[site, "tensor", Kind.TENSOR, Mode.TRAIN] = [tensor]
            parts[site, "tensor", Kind.TENSOR_GRAD, Mode.TRAIN] = [tensor.grad]
        found = {k: v for k, v in recorded(sink, step).items() if k[2] in (Kind.TENSOR, Kind.TENSOR_GRAD)}
        assert mistakes(found, parts) == []
        assert found.keys() == parts.keys()


@pytest.mark.feature("E5")
def test_attach_gives_the_very_tensor_and_does_nothing_while_nobody_watches() -> None:
    x = torch.randn(3, requires_grad=True) * 2
    assert ls.attach("mine", x) is x
    assert not x._backward_hooks


def test_statistics_of_a_histogram_add_up_over_micro_batches() -> None:
    """By hand, without the harness."""
    seen: list[Tensor] = []

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        seen.clear()
        for size in (5, 3):
            output = model(torch.randn(size, 6, dtype=torch.float64))
            output.register_hook(seen.append)
            output.square().mean().backward()
        optimizer.step()
        yield None

    sink = same_bits(lambda: Mlp().double(), loop, adamw)
    row = recorded(sink, 0)["layers.3", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]
    assert wrong(row, statistics(seen)) == []
    assert row["count"] == 8 * 3
    assert math.isclose(row["norm"], float(torch.cat(seen).norm()), rel_tol=1e-9)
