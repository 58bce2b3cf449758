"""Opens a run folder for writing: a new one, or one to resume."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.errors import BusyError, FormatError, StoreError
from layerscope.model.records import Kind, Mode, Phase, Series
from layerscope.store.files import TEMPORARY, Directory, opened
from layerscope.store.format import (
    BY_SERIES,
    COMPACT_LOCK,
    LIVE,
    PARTS,
    RUN,
    SCHEMA,
    SEGMENTS,
    SESSIONS,
    TABLES,
    Live,
    SessionName,
    lock_name,
)
from layerscope.store.manifests import (
    FileLock,
    holder_of,
    read_manifest,
    session_names,
    write_json,
    write_live,
    write_session,
)
from layerscope.store.row_filter import RowFilter
from layerscope.store.sources import RunFiles, segment_names
from layerscope.version import __version__

_MOST_SERIES = 2**31 - 1
_PATIENCE_S = 30.0  # in races with another recorder that creates the same folder


@dataclass(frozen=True, slots=True)
class WritableRun:
    """A run folder opened and locked for one recorder."""

    path: Path
    id: str  # of run.json
    rank: int
    session: int
    series: Mapping[Series, int]  # numbers in use
    next_series: int
    started_s: float
    lock: FileLock

    def mark(self, **end: object) -> None:
        """Writes the session file, with its end if the session is closed."""
        about = {"run": self.id, "pid": os.getpid(), "host": socket.gethostname(), "started_s": self.started_s}
        write_session(self.path, SessionName(self.rank, self.session), {**about, **end})


def create(
    path: str | os.PathLike[str], *, resume: bool = False, rank: int = 0, info: Mapping[str, Any] | None = None
) -> WritableRun:
    """Create a run folder to record into. If the name exists, it gets a suffix, `first-2`, unless `resume` is given.

    An empty folder counts as free. With `resume`, a folder that is not a run is an error, a missing one is created.
    Other ranks of one training join the folder that rank 0 made with `resume=True`.
    """
    wanted = Path(path).absolute()
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if resume and _holds_anything(wanted):
            if not (wanted / RUN).exists() and _is_half_made(wanted):
                _finish(wanted, dict(info or {}))
            return _opened(wanted, rank)
        return _opened(_made(wanted, dict(info or {}), search=not resume), rank)
    except OSError as error:
        raise StoreError(
            f"The run folder {wanted} cannot be written: {error.strerror or error}. "
            "Record to a folder you may write to."
        ) from None


def run_at(path: str | os.PathLike[str]) -> Path:
    """The run in a folder, created if missing: for files written once, independently of a recorder."""
    if (Path(path) / RUN).exists():
        read_manifest(Path(path))
        return Path(path)
    run = create(path)
    run.mark(closed_s=time.time(), drops={})
    run.lock.release()
    return run.path


def _holds_anything(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is not None
    except FileNotFoundError:
        return False


def _made(wanted: Path, info: dict[str, Any], *, search: bool) -> Path:
    """A new run in the first free folder: `name`, `name-2`, `name-3` and so on.

    It is made under another name and renamed, so that it is there as a whole or not at all. An empty folder that is
    there already may be a working directory, or a mounted disk: it stays, and the run is made inside it.
    """
    number, folder = 1, wanted
    while True:
        if _made_at(folder, info):
            return folder
        if not search:
            raise FormatError(f"{folder} is just being made by another recorder, or is a file. Try again.")
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")


def _made_at(folder: Path, info: dict[str, Any]) -> bool:
    """Makes a run in a folder; False if the folder is not empty."""
    if not folder.exists():
        temporary = folder.with_name(f".{folder.name}{TEMPORARY}-{secrets.token_hex(4)}")
        temporary.mkdir()
        _furnish(temporary, folder.name, info)
        try:
            temporary.rename(folder)  # replaces an empty folder only
        except OSError:
            if not folder.exists():
                raise
            return False
        with opened(folder.parent) as parent:
            parent.sync()
        return True
    if not folder.is_dir() or _holds_anything(folder):
        return False
    return _finish(folder, info)


def _is_half_made(folder: Path) -> bool:
    """Whether a folder contains only the first files of an interrupted creation."""
    begun = {SEGMENTS, PARTS, SESSIONS, LIVE, COMPACT_LOCK}
    names = {path.name for path in folder.iterdir()}
    if not all(name in begun or name.startswith((f"{LIVE}{TEMPORARY}-", f"{RUN}{TEMPORARY}-")) for name in names):
        return False
    inside = [path for name in (SEGMENTS, PARTS, SESSIONS) for path in (folder / name).rglob("*")]
    return not any(path.is_symlink() or not path.is_dir() for path in inside)


def _finish(folder: Path, info: dict[str, Any]) -> bool:
    """Makes a run inside an existing folder; False if another process did. It exists once run.json does."""
    lock = FileLock.take(folder / COMPACT_LOCK, _PATIENCE_S)
    if lock is None:
        raise _busy(folder, 0)
    try:
        if (folder / RUN).exists():
            return False
        _furnish(folder, folder.name, info)
        return True
    finally:
        lock.release()


def _furnish(folder: Path, name: str, info: dict[str, Any]) -> None:
    """Writes the files of a new run; run.json is the last."""
    run = secrets.token_hex(8)
    with opened(folder) as directory:
        make_folders(directory)
        write_live(folder, run, Live())
        about = {"name": name, "id": run, "created_s": time.time(), "layerscope": __version__, "info": info}
        try:
            write_json(directory, RUN, "run", about)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"The info of run {name!r} is not JSON of the size it may have: {error}. "
                "Give numbers, texts, lists, dicts."
            ) from None


def make_folders(directory: Directory) -> None:
    """Creates missing subfolders of a run: some copy tools omit empty ones."""
    for name in (SESSIONS, SEGMENTS, PARTS):
        directory.make(name)
    for name in (SEGMENTS, PARTS):
        with opened(directory.path, name) as inner:
            for table in TABLES:
                inner.make(table)


def _opened(folder: Path, rank: int) -> WritableRun:
    run = read_manifest(folder).id  # says so if it is no run
    lock = FileLock.take(folder / lock_name(rank))
    if lock is None:
        raise _busy(folder, rank)
    try:
        with opened(folder) as directory:
            make_folders(directory)
        files = RunFiles(folder, run)
        series = known_series(files, rank)
        number = 1 + max(largest_series(files), *series.values(), -1)
        if number > _MOST_SERIES:
            raise FormatError(f"{folder} uses all numbers that a series can have. Record to another folder.")
        session = 1 + max([*_sessions_of(folder, rank), 0])
        made = WritableRun(folder, run, rank, session, series, number, time.time(), lock)
        made.mark()
        lock.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "session": session}).encode())
    except BaseException:
        lock.release()
        raise
    return made


def _busy(folder: Path, rank: int) -> BusyError:
    return BusyError(
        f"{folder} is being recorded by {holder_of(folder, rank)}. Close that recorder first, or record to another "
        "folder: without resume=True an existing name gets a suffix."
    )


def known_series(files: RunFiles, rank: int) -> dict[Series, int]:
    """Every series of a rank with its number, except series of kinds unknown to this version."""
    rows = files.sources("series").read(SCHEMA["series"].names, RowFilter()).to_pylist()
    known: dict[Series, int] = {}
    for row in rows:
        if row["rank"] != rank:
            continue
        try:
            kind, mode, phase = Kind(row["kind"]), Mode(row["mode"]), Phase(row["phase"])
        except ValueError:
            continue  # from a newer layerscope
        words = (row["site"], row["port"], kind, mode, phase, row["dtype"])
        series = Series(*words, tuple(row["shape"] or ()), row["context"] or "", row["local"] or "")
        known.setdefault(series, row["series"])
    return known


def largest_series(files: RunFiles) -> int:
    """The largest series number of any row, even if its series was lost; -1 if there is none."""
    largest = -1
    for table in ("series", *BY_SERIES):
        sources = files.sources(table)
        numbers = [part.largest_series for part in sources.parts]
        numbers += [int(segment.series_numbers().max(initial=-1)) for segment in sources.segments]
        largest = max([largest, *numbers])
    return largest


def _sessions_of(folder: Path, rank: int) -> set[int]:
    """Session numbers in use, from session files, segments and locks."""
    used = {name.session for name in session_names(folder) if name.rank == rank}
    for table in TABLES:
        used |= {name.session for name in segment_names(folder, table) if name.rank == rank}
    return used
