"""The dependency graph of what was named is that of the computation, whatever autograd knows of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils.data import DataLoader, Dataset

import layerscope as ls
from layerscope.model.records import TensorType
from tests.capture.naming import recording


def elsewhere(call: Callable[[], object]) -> None:
    other = threading.Thread(target=call)
    other.start()
    other.join()


def modes() -> int:
    count: int = torch._C._len_torch_function_stack()
    return count


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = modes()
    yield
    assert modes() == before


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pre, self.main, self.out = nn.Linear(3, 4), nn.Linear(8, 4), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(1))


def test_the_graph_of_a_recurrent_network_is_the_one_drawn_on_paper() -> None:
    net = Recurrent()
    with recording(net) as (sink, run):
        run.begin("2 iterations")
        memory = run.record("memory", torch.zeros(6, 4), initial=True)
        for _ in range(2):
            with run.iteration():
                x = run.record("input", torch.randn(6, 3), type="input")
                memory = run.record("memory", net.main(torch.cat((net.pre(x), memory), 1)))
        run.record("output", net.out(memory) * net.scale)
        run.step()
    info = sink.infos()[0]
    assert (info.type, info.iterations, len(info.graphs)) == ("2 iterations", 2, 3)
    inside = {("input", "memory"), ("memory-1", "memory")} | {
        (f"{module}:{part}", "memory") for module in ("pre", "main") for part in ("weight", "bias")
    }
    assert sink.links(0, 0) == set()
    assert sink.links(0, 1) == inside
    last = {("memory", "output"), ("out:weight", "output"), ("out:bias", "output"), ("scale", "output")}
    assert sink.links(0, 2) == inside | last
    parts = {node.name: node.type for node in sink.graphs[info.graphs[2]].nodes}
    assert parts["input"] is TensorType.INPUT
    assert {name for name, part in parts.items() if part is TensorType.PARAMETER} == {"pre", "main", "out", "scale"}


def test_every_parent_counts_with_and_without_gradients() -> None:
    with recording() as (sink, run):
        run.begin()
        a = run.record("learned", torch.ones(3, requires_grad=True))
        b = run.record("constant", torch.ones(3))
        i = run.record("index", torch.tensor([0, 2]))
        mixed = run.record("mixed", a * b)
        with torch.no_grad():
            quiet = run.record("quiet", mixed + 1)
        picked = run.record("picked", quiet[i])
        run.record("cut", (picked * a[:2]).detach())
        run.step()
    assert sink.links(0) == {
        *(("learned", "mixed"), ("constant", "mixed"), ("mixed", "quiet")),
        *(("quiet", "picked"), ("index", "picked"), ("picked", "cut"), ("learned", "cut")),
    }
    assert a.requires_grad
    assert not b.requires_grad


def test_in_place_operations_and_views_are_followed() -> None:
    with recording() as (sink, run):
        run.begin()
        x = torch.zeros(4, 4)
        a, b = run.record("a", torch.ones(4)), run.record("b", torch.ones(4))
        x[0] = a
        run.record("first", x)
        x.view(-1)[4:8].add_(b)
        run.record("both", x)
        run.step()
    assert sink.links(0) >= {("a", "first"), ("b", "both"), ("first", "both")}
    assert ("b", "first") not in sink.links(0)


def test_links_by_hand_join_what_is_computed_elsewhere() -> None:
    with recording() as (sink, run):
        run.begin()
        a = run.record("a", torch.ones(3))
        outside = torch.from_numpy(a.numpy().copy())
        run.link("a", outside)
        run.record("b", outside * 2)
        run.record("c", torch.ones(1))
        run.link("b", "c")
        run.step()
    assert sink.links(0) == {("a", "b"), ("b", "c")}


def test_several_tensors_of_one_node_have_links_of_their_own_and_their_number_may_change() -> None:
    with recording() as (sink, run):
        for step in range(4):
            run.begin()
            x = run.record("x", torch.ones(2, 2), type="input")
            heads = [run.record("heads", x * n, role=f"head {n}") for n in range(step + 1)]
            run.record("last", heads[-1] + 1)
            run.step()
    assert sink.links(0) == {("x", "heads:head 0"), ("heads:head 0", "last")}
    assert sink.links(3) == {("heads:head 3", "last")} | {("x", f"heads:head {n}") for n in range(4)}
    (node,) = [node for node in sink.graphs[sink.infos()[3].graphs[1]].nodes if node.name == "heads"]
    assert len(node.roles) == 4


def test_the_same_tensor_named_again_depends_on_its_first_name_and_on_its_own_iteration() -> None:
    with recording() as (sink, run):
        run.begin()
        x = torch.ones(2, 2)
        for _ in range(2):
            with run.iteration():
                run.record("x", x)
                run.record("again", x)
                run.record("y", x * 2)
        run.step()
    assert sink.links(0, 1) == {("x", "again"), ("again", "y")}
    assert sink.links(0, 2) == {("again-1", "x"), ("x", "again"), ("again", "y")}


def test_a_name_given_after_its_use_counts() -> None:
    with recording() as (sink, run):
        run.begin()
        h = torch.ones(2) + 1
        run.record("out", h * 2)
        run.record("h", h)
        run.step()
    assert sink.links(0) == {("h", "out")}


def test_shared_modules_and_parameters_recorded_by_hand_are_one_thing_each() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net.append(net[0])
    with recording(net) as (sink, run):
        run.begin()
        run.record("weight", net[0].weight, type="parameter", batch_dim=None)
        run.record("out", net(torch.ones(2, 3)))
        run.step()
    assert sink.links(0) == {("weight", "out"), ("0:bias", "out")}


def test_a_name_that_is_also_that_of_a_module_leaves_both_in_the_graph() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    with recording(net) as (sink, run):
        run.begin()
        run.record("0", net(torch.ones(2, 3)))
        run.step()
    assert sink.links(0) == {("0.:weight", "0"), ("0.:bias", "0")}


def test_large_parts_of_a_model_are_split_into_their_children() -> None:
    net = nn.Module()
    net.tower = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    net.head = nn.Linear(2, 1)
    with recording(net) as (sink, run):
        run.begin()
        run.record("out", net.head(net.tower(torch.ones(1, 2))))
        run.step()
    names = {node.name for node in sink.graphs[0].nodes if node.type is TensorType.PARAMETER}
    assert names == {"head"} | {f"tower.{n}" for n in range(20)}


def test_identical_graphs_are_one_and_steps_that_are_not_traced_have_theirs() -> None:
    with recording(keep_last=0) as (sink, run):
        for step in range(40):
            run.begin("long" if step % 2 else "short")
            x = run.record("x", torch.ones(2 + step % 3, 2))
            for _ in range(5 if step % 2 else 2):
                with run.iteration():
                    x = run.record("y", x * 2)
            run.step()
    assert sink.steps() == list(range(40))
    assert len(sink.graphs) == 2  # iteration 1, and all others
    assert {info.graphs for info in sink.infos()} == {(-1, 0, 1), (-1, 0, 1, 1, 1, 1)}


def test_new_control_flow_is_seen_even_when_the_names_are_the_same_at_first() -> None:
    with recording() as (sink, run):
        for step in range(3):
            run.begin()
            a, b = run.record("a", torch.ones(2)), run.record("b", torch.ones(2))
            run.record("c", a + 1 if step == 0 else b + 1)
            run.step()
    assert sink.links(0) == {("a", "c")}
    assert sink.links(1) == {("b", "c")}


def test_the_first_step_without_a_begin_gets_the_graph_of_the_next() -> None:
    net = nn.Linear(2, 2)
    with recording(net) as (sink, run):
        for _ in range(2):
            run.record("h", net(torch.ones(1, 2)))
            run.step()
    assert sink.links(0) == sink.links(1) == {("weight", "h"), ("bias", "h")}


def test_the_graph_is_what_tracing_the_same_code_shows() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    x = torch.randn(4, 3)

    def forward(run: object) -> None:
        values = {"x": x}
        for place, layer in enumerate(net):
            values[f"h{place}"] = layer(values[f"h{place - 1}" if place else "x"])
        values["skip"] = values["h3"] + x
        for name, tensor in values.items():
            run.record(name, tensor)  # type: ignore[attr-defined]

    class Names:
        def __init__(self) -> None:
            self.tensors: dict[str, Tensor] = {}

        def record(self, name: str, tensor: Tensor) -> None:
            self.tensors[name] = tensor

    with recording(net) as (sink, run):
        run.begin()
        forward(run)
        run.step()
    names = Names()
    with ls.tracing(net, save="all") as trace:
        forward(names)
    made = {name: op for name, tensor in names.tensors.items() for op in trace if op.value is tensor}
    assert set(made) == {"x", "h0", "h1", "h2", "h3", "skip"}
    for name, op in made.items():
        parents = {other for other, maker in made.items() if maker.label in {parent.label for parent in op.parents}}
        seen = {source for source, target in sink.links(0) if target == name and ":" not in source}
        assert seen == parents


class Noisy(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        Noisy.calls += 1
        return func(*args, **(kwargs or {}))


def test_function_modes_of_others_may_begin_and_end_across_steps() -> None:
    with recording() as (sink, run):
        with Noisy():
            for _ in range(3):
                run.begin()
                run.record("y", run.record("x", torch.ones(2)) * 2)
                with torch.device("cpu"):
                    run.step()
            assert modes() >= 1
        run.begin()
        outer = Noisy()
        outer.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        run.record("y", run.record("x", torch.ones(2)) * 2)
        run.step()
        outer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with torch.device("cpu"):
            run.begin()
        run.record("y", run.record("x", torch.ones(2)) * 2)
        run.step()
    assert all(sink.links(step) == {("x", "y")} for step in range(5))


def test_a_block_with_a_device_ends_where_it_ends_wherever_a_step_begins() -> None:
    with recording() as (_, run):
        for call in (run.begin, run.step, lambda: run.record("x", torch.ones(2))):
            with torch.device("meta"):
                call()
            assert torch.ones(2).device.type == "cpu"
            assert not any(isinstance(torch._C._get_function_stack_at(at), DeviceContext) for at in range(modes()))
        torch.set_default_device("meta")
        run.step()
        run.begin()
        torch.set_default_device(None)
        assert torch.ones(2).device.type == "cpu"
        run.step()
    assert modes() == 0


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(3) * index + modes()


def test_workers_of_a_data_loader_and_other_threads_are_left_alone() -> None:
    with recording() as (sink, run):
        run.begin()
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            elsewhere(lambda: torch.ones(3) + 1)
            run.record("doubled", run.record("batch", batch) * 2)
            run.step()
            run.begin()
    assert sink.links(0) == {("batch", "doubled")}


def test_a_step_may_end_on_another_thread() -> None:
    with recording() as (sink, run):
        run.begin()
        run.record("y", run.record("x", torch.ones(2)) * 2)
        for _ in range(5):
            elsewhere(run.step)
            assert modes() == 1  # what is left does nothing, and does not pile up
            left = torch._C._get_function_stack_at(0)
            nodes = len(left.graph.nodes)
            torch.ones(2) + 1
            assert len(left.graph.nodes) == nodes
            run.begin()
        assert sink.links(0) == {("x", "y")}
        run.step()


def test_a_first_tensor_named_on_another_thread_leaves_that_thread_alone() -> None:
    found: list[int] = []

    def name() -> None:
        run.record("x", torch.ones(2))
        found.append(modes())

    with recording(nn.Linear(2, 2)) as (sink, run):
        elsewhere(name)
        run.step()
        elsewhere(name)
        run.step()
    assert found == [0, 0]
    assert sink.steps() == [0, 1]


def test_an_error_in_the_middle_of_a_step_leaves_earlier_steps_whole_and_the_next_clean() -> None:
    net = nn.Linear(2, 2)
    before = modes()
    with recording(net) as (sink, run):
        for step in range(4):
            try:
                run.begin()
                with run.iteration():
                    x = run.record("x", torch.ones(3 if step == 1 else 2, 2))
                    if step == 2:
                        raise RuntimeError("out of memory")
                    run.record("y", net(x))
            except RuntimeError:
                continue
            run.step()
    assert modes() == before
    assert sink.steps() == [0, 1, 2]
    assert all(sink.links(step) >= {("x", "y")} for step in range(3))
