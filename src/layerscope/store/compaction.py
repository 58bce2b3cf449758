"""Compaction: closed segments become sorted Parquet parts, without a reader ever seeing a row twice or missing one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from layerscope.errors import StoreError
from layerscope.model.records import Ids, Ints
from layerscope.store.files import opened
from layerscope.store.folder import make_folders
from layerscope.store.format import (
    BY_SERIES,
    COMPACT_LOCK,
    KEPT,
    PARTS,
    SCHEMA,
    SEGMENTS,
    TABLES,
    Live,
    PartEntry,
    SegmentName,
    TableFiles,
    is_part_name,
    lock_name,
    part_name,
)
from layerscope.store.manifests import FileLock, is_held, read_manifest, write_live
from layerscope.store.parts import ParquetPart, footer_sum, write_part
from layerscope.store.row_filter import RowFilter, in_order
from layerscope.store.segments import Segment, digest_of
from layerscope.store.sources import RunFiles, Sources, segment_names

PART_ROWS = 1 << 19
PART_BYTES = 512 << 20
_PIECE_BYTES = 32 << 20  # bytes sorted at once: limits the memory
Progress = Callable[[float], None]  # called repeatedly with the share of work done


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of a compaction; `done` is False if another compaction was running."""

    done: bool
    rows: Mapping[str, int] = field(default_factory=dict)  # table → rows written
    segments: int = 0  # segments replaced
    bytes_before: int = 0
    bytes_after: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Plan:
    """The planned compaction of one table."""

    kept: tuple[PartEntry, ...]
    groups: tuple[Sources, ...]  # each becomes one part
    compacted: Mapping[str, int]  # session → its last compacted segment

    @property
    def replaced(self) -> dict[str, int]:
        """The files that the new parts replace, and their checksums."""
        files = [file for group in self.groups for file in group.files]
        return {
            file.entry.file if isinstance(file, ParquetPart) else str(file.name): file.entry.footer
            if isinstance(file, ParquetPart)
            else file.digest
            for file in files
        }


def needs_compaction(folder: Path) -> bool:
    """Whether a run has segments, closed or not."""
    return any(segment_names(folder, table) for table in TABLES)


def compact(folder: str | os.PathLike[str], progress: Progress | None = None) -> CompactReport:
    """Turns all closed segments of a run into sorted parts; may run during a training and next to readers.

    Takes about 250 MB of memory besides the segments, and little more than one core. If it is killed, no row is lost or
    duplicated. A damaged run stays unchanged; the error names the damage.
    """
    path = Path(folder)
    run = read_manifest(path).id
    lock = FileLock.take(path / COMPACT_LOCK, patience_s=0.0)
    if lock is None:
        return CompactReport(done=False)
    try:
        return _compact(path, run, progress)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be compacted: {error.strerror or error}. Nothing is lost; "
            "make room or check its permissions, then try again."
        ) from None
    finally:
        lock.release()


def _compact(folder: Path, run: str, progress: Progress | None) -> CompactReport:
    started = time.monotonic()
    with opened(folder) as directory:
        make_folders(directory)
    files = RunFiles(folder, run)
    live = files.live()
    plans = {table: _planned(files, live, table) for table in TABLES}
    _refuse(files)
    left = _sweep(folder, live)
    groups = [group for plan in plans.values() for group in plan.groups]
    if not groups:
        return CompactReport(done=True, elapsed_s=time.monotonic() - started)
    generation, made, total = live.generation + 1, 0, sum(group.rows for group in groups)

    def count(piece: pa.Table) -> pa.Table:
        nonlocal made
        made += piece.num_rows
        if progress is not None:
            progress(made / max(total, 1))
        return piece

    tables = {
        table: TableFiles(
            (*plan.kept, *_made(folder, table, plan, generation, count)),
            {**left[table], **plan.replaced},
            plan.compacted,
        )
        for table, plan in plans.items()
    }
    _refuse(files)  # chunks of older parts are verified when they are read
    if made != total:
        raise StoreError(f"{folder} cannot be compacted: {made} rows were read of {total}. Nothing was changed.")
    after = Live(generation, tables)
    write_live(folder, run, after)
    _sweep(folder, after)
    return CompactReport(
        done=True,
        rows={table: sum(group.rows for group in plan.groups) for table, plan in plans.items()},
        segments=sum(len(group.segments) for group in groups),
        bytes_before=sum(group.size_bytes for group in groups),
        bytes_after=sum(
            entry.size for table in TABLES for entry in tables[table].parts if entry not in plans[table].kept
        ),
        elapsed_s=time.monotonic() - started,
    )


def _refuse(files: RunFiles) -> None:
    """Raises if anything of the run is damaged: the rest must not be mistaken for the whole."""
    problems = files.problems()
    if problems:
        raise StoreError(f"{files.folder} is not compacted, and nothing was changed: {' '.join(problems[:3])}")


