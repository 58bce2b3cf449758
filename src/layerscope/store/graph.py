"""graph.json: the watched model's modules, calls and edges, to which every record adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from layerscope.errors import FormatError
from layerscope.records import CallNode, Edge, Graph, ModuleNode
from layerscope.store.format import GRAPH, RUN, damaged, read_json, write_json
from layerscope.store.lock import alone_with

Ports = tuple[tuple[str, tuple[int, ...]], ...]
_MODULE = ("path", "class_name", "parameters", "detail")
_EDGE = ("source", "source_port", "target", "target_port")


def read_graph(folder: Path) -> Graph | None:
    """What graph.json says, None if there is none; one of an older writer has no calls and no edges."""
    path = folder / GRAPH
    try:
        content = read_json(path, "graph")
        return Graph(
            tuple(ModuleNode(*(module[name] for name in _MODULE)) for module in content["modules"]),
            tuple(_call(call) for call in content.get("calls", ())),
            tuple(
                Edge(**{name: edge[name] for name in _EDGE}, join=edge.get("join", ""))
                for edge in content.get("edges", ())
            ),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from None
    except (KeyError, TypeError, ValueError) as error:
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


def _both(before: CallNode, now: CallNode) -> tuple[tuple[Ports, Ports], tuple[Ports, Ports]]:
    return (before.inputs, now.inputs), (before.outputs, now.outputs)


def add_to_graph(folder: Path, graphs: Sequence[Graph]) -> str | None:
    """Unites graphs with what graph.json holds; gives what there is to tell, if that could not be read.

    Other ranks may add to the same file: no two do it at once.
    """
    trouble = None
    with alone_with(folder / RUN):
        try:
            known = read_graph(folder)
        except FormatError as error:
            aside = (folder / GRAPH).replace((folder / GRAPH).with_suffix(".damaged.json"))
            known, trouble = None, f"{error} It was kept as {aside.name}, and the graph begun anew."
        result = known or Graph(())
        for graph in graphs:
            result = united(result, graph)
        if result != known:
            write_json(folder / GRAPH, "graph", asdict(result))
    return trouble
