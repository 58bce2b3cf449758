"""A run folder with a module graph: embed, four blocks with a skip connection, a head; made without a framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.model.records import (
    CallEdge,
    CallGraph,
    CallNode,
    Floats,
    Kind,
    Metric,
    Mode,
    ModuleNode,
    Phase,
    Series,
)
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries

BLOCKS = 4
PORT_IN, PORT_OUT = (("input.0", (8, 16)),), (("output.0", (8, 16)),)


def blocks_graph(*, calls: bool = True, blocks: int = BLOCKS, name: str = "head") -> CallGraph:
    """The graph of a model of residual blocks, with or without its calls."""
    modules = [ModuleNode("(model)", "Network", 0, ""), ModuleNode("embed", "Linear", 144, "in_features=8, bias=True")]
    found = [
        CallNode("(model)", "(model)", "", PORT_IN, PORT_OUT),
        CallNode("embed", "embed", "(model)", PORT_IN, PORT_OUT),
    ]
    edges = [CallEdge("(model)", "input.0", "embed", "input.0")]
    before = "embed"
    for number in range(blocks):
        block = f"blocks.{number}"
        inside = [f"{block}.norm", f"{block}.mlp"]
        modules += [ModuleNode(block, "Block", 0, ""), ModuleNode(inside[0], "LayerNorm", 32, "(16,), eps=1e-05")]
        modules.append(ModuleNode(inside[1], "Linear", 272, "in_features=16, out_features=16, bias=True"))
        found.append(CallNode(block, block, "(model)", PORT_IN, PORT_OUT))
        found += [CallNode(site, site, block, PORT_IN, PORT_OUT) for site in inside]
        edges += [
            CallEdge(before, "output.0", block, "input.0"),
            CallEdge(block, "input.0", inside[0], "input.0"),
            CallEdge(inside[0], "output.0", inside[1], "input.0"),
            CallEdge(inside[1], "output.0", block, "output.0"),
            CallEdge(block, "input.0", block, "output.0"),
        ]
        before = block
    modules.append(ModuleNode(name, "Linear", 34, "in_features=16, out_features=2, bias=True"))
    found.append(CallNode(name, name, "(model)", PORT_IN, PORT_OUT))
    edges += [CallEdge(before, "output.0", name, "input.0"), CallEdge(name, "output.0", "(model)", "output.0")]
    return CallGraph(tuple(modules), tuple(found), tuple(edges)) if calls else CallGraph(tuple(modules))


def tensor(step: int, at: int) -> Floats:
    """What the site with a number holds at a step: growing from site to site; the last one is NaN in the end."""
    values = np.random.default_rng(step).normal(0.0, 1.0 + at, 200)
    return np.full(200, np.nan) if at == 14 and step >= 4 else values


def write_graph_run(folder: Path, graph: CallGraph, steps: int = 6, growth: float = 1.0) -> Path:
    """A finished run of a model with that graph: outputs and their gradients, weights of the head.

    At each step everything is `growth` times as large as before.
    """
    sink = FolderSink(create(folder))
    sink.put(graph)
    sites = [call.site for call in graph.calls] or [module.path for module in graph.modules]
    kinds = [(site, "output.0", kind) for kind in (Kind.OUTPUT, Kind.OUTPUT_GRAD) for site in sites]
    kinds.append((f"{sites[-1]}.weight", "weight", Kind.WEIGHT))
    numbers = [
        sink.series_id(Series(site, port, kind, Mode.TRAIN, Phase.FORWARD, "float64", (200,)))
        for site, port, kind in kinds
    ]
    for step in range(steps):
        sink.put(summaries(step, numbers, [growth**step * tensor(step, at) for at in range(len(numbers))]))
        sink.put(Metric(step, "loss", 1.0 / (step + 1), float(step)))
    sink.close()
    return folder
