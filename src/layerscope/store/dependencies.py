"""Dependency graphs between named tensors, numbered by what they hold: equal ones have one number in every run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.records import Dependencies, Link, NamedNode, Part
from layerscope.store.columns import numbers, texts
from layerscope.store.format import SEGMENT_SCHEMA
from layerscope.store.text import json_text

_NUMBER_BYTES = 6  # every number is exact in JavaScript, and 10,000 graphs share none with all likelihood


def numbered(nodes: tuple[NamedNode, ...], links: tuple[Link, ...]) -> Dependencies:
    """A dependency graph with its number."""
    content = "\n".join(_texts(nodes, links)).encode()
    return Dependencies(int.from_bytes(hashlib.blake2b(content, digest_size=_NUMBER_BYTES).digest()), nodes, links)


def _texts(nodes: Iterable[NamedNode], links: Iterable[Link]) -> tuple[str, str]:
    """Nodes and links as they stand in the table."""
    told = [[node.name, node.part.value, [[role, list(shape)] for role, shape in node.roles]] for node in nodes]
    rows = [[link.source, link.source_role, link.back, link.target, link.target_role] for link in links]
    return json_text(told), json_text(rows)


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
            NamedNode(name, Part(part), tuple((role, tuple(shape)) for role, shape in roles))
            for name, part, roles in json.loads(row["nodes"])
        )
        return Dependencies(row["number"], nodes, tuple(Link(*link) for link in json.loads(row["links"])))
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"Dependency graph {row['number']} of the run is damaged: {error}. Restore the run from a copy."
        ) from None
