"""graph.json: the watched model's modules, calls and edges, to which every record adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from layerscope.errors import FormatError
from layerscope.records import CallNode, Edge, Graph, ModuleNode
from layerscope.store.files import damaged, opened
from layerscope.store.format import GRAPH, RUN
from layerscope.store.lock import alone_with
from layerscope.store.manifests import read_json, unreadable, write_json
from layerscope.store.text import storable

Ports = tuple[tuple[str, tuple[int, ...]], ...]
_MODULE = ("path", "class_name", "parameters", "detail")
_DAMAGED = "graph.damaged.json"
_EDGE = ("source", "source_port", "target", "target_port")


def read_graph(folder: Path, run: str) -> Graph | None:
    """What graph.json says, None if there is none; `run` is the id of the run."""
    path = folder / GRAPH
    try:
        with opened(folder) as directory:
            content = read_json(directory, GRAPH, "graph")
        if content["run"] != run:
            raise damaged(path, "it is that of another run")
        return Graph(
            tuple(ModuleNode(*(module[name] for name in _MODULE)) for module in content["modules"]),
            tuple(_call(call) for call in content["calls"]),
            tuple(Edge(**{name: edge[name] for name in _EDGE}, join=edge.get("join", "")) for edge in content["edges"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"a key is missing or wrong ({error})") from None


def _call(content: dict[str, Any]) -> CallNode:
    return CallNode(
        content["site"], content["path"], content["parent"], _ports(content["inputs"]), _ports(content["outputs"])
    )


def _ports(content: Iterable[tuple[str, Iterable[int]]]) -> Ports:
    return tuple((port, tuple(shape)) for port, shape in content)


def united(known: Graph, newer: Graph) -> Graph:
    """Both graphs in one, in the order of first appearance: where they differ in a module, call or port, the newer."""
    modules = {module.path: module for module in (*known.modules, *newer.modules)}
    calls: dict[tuple[str, str], CallNode] = {}
    for call in (*known.calls, *newer.calls):
        before = calls.setdefault((call.site, call.parent), call)
        inputs, outputs = ({**dict(old), **dict(new)} for old, new in _both(before, call))
        calls[call.site, call.parent] = replace(call, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))
    edges = dict.fromkeys((*known.edges, *newer.edges))
    return Graph(tuple(modules.values()), tuple(calls.values()), tuple(edges))


def _stored(graph: Graph) -> Graph:
    """The graph with its names as they are stored, so that it unites with what was read back."""
    modules = (replace(module, path=storable(module.path)) for module in graph.modules)
    calls = (
        replace(call, site=storable(call.site), path=storable(call.path), parent=storable(call.parent))
        for call in graph.calls
    )
    edges = (replace(edge, source=storable(edge.source), target=storable(edge.target)) for edge in graph.edges)
    return Graph(tuple(modules), tuple(calls), tuple(edges))


def _both(before: CallNode, now: CallNode) -> tuple[tuple[Ports, Ports], tuple[Ports, Ports]]:
    return (before.inputs, now.inputs), (before.outputs, now.outputs)


def add_to_graph(folder: Path, run: str, graphs: Sequence[Graph]) -> str | None:
    """Unites graphs with what graph.json holds; gives what there is to tell, if that could not be read.

    Other ranks may add to the same file: no two do it at once.
    """
    trouble = None
    with alone_with(folder / RUN):
        try:
            known = read_graph(folder, run)
        except FormatError as error:
            with opened(folder) as directory:
                directory.rename(GRAPH, _DAMAGED)
            known, trouble = None, f"{error} It was kept as {_DAMAGED}, and the graph begun anew."
        result = known or Graph(())
        for graph in graphs:
            result = united(result, _stored(graph))
        if result != known:
            with opened(folder) as directory:
                write_json(directory, GRAPH, "graph", {"run": run, **asdict(result)})
    return trouble
