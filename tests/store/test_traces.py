"""Traces in a run folder: what is written is read back, and a damaged file is said to be one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from layerscope.errors import FormatError
from layerscope.graph.layers import name_layers
from layerscope.model.trace_record import Role, StackFrame, TraceRecord, field_of_all
from layerscope.store.files import checksum_text
from layerscope.store.folder import create
from layerscope.store.manifests import sealed
from layerscope.store.traces import OPERATIONS, RECORD, StoredTrace, read_head, read_outline, read_trace, write_trace
from tests.store.runs import forge
from tests.views import graphs


def odd() -> TraceRecord:
    """A pass with everything that is rare: no FLOPs, no gradient function, odd names, a constant."""
    record = graphs.transformer(1)
    first, second, *rest = record.operations
    odd = second._replace(
        function='"odd" ü',
        arguments={"dim": "-1", "a\nb": "«»"},
        flops=None,
        grad_fn=None,
        autocast="bfloat16",
        frames=(StackFrame("a b.py", 3, "f"), StackFrame("c.py", 5, "<lambda>")),
        written=("buffer",),
        in_place=True,
        shape=(),
    )
    return TraceRecord(
        record.model,
        (first._replace(role=Role.CONSTANT), odd, *rest),
        record.calls,
        record.parameters,
        record.modules,
        0.25,
        None,
        "it failed",
        frozenset({1}),
    )


@pytest.fixture
def stored(tmp_path: Path) -> StoredTrace:
    code = {("a b.py", 3): (2, ("def f():", "    return 1"))}
    return StoredTrace(odd(), {0: np.ones((2, 3))}, {1: np.zeros(4, np.float32)}, code, 7)


@pytest.fixture
def folder(tmp_path: Path, stored: StoredTrace) -> Path:
    run = create(tmp_path / "run")
    run.lock.release()
    return write_trace(run.path, stored)


def test_a_trace_is_read_back_as_it_was_written(folder: Path, stored: StoredTrace) -> None:
    found = read_trace(folder)
    assert tuple(found.record.operations) == tuple(stored.record.operations)
    assert found.record.operations[1] == stored.record.operations[1]
    assert found.record.operations[-2:] == tuple(stored.record.operations[-2:])
    assert [found.record.calls, found.record.parameters, found.record.modules, found.record.stale] == [
        stored.record.calls,
        stored.record.parameters,
        stored.record.modules,
        stored.record.stale,
    ]
    assert (found.code, found.step) == (stored.code, 7)
    assert np.array_equal(found.values[0], stored.values[0])


def test_columns_and_names_are_those_of_the_operations(folder: Path, stored: StoredTrace) -> None:
    record = read_head(folder).record
    for name in stored.record.operations[0]._fields[1:]:
        if name != "parents":
            assert list(field_of_all(record.operations, name)) == [getattr(op, name) for op in stored.record.operations]
    assert field_of_all(record.operations, "parents") == field_of_all(stored.record.operations, "parents")
    assert name_layers(record) == name_layers(stored.record)


def test_the_outline_counts_what_was_kept(folder: Path) -> None:
    outline = read_outline(folder)
    assert (outline.operations, outline.values, outline.gradients, outline.step) == (len(odd().operations), 1, 1, 7)
    assert outline.failure == "it failed"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_parent_from_nowhere(path: Path) -> None:
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    parents = [[99_999 for _ in row] for row in table["parents"].to_pylist()]
    at = table.column_names.index("parents")
    changed = table.set_column(at, "parents", pa.array(parents, pa.list_(pa.int32())))
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(changed.combine_chunks())
    forge(path.with_name(RECORD), checksums={**read_head_sums(path), OPERATIONS: checksum_text(path.read_bytes())})


def read_head_sums(path: Path) -> dict[str, str]:
    sums: dict[str, str] = json.loads(path.with_name(RECORD).read_bytes())["checksums"]
    return sums


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        (OPERATIONS, cut, "operations.arrow is damaged"),
        (OPERATIONS, Path.unlink, "operations.arrow is damaged"),
        (OPERATIONS, with_parent_from_nowhere, "refers to something that is not there"),
        (RECORD, cut, "do not match its checksum"),
        (RECORD, lambda path: path.write_bytes(sealed({"format": "layerscope-trace", "version": 1})), "key is missing"),
    ],
)
def test_a_damaged_trace_is_told_with_its_file(
    folder: Path, name: str, harm: Callable[[Path], object], words: str
) -> None:
    harm(folder / name)
    with pytest.raises(FormatError, match=words):
        read_head(folder)
