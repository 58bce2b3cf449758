"""The graph of a model's calls: who gave data to whom, whether autograd knows of it or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import layerscope as ls
from layerscope.graph.blocks import BlockRole
from layerscope.graph.module_blocks import ModuleBlocks
from layerscope.model.records import CallGraph


def graph_of(
    folder: Path, model: nn.Module, *forwards: tuple[object, ...], grad: bool = True, resume: bool = False
) -> CallGraph:
    with ls.watch(model, to=folder, every=1, resume=resume) as run:
        for inputs in forwards:
            with torch.set_grad_enabled(grad):
                model(*inputs)
            run.step()
    graph = ls.open(folder).graph()
    assert graph is not None
    return graph


def arrows(graph: CallGraph, inside: str | None = None) -> set[str]:
    """The edges as text, of one call if it is named."""
    parent = {call.site: call.parent for call in graph.calls}
    return {
        f"{edge.source}:{edge.source_port} > {edge.target}:{edge.target_port}"
        for edge in graph.edges
        if inside is None
        or inside == edge.source == edge.target
        or (
            edge.source != edge.target
            and {inside} <= {edge.source, parent[edge.source]} & {edge.target, parent[edge.target]}
        )
    }


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.0)

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        branch: Tensor = ls.attach("branch", self.drop(self.linear(self.norm(x))) * mask)
        return x + branch


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x, mask=mask)
        return {"first": self.head(x), "second": self.head(x.flip(0))}


@pytest.mark.feature("E3")
@pytest.mark.parametrize("grad", [True, False])
def test_edges_follow_the_data_with_and_without_autograd(grad: bool, tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "run", Network(), (torch.randn(3, 4), torch.ones(3, 1)), grad=grad)
    assert arrows(graph, "(model)") == {
        "(model):input.0 > blocks.0:input.0",
        "(model):input.1 > blocks.0:input.mask",
        "(model):input.1 > blocks.1:input.mask",
        "blocks.0:output.0 > blocks.1:input.0",
        "blocks.1:output.0 > head:input.0",
        "blocks.1:output.0 > head#2:input.0",
        "head:output.0 > (model):output.first",
        "head#2:output.0 > (model):output.second",
    }
    assert arrows(graph, "blocks.1") == {
        "blocks.1:input.0 > blocks.1.norm:input.0",
        "blocks.1.norm:output.0 > blocks.1.linear:input.0",
        "blocks.1.linear:output.0 > blocks.1.drop:input.0",
        "blocks.1.drop:output.0 > blocks.1.branch:tensor",
        "blocks.1:input.mask > blocks.1.branch:tensor",
        "blocks.1.branch:tensor > blocks.1:output.0",
        "blocks.1:input.0 > blocks.1:output.0",
    }


class Casting(nn.Module):
    """A norm of its own that casts what already has the type, as those of language models do."""

    def forward(self, x: Tensor) -> Tensor:
        whole = x.to(torch.float32).contiguous()
        return whole * torch.rsqrt(whole.square().mean(-1, keepdim=True))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Casting(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.linear(self.norm(x))
        return result


def test_a_skip_comes_from_its_maker_though_a_branch_casts_it_to_its_own_type(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "run", nn.Sequential(nn.Linear(4, 4), Residual()), (torch.randn(3, 4),))
    assert arrows(graph, "1") == {
        "1:input.0 > 1.norm:input.0",
        "1.norm:output.0 > 1.linear:input.0",
        "1.linear:output.0 > 1:output.0",
        "1:input.0 > 1:output.0",
    }


def test_a_call_has_its_ports_with_their_shapes_and_the_call_around_it(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "run", Network(), (torch.randn(3, 4), torch.ones(3, 1)))
    calls = {call.site: call for call in graph.calls}
    assert set(calls) >= {"(model)", "blocks.0", "blocks.1.drop", "blocks.1.branch", "head", "head#2"}
    assert calls["head#2"].path == "head"
    assert calls["blocks.1.drop"].parent == "blocks.1"
    assert calls["blocks.0"].inputs == (("input.0", (3, 4)), ("input.mask", (3, 1)))
    assert calls["(model)"].outputs == (("output.first", (3, 2)), ("output.second", (3, 2)))


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.end = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor, way: str) -> Tensor:
        result: Tensor = self.end(self.left(x) if way == "left" else self.right(x))
        return result


def test_control_flow_not_seen_before_adds_to_the_graph(tmp_path: Path) -> None:
    x = torch.randn(1, 2)
    left, right = {"left:output.0 > end:input.0"}, {"right:output.0 > end:input.0"}
    first = graph_of(tmp_path / "run", Dynamic(), (x, "left"))
    assert left <= arrows(first)
    assert not right & arrows(first)
    # The order of calls is new in the second forward, so that the third is traced.
    both = graph_of(tmp_path / "both", Dynamic(), (x, "left"), (x, "right"), (x, "right"))
    assert left | right <= arrows(both)
    resumed = graph_of(tmp_path / "run", Dynamic(), (x, "right"), resume=True)
    assert left | right <= arrows(resumed)


def test_data_that_goes_past_the_arguments_is_an_edge_between_the_modules_around(tmp_path: Path) -> None:
    class Giver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.inner(x)
            return x * 2

    class Taker(nn.Module):
        def __init__(self, giver: Giver) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.giver = [giver]

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x + self.inner(self.giver[0].kept)
            return result

    giver = Giver()
    graph = graph_of(tmp_path / "run", nn.Sequential(giver, Taker(giver)), (torch.randn(1, 2),))
    assert {"0:output.0 > 1:input.0", "0: > 1:"} <= arrows(graph, "(model)")


def test_a_loop_over_one_module_is_a_chain_of_calls(tmp_path: Path) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = self.cell(x).relu_()
            return x

    graph = graph_of(tmp_path / "run", Loop(), (torch.randn(1, 2),))
    assert arrows(graph) == {
        "(model):input.0 > cell:input.0",
        "cell:output.0 > cell#2:input.0",
        "cell#2:output.0 > cell#3:input.0",
        "cell#3:output.0 > cell#4:input.0",
        "cell#4:output.0 > (model):output.0",
    }


def test_a_language_model_has_its_skip_connections(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100))  # type: ignore[no-untyped-call]
    graph = graph_of(tmp_path / "run", model, (torch.randint(0, 100, (2, 8)),))
    assert {
        "transformer.h.0:input.0 > transformer.h.0.ln_1:input.0",
        "transformer.h.0:input.0 > transformer.h.0.ln_2:input.0",
        "transformer.h.0:input.0 > transformer.h.0:output.0",
        "transformer.h.0.attn:output.0 > transformer.h.0:output.0",
        "transformer.h.0.mlp:output.0 > transformer.h.0:output.0",
    } <= arrows(graph, "transformer.h.0")
    reached = {"(model)"}
    for _ in graph.calls:
        reached |= {edge.target for edge in graph.edges if edge.source in reached}
    assert {call.site for call in graph.calls} - reached == {"transformer.wpe"}  # positions come from nowhere


def test_tracing_a_forward_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("the user's own")

    model = nn.Sequential(nn.Linear(2, 2), Broken())
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        with pytest.raises(KeyError, match="own"):
            model(torch.randn(1, 2))
        assert torch._C._len_torch_function_stack() == 0
        run.step()
        assert torch._C._len_torch_function_stack() == 0


def test_a_fault_of_the_tracer_is_told_and_reaches_neither_training_nor_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerscope.capture.torch.trace.op_graph.OpGraph.add", lambda *a: 1 / 0)
    model = Network()
    inputs = torch.randn(3, 4), torch.ones(3, 1)
    plain = model(*inputs)["first"]
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        for _ in range(3):
            assert torch.equal(model(*inputs)["first"], plain)
            run.step()
    read = ls.open(tmp_path / "run")
    assert [text for text in read.events()["text"] if "ZeroDivisionError" in text] == [
        "How data flows between the modules is not recorded: ZeroDivisionError: division by zero"
    ]
    assert set(read.stats("head", stat="rms", kind="output")["step"]) == {0, 1, 2}


def test_a_lazy_module_has_its_place_in_the_graph(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "run", nn.Sequential(nn.LazyLinear(3), nn.ReLU()), (torch.randn(2, 5),))
    assert "0:output.0 > 1:input.0" in arrows(graph)


class Meeting(nn.Module):
    """One sum that three take, one of them rectified, and a product of the same two."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e, self.f = (nn.Linear(4, 4) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        both = a + b
        result: Tensor = self.c(both) + self.d(both * torch.sigmoid(both)) + self.e(a * b) + self.f(both.relu())
        return result


@pytest.mark.parametrize("grad", [True, False])
def test_where_flows_meet_is_told_by_the_tensor_and_not_by_where_they_come_from(grad: bool, tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "run", Meeting(), (torch.randn(3, 4),), (torch.randn(3, 4),), grad=grad)
    joins = {edge.target: edge.join for edge in graph.edges}
    assert {edge.join for edge in graph.edges if edge.target == "d"} == {"c input.0"}
    assert [joins[target] for target in "acdef"] == ["", "c input.0", "c input.0", "e input.0", "c input.0"]
    merges = [part for part in ModuleBlocks(graph).blocks if part.role is BlockRole.MERGE]
    assert len(merges) == 3  # the sum, the product, and what goes out