def _sweep(folder: Path, live: Live) -> dict[str, dict[str, int]]:
    """Removes the files that live.json lists as replaced: new readers do not use them.

    A file with the name but another checksum is not ours: it stays, and is returned by table and name.
    """
    left: dict[str, dict[str, int]] = {table: {} for table in TABLES}
    for table in TABLES:
        replaced = live.of(table).replaced
        for below, checksum_of in ((SEGMENTS, digest_of), (PARTS, footer_sum)):
            with opened(folder, below, table) as directory:
                mine = [
                    name for name in directory.names() if name in replaced and is_part_name(name) == (below == PARTS)
                ]
                for name in mine:
                    if checksum_of(directory, name) == replaced[name]:
                        directory.unlink(name)
                    else:
                        left[table][name] = replaced[name]
                if mine:
                    directory.sync()  # a segment must not reappear after live.json no longer lists it
    return left


def _planned(files: RunFiles, live: Live, table: str) -> _Plan:
    """New segments, merged with previous parts that are not much larger; see docs/format.md."""
    sources = files.sources(table)
    closed = _closed(files.folder, sources)
    kept = list(live.of(table).parts)
    parts = list(sources.parts)
    total = sum(segment.rows for segment in closed)
    pulled: list[ParquetPart] = []
    while closed and parts and parts[-1].rows <= 2 * total and _is_small(parts[-1]):
        total += parts[-1].rows
        pulled.insert(0, parts.pop())
        kept.pop()
    compacted = dict(live.of(table).compacted)
    for segment in closed:
        compacted[segment.name.of] = max(segment.name.number, compacted.get(segment.name.of, 0))
    return _Plan(tuple(kept), tuple(_grouped(Sources(table, pulled, closed))), compacted)


def _is_small(part: ParquetPart) -> bool:
    return part.rows < PART_ROWS // 2 and part.size_bytes < PART_BYTES // 2


def _closed(folder: Path, sources: Sources) -> list[Segment]:
    """Closed segments. Listed before the locks are checked: a writer that starts later has none of them."""
    newest: dict[int, SegmentName] = {}
    for segment in sources.segments:
        newest[segment.name.rank] = max(segment.name, newest.get(segment.name.rank, segment.name))
    writing = {rank for rank in newest if is_held(folder / lock_name(rank))}
    closed = [
        segment
        for segment in sources.segments
        if segment.name.rank not in writing or segment.name != newest[segment.name.rank]
    ]
    with opened(folder, SEGMENTS, sources.table) as directory:
        for segment in closed:
            segment.follow(directory)  # rows appended between reading the file and checking the lock
    return closed


def _grouped(sources: Sources) -> Iterator[Sources]:
    """Parts and segments in the order of recording, split where a part would become too large."""
    group = Sources(sources.table, [], [])
    for file in sources.files:
        full = group.rows + file.rows > PART_ROWS or group.size_bytes + file.size_bytes > PART_BYTES
        if group.rows and full:
            yield group
            group = Sources(sources.table, [], [])
        if isinstance(file, ParquetPart):
            group.parts.append(file)
        else:
            group.segments.append(file)
    if group.files:
        yield group


def _made(
    folder: Path, table: str, plan: _Plan, generation: int, count: Callable[[pa.Table], pa.Table]
) -> list[PartEntry]:
    """Writes the parts of a plan."""
    with opened(folder, PARTS, table) as directory:
        return [
            write_part(directory, part_name(generation, k), table, map(count, _sorted_pieces(group)))
            for k, group in enumerate(plan.groups)
        ]


def _sorted_pieces(sources: Sources) -> Iterator[pa.Table]:
    """The rows of a group in table order, a limited number of bytes at a time."""
    pieces = _pieces(sources) if sources.table in BY_SERIES else iter((RowFilter(),))
    for row_filter in pieces:
        yield in_order(sources.table, sources.read(SCHEMA[sources.table].names, row_filter))


def _pieces(sources: Sources) -> Iterator[RowFilter]:
    """Sets of series of about the bytes that may be sorted at once; a larger series is split by steps."""
    owner = np.concatenate([file.series_numbers() for file in sources.files])
    sizes = np.concatenate([file.row_bytes() for file in sources.files])
    cuts = sources.table in KEPT
    step = np.concatenate([file.step_numbers() for file in sources.files]) if cuts else owner
    series, totals = _totals(owner, sizes)
    for chosen in _split(series, totals):
        if not cuts or totals[np.isin(series, chosen)].sum() <= 2 * _PIECE_BYTES:
            yield RowFilter(series=chosen.astype(np.int32))
            continue
        for one in chosen:
            for steps in _split(*_totals(step[owner == one], sizes[owner == one])):
                yield RowFilter(np.array([one], np.int32), first=int(steps[0]), last=int(steps[-1]))


def _totals(keys: Ids | Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Distinct keys in ascending order, and the total bytes of each."""
    distinct, place = np.unique(keys, return_inverse=True)
    return distinct.astype(np.int64), np.bincount(place, sizes, len(distinct)).astype(np.int64)


def _split(keys: Ints, sizes: Ints) -> Iterator[Ints]:
    """Runs of keys of about as many bytes as may be sorted at once."""
    piece = (np.cumsum(sizes) - sizes) // _PIECE_BYTES
    for one in np.unique(piece):
        yield keys[piece == one]
