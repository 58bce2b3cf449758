"""The files of one recorder: appends what was queued, table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from layerscope.errors import StoreError
from layerscope.model.records import CallGraph, Event, SinkRecord, TensorValues
from layerscope.store.folder import WritableRun
from layerscope.store.format import RUN, TABLES
from layerscope.store.graph_files import add_to_graph, dependencies_batch
from layerscope.store.record_batches import (
    bits_batch,
    custom_statistics_batch,
    keepable,
    moments_batch,
    records_batch,
    sample_stats_batch,
    series_batch,
    values_batch,
    why_not,
)
from layerscope.store.segments import SegmentWriter
from layerscope.store.write_queue import Load, dropped_text

Batcher = Callable[[Any], pa.RecordBatch]  # each builds the batch of its own table
_BATCHERS: Mapping[str, Batcher] = {
    "series": series_batch,
    "moments": moments_batch,
    "custom_statistics": custom_statistics_batch,
    "bits": bits_batch,
    "dependencies": dependencies_batch,
    "sample_stats": sample_stats_batch,
    "values": values_batch,
    **{table: partial(records_batch, table) for table in ("metrics", "overhead", "events", "steps")},
}
Refuse = Callable[[str, SinkRecord, Exception], None]  # called with queue, item and reason of an unwritable item


class FolderGoneError(StoreError):
    """The run folder was deleted or moved while it was written."""


class Output:
    """Segments and graph of one open run."""

    def __init__(self, run: WritableRun) -> None:
        self._run = run
        self._segments = {table: SegmentWriter(run.path, run.id, table, (run.rank, run.session)) for table in TABLES}
        self._graph = False  # whether graph.json exists, as far as known
        self._latest_step = 0  # step of the writer's own events
        self._identity = _identity(run.path)

    def write(self, load: Load, done: Callable[[str, list[SinkRecord]], None], refuse: Refuse) -> None:
        """Writes a load queue by queue, and calls `done` for each. After an OSError the rest is still in the load.

        An item that cannot be written is removed too, and passed to `refuse` with the reason.
        """
        self._check_folder()
        if load.dropped:
            self.event("drop", dropped_text(load.dropped, "the disk"))
            load.dropped = {}
        for queue, items in load.items.items():
            if items:
                self._write_items(queue, items, partial(_take_out, load, queue, done), refuse)

    def _write_items(
        self, queue: str, items: list[SinkRecord], done: Callable[[list[SinkRecord]], None], refuse: Refuse
    ) -> None:
        """Writes items of one queue together; on an error, in halves, down to the faulty items."""
        try:
            self._write_queue(queue, items)
        except OSError:  # a failure of the disk, not of the record
            raise
        except Exception as error:  # noqa: BLE001 -- a border: records hold what the user's model and loop gave
            if len(items) > 1:
                middle = len(items) // 2
                self._write_items(queue, items[:middle], done, refuse)
                self._write_items(queue, items[middle:], done, refuse)
                return
            refuse(queue, items[0], error)
        done(items)

    def _check_folder(self) -> None:
        """Raises if the folder is not the one opened: rows would go to files that were deleted."""
        try:
            identity = _identity(self._run.path)
        except FileNotFoundError:
            raise FolderGoneError(f"{self._run.path} was deleted or moved") from None
        if identity != self._identity:
            raise FolderGoneError(f"{self._run.path} was deleted and created again by another process")

    def event(self, level: str, text: str) -> None:
        """Writes an event of the writer's own."""
        self._segments["events"].write(records_batch("events", [Event(self._latest_step, level, text, time.time())]))

    def end(self) -> None:
        """Closes all segments."""
        for segment in self._segments.values():
            segment.end()

    def written(self) -> dict[str, object]:
        """The end record of the session, by which readers notice missing and truncated files."""
        written = {table: segment.written for table, segment in self._segments.items()}
        return {"segments": {table: last for table, last in written.items() if last[0]}, "graph": self._graph}

    def _write_queue(self, queue: str, items: list[SinkRecord]) -> None:
        if queue == "graph":
            graphs = [item for item in items if isinstance(item, CallGraph)]
            trouble = add_to_graph(self._run.path, self._run.id, graphs)
            self._graph = True
            if trouble is not None:
                self.event("warning", trouble)
            return
        self._latest_step = max(self._latest_step, *(getattr(item, "step", 0) for item in items))
        rows = self._keepable(items) if queue == "values" else items
        if rows:
            self._segments[queue].write(_BATCHERS[queue](rows))

    def _keepable(self, items: list[SinkRecord]) -> list[TensorValues]:
        """The values that can be stored; an event reports the others."""
        values = [item for item in items if isinstance(item, TensorValues)]
        refused = [(item, place, why) for item in values for place, why in enumerate(map(why_not, item.arrays)) if why]
        if not refused:
            return values
        item, place, why = refused[0]
        where = f"the first of series {item.series[place]} at step {item.step}"
        self.event("warning", f"{len(refused)} values were not kept, {where}: {why}.")
        return [kept for item in values for kept in keepable(item)]


def _take_out(load: Load, queue: str, done: Callable[[str, list[SinkRecord]], None], items: list[SinkRecord]) -> None:
    """Removes the first items of a queue from a load: they are written, or never will be."""
    load.items[queue] = load.items[queue][len(items) :]
    done(queue, items)


def _identity(folder: Path) -> tuple[int, int, int]:
    """Identity of a run folder: a file system may reuse the inode number of a deleted file."""
    made = (folder / RUN).stat()  # written once and never changed
    return made.st_dev, made.st_ino, made.st_mtime_ns
