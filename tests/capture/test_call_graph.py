"""The graph of calls under changing control flow: exactly the calls that happened in recorded steps."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.model.records import CallGraph

Plan = list[tuple[Any, ...]]
Arrow = tuple[str, str, str, str]


class Planned(nn.Module):
    """A module that does what it is told: it calls modules, its own or those around it, adds, and may raise."""

    def __init__(self, depth: int, rng: random.Random) -> None:
        super().__init__()
        self.own = nn.ModuleList(Planned(depth - 1, rng) for _ in range(rng.randint(1, 3) if depth else 0))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        values = [x]
        for word, *rest in plan:
            if word == "call":
                module, at, inner = rest
                values.append(module(values[at], inner))
            elif word == "add":
                values.append(values[rest[0]] + values[rest[1]])
            elif word == "linear":
                values.append(self.linear(values[rest[0]]))
            else:
                raise ArithmeticError(word)
        return values[-1]


def random_plan(module: Planned, around: list[Planned], rng: random.Random, depth: int = 4) -> Plan:
    plan: Plan = []
    for _ in range(rng.randint(1, 4)):
        values = len(plan) + 1
        word = rng.choices(["call", "recurse", "add", "linear", "raise"], [5, 1, 2, 2, 0.15])[0]
        modules = list(module.own) if word == "call" else [*around, module]
        if word in ("call", "recurse") and modules and depth:
            callee = rng.choice(modules)
            assert isinstance(callee, Planned)
            inner = random_plan(callee, [*around, module], rng, depth - 1)
            plan.append(("call", callee, rng.randrange(values), inner))
        elif word == "raise":
            return [*plan, ("raise",)]
        else:
            two = (rng.randrange(values), rng.randrange(values))
            plan.append(("add", *two) if word == "add" else ("linear", two[0]))
    return plan


class Reference:
    """What happens in one forward, computed from the plan alone."""

    def __init__(self, names: dict[nn.Module, str], model: Planned, plan: Plan) -> None:
        self._names = names
        self._numbers: Counter[str] = Counter()
        self.calls: list[tuple[str, str]] = []
        self.arrows: set[Arrow] = set()
        self.raised = False
        with contextlib.suppress(ArithmeticError):
            self.raised = True
            self._run(model, plan, self._begin(model, ""))
            self.raised = False
        self.order = (self.raised, *self.calls)

    def _begin(self, module: nn.Module, parent: str) -> str:
        path = self._names[module]
        self._numbers[path] += 1
        site = path if self._numbers[path] == 1 else f"{path}#{self._numbers[path]}"
        self.calls.append((site, parent))
        return site

    def _run(self, module: Planned, plan: Plan, site: str) -> None:
        values = [{(site, "input.0")}]
        for word, *rest in plan:
            if word == "raise":
                raise ArithmeticError(word)
            if word == "add":
                values.append(values[rest[0]] | values[rest[1]])
                continue
            callee = rest[0] if word == "call" else module.linear
            given = values[rest[1] if word == "call" else rest[0]]
            inner = self._begin(callee, site)
            self.arrows |= {(*source, inner, "input.0") for source in given}
            if word == "call":
                self._run(rest[0], rest[2], inner)
            values.append({(inner, "output.0")})
        if any(parent == site for _, parent in self.calls):
            self.arrows |= {(*source, site, "output.0") for source in values[-1]}


@contextlib.contextmanager
def plain_hooks(names: dict[nn.Module, str], heard: list[tuple[str, str]]) -> Iterator[None]:
    """Calls as hooks of the test's own hear of them in one forward."""
    numbers: Counter[str] = Counter()
    inside: list[str] = [""]

    def before(module: nn.Module, args: object) -> None:
        numbers[names[module]] += 1
        number = numbers[names[module]]
        heard.append((names[module] + (f"#{number}" if number > 1 else ""), inside[-1]))
        inside.append(heard[-1][0])

    def after(module: nn.Module, args: object, output: object) -> None:
        inside.pop()

    handles = [module.register_forward_pre_hook(before) for module in names]
    handles += [module.register_forward_hook(after, always_call=True) for module in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def calls_of(graph: CallGraph) -> set[tuple[str, str]]:
    return {(call.site, call.parent) for call in graph.calls}


def arrows_of(graph: CallGraph) -> set[Arrow]:
    return {(edge.source, edge.source_port, edge.target, edge.target_port) for edge in graph.edges}


def graph_in(folder: Path) -> CallGraph:
    graph = ls.open(folder).graph()
    assert graph is not None
    return graph


@pytest.mark.feature("E3")
@pytest.mark.parametrize("seed", range(40))
def test_the_graph_has_exactly_the_calls_that_happened_in_recorded_steps(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    model = Planned(2, rng)
    names = {module: path or "(model)" for path, module in model.named_modules() if type(module) is not nn.ModuleList}
    plans = [random_plan(model, [], rng) for _ in range(rng.randint(2, 6))]
    expected = [Reference(names, model, plan) for plan in plans]
    every, late = rng.randint(1, 4), rng.random() < 0.3
    happened: set[tuple[str, str]] = set()
    seen: Counter[tuple[object, ...]] = Counter()
    possible: set[Arrow] = set()
    keep_if = (lambda step: step.wanted > 0) if late else None
    with ls.watch(model, to=tmp_path / "run", every=ls.Schedule(every, keep_if=keep_if)) as run:
        for step in range(rng.randint(5, 25)):
            wanted = late and rng.random() < 0.3
            for choice in rng.choices(range(len(plans)), k=rng.randint(0, 3)):
                heard: list[tuple[str, str]] = []
                hooks = plain_hooks(names, heard) if rng.random() < 0.5 else contextlib.nullcontext()
                with hooks, torch.set_grad_enabled(rng.random() < 0.7), contextlib.suppress(ArithmeticError):
                    model(torch.randn(2, 3), plans[choice])
                assert not heard or heard == expected[choice].calls
                if step % every == 0 or wanted:
                    happened |= set(expected[choice].calls)
                    possible |= expected[choice].arrows
                    seen[expected[choice].order] += 1
            run.step(wanted=float(wanted))
    if not happened:
        return
    graph = graph_in(tmp_path / "run")
    assert calls_of(graph) == happened
    assert arrows_of(graph) <= possible
    again = [one for one in expected if seen[one.order] > 1]
    orders = Counter(one.order for one in expected)
    for one in again:
        if orders[one.order] == 1:  # else it may be the other one of the same order that was traced
            assert one.arrows <= arrows_of(graph)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(self.a(x) if x.mean() > 0 else self.b(x))
        return result


BOTH = {("(model)", ""), ("a", "(model)"), ("b", "(model)"), ("c", "(model)")}
FLOW = {
    ("(model)", "input.0", "a", "input.0"),
    ("(model)", "input.0", "b", "input.0"),
    ("a", "output.0", "c", "input.0"),
    ("b", "output.0", "c", "input.0"),
    ("c", "output.0", "(model)", "output.0"),
}


@pytest.mark.feature("E3")
@pytest.mark.parametrize("signs", [[1] * 4 + [-1] * 4, [1, -1] * 4, [-1, 1] * 2, [1, -1]])
def test_both_branches_are_in_the_graph_with_their_arrows_and_nothing_else(signs: list[int], tmp_path: Path) -> None:
    model = Branches()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        for sign in signs:
            model(torch.ones(1, 2) * sign)
            run.step()
    graph = graph_in(tmp_path / "run")
    assert calls_of(graph) == BOTH
    assert arrows_of(graph) == FLOW


def test_both_branches_inside_one_step_are_in_the_graph_with_their_arrows(tmp_path: Path) -> None:
    model = Branches()
    with ls.watch(model, to=tmp_path / "run", every=5) as run:
        x = torch.zeros(1, 2)
        (model(x - 3) + model(x + 3)).sum().backward()
        run.step()
    graph = graph_in(tmp_path / "run")
    assert calls_of(graph) == BOTH
    assert arrows_of(graph) == FLOW


def test_a_branch_that_comes_late_is_there_at_once_and_gets_its_arrows_when_it_comes_again(tmp_path: Path) -> None:
    model = Branches()
    seen = []
    for times in (1, 2):
        folder = tmp_path / f"{times}"
        with ls.watch(model, to=folder, every=1) as run:
            for sign in [1] * 8 + [-1, 1, 1, 1] * times:
                model(torch.ones(1, 2) * sign)
                run.step()
        seen.append(graph_in(folder))
    assert calls_of(seen[0]) == calls_of(seen[1]) == BOTH
    assert arrows_of(seen[0]) == {arrow for arrow in FLOW if "b" not in arrow}
    assert arrows_of(seen[1]) == FLOW


def test_calls_of_steps_that_were_not_kept_are_not_in_the_graph(tmp_path: Path) -> None:
    model = Branches()
    schedule = ls.Schedule(steps=[100], keep_if=lambda step: step.loss > 0)
    with ls.watch(model, to=tmp_path / "run", every=schedule) as run:
        for sign in (-1, -1, 1, -1):
            model(torch.ones(1, 2) * sign)
            run.step(loss=sign)
    graph = graph_in(tmp_path / "run")
    assert calls_of(graph) == BOTH - {("b", "(model)")}
    assert arrows_of(graph) == {arrow for arrow in FLOW if "b" not in arrow}


class Parts(nn.ModuleDict):
    """A container that is never called itself: a loop calls its parts."""

    def __init__(self) -> None:
        parts = {
            "encoder": nn.Sequential(nn.Linear(2, 4), nn.ReLU()),
            "decoder": nn.Linear(2, 2),
            "cell": nn.Linear(2, 2),
        }
        super().__init__(parts)


def test_a_container_that_is_never_called_is_several_roots_with_arrows_inside_and_between(tmp_path: Path) -> None:
    parts = Parts()
    with ls.watch(parts, to=tmp_path / "run", every=2) as run:
        for _ in range(4):
            mean, scale = parts["encoder"](torch.randn(3, 2)).chunk(2, -1)
            restored = parts["decoder"](mean + scale.exp() * torch.randn(3, 2))
            state = parts["cell"](restored.detach())
            parts["cell"](state).sum().backward()
            run.step()
    graph = graph_in(tmp_path / "run")
    roots = {(part, "") for part in ("encoder", "decoder", "cell")}
    assert calls_of(graph) == roots | {("encoder.0", "encoder"), ("encoder.1", "encoder")}
    assert arrows_of(graph) == {
        ("encoder", "input.0", "encoder.0", "input.0"),
        ("encoder.0", "output.0", "encoder.1", "input.0"),
        ("encoder.1", "output.0", "encoder", "output.0"),
        ("encoder", "output.0", "decoder", "input.0"),
        ("decoder", "output.0", "cell", "input.0"),
        ("cell", "output.0", "cell", "input.0"),
    }


def test_a_block_that_checkpointing_computes_again_is_no_root(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False))
            return result

    model = Checkpointed()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        for _ in range(6):
            model(torch.randn(3, 2)).sum().backward()
            run.step()
    assert {site for site, parent in calls_of(graph_in(tmp_path / "run")) if not parent} == {"(model)"}


def test_a_model_that_never_does_the_same_twice_is_not_traced_for_ever_and_says_so(tmp_path: Path) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(2, 2)

        def forward(self, x: Tensor, times: int) -> Tensor:
            for _ in range(times):
                x = self.cell(x)
            return x

    model = Growing()
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        for times in range(1, 31):
            model(torch.randn(1, 2), times)
            run.step()
    graph = graph_in(tmp_path / "run")
    assert len(graph.calls) == 31
    assert ("cell#23", "output.0", "cell#24", "input.0") in arrows_of(graph)
    assert ("cell#29", "output.0", "cell#30", "input.0") not in arrows_of(graph)
    assert [text for text in ls.open(tmp_path / "run").events()["text"] if "ever new orders" in text]
