"""The graphs of a run: module calls in graph.json, dependencies of named tensors by number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.model.records import (
    CallEdge,
    CallGraph,
    CallNode,
    Dependencies,
    DependencyLink,
    ModuleNode,
    NamedNode,
    TensorType,
)
from layerscope.store.columns import json_text, numbers, storable, texts
from layerscope.store.files import damaged, opened
from layerscope.store.format import GRAPH, RUN, SEGMENT_SCHEMA
from layerscope.store.manifests import alone_with, read_json, unreadable, write_json

_NUMBER_BYTES = 6  # exact in JavaScript; collisions among 10,000 graphs are very unlikely


def numbered(nodes: tuple[NamedNode, ...], links: tuple[DependencyLink, ...]) -> Dependencies:
    """A dependency graph with its number."""
    content = "\n".join(_texts(nodes, links)).encode()
    return Dependencies(int.from_bytes(hashlib.blake2b(content, digest_size=_NUMBER_BYTES).digest()), nodes, links)


def _texts(nodes: Iterable[NamedNode], links: Iterable[DependencyLink]) -> tuple[str, str]:
    """Nodes and links as stored in the table."""
    listed = [[node.name, node.type.value, [[role, list(shape)] for role, shape in node.roles]] for node in nodes]
    rows = [[link.source, link.source_role, link.back, link.target, link.target_role] for link in links]
    return json_text(listed), json_text(rows)


def dependencies_batch(items: Sequence[Dependencies]) -> pa.RecordBatch:
    """Rows of the table of dependency graphs."""
    written = [_texts(item.nodes, item.links) for item in items]
    columns = [
        numbers(np.array([item.number for item in items], np.int64)),
        texts([nodes for nodes, _ in written]),
        texts([links for _, links in written]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["dependencies"])


def dependencies_of(table: pa.Table) -> list[Dependencies]:
    """The graphs of a table, each once, in the order of first appearance."""
    rows = {row["number"]: row for row in reversed(table.to_pylist())}
    return [_read(row) for row in reversed(rows.values())]


def _read(row: dict[str, Any]) -> Dependencies:
    try:
        nodes = tuple(
            NamedNode(name, TensorType(type_), tuple((role, tuple(shape)) for role, shape in roles))
            for name, type_, roles in json.loads(row["nodes"])
        )
        return Dependencies(row["number"], nodes, tuple(DependencyLink(*link) for link in json.loads(row["links"])))
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"Dependency graph {row['number']} of the run is damaged: {error}. Restore the run from a copy."
        ) from None


Ports = tuple[tuple[str, tuple[int, ...]], ...]
_MODULE = ("path", "class_name", "parameters", "detail")
_DAMAGED = "graph.damaged.json"
_EDGE = ("source", "source_port", "target", "target_port")


def read_graph(folder: Path, run: str) -> CallGraph | None:
    """The content of graph.json, or None; `run` is the id of the run."""
    path = folder / GRAPH
    try:
        with opened(folder) as directory:
            content = read_json(directory, GRAPH, "graph")
        if content["run"] != run:
            raise damaged(path, "it is that of another run")
        return CallGraph(
            tuple(ModuleNode(*(module[name] for name in _MODULE)) for module in content["modules"]),
            tuple(_call(call) for call in content["calls"]),
            tuple(
                CallEdge(**{name: edge[name] for name in _EDGE}, join=edge.get("join", "")) for edge in content["edges"]
            ),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"a key is missing or wrong ({error})") from None


def _call(content: dict[str, Any]) -> CallNode:
    return CallNode(
        content["site"], content["path"], content["parent"], _ports(content["inputs"]), _ports(content["outputs"])
    )


def _ports(content: Iterable[tuple[str, Iterable[int]]]) -> Ports:
    return tuple((port, tuple(shape)) for port, shape in content)


def united(known: CallGraph, newer: CallGraph) -> CallGraph:
    """Both graphs merged, in the order of first appearance; if a module, call or port differs, the newer wins."""
    modules = {module.path: module for module in (*known.modules, *newer.modules)}
    calls: dict[tuple[str, str], CallNode] = {}
    for call in (*known.calls, *newer.calls):
        before = calls.setdefault((call.site, call.parent), call)
        inputs, outputs = ({**dict(old), **dict(new)} for old, new in _both(before, call))
        calls[call.site, call.parent] = replace(call, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))
    edges = dict.fromkeys((*known.edges, *newer.edges))
    return CallGraph(tuple(modules.values()), tuple(calls.values()), tuple(edges))


def _stored(graph: CallGraph) -> CallGraph:
    """The graph with storable names, so that it merges with a stored one."""
    modules = (replace(module, path=storable(module.path)) for module in graph.modules)
    calls = (
        replace(call, site=storable(call.site), path=storable(call.path), parent=storable(call.parent))
        for call in graph.calls
    )
    edges = (replace(edge, source=storable(edge.source), target=storable(edge.target)) for edge in graph.edges)
    return CallGraph(tuple(modules), tuple(calls), tuple(edges))


def _both(before: CallNode, now: CallNode) -> tuple[tuple[Ports, Ports], tuple[Ports, Ports]]:
    return (before.inputs, now.inputs), (before.outputs, now.outputs)


def add_to_graph(folder: Path, run: str, graphs: Sequence[CallGraph]) -> str | None:
    """Merges graphs into graph.json; returns a message if the file could not be read.

    Other ranks may add to the same file: a lock serializes them.
    """
    trouble = None
    with alone_with(folder / RUN):
        try:
            known = read_graph(folder, run)
        except FormatError as error:
            with opened(folder) as directory:
                directory.rename(GRAPH, _DAMAGED)
            known, trouble = None, f"{error} It was kept as {_DAMAGED}, and the graph begun anew."
        result = known or CallGraph(())
        for graph in graphs:
            result = united(result, _stored(graph))
        if result != known:
            with opened(folder) as directory:
                write_json(directory, GRAPH, "graph", {"run": run, **asdict(result)})
    return trouble
