"""Opening a run folder to write: a new one, or one that is continued."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from layerscope.errors import BusyError, FormatError, StoreError
from layerscope.records import Kind, Mode, Reading, Series
from layerscope.store.format import (
    BY_SERIES,
    PARTS,
    RUN,
    SCHEMA,
    SEGMENTS,
    SESSIONS,
    TABLES,
    Live,
    SessionName,
    lock_name,
    read_manifest,
    sync_folder,
    write_json,
    write_live,
)
from layerscope.store.lock import FileLock, is_held
from layerscope.store.sources import RunFiles, segment_names
from layerscope.store.wanted import Wanted
from layerscope.version import __version__

Status = Literal["running", "finished", "stopped"]
_LOCK_NAME = re.compile(r"writer-r\d+\.lock")


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder opened for one recorder, locked against a second one."""

    path: Path
    rank: int
    session: int
    series: Mapping[Series, int]  # the numbers already given
    next_series: int
    started_s: float
    lock: FileLock

    def mark(self, **end: object) -> None:
        """Writes the session's file, with its end when there is one."""
        about = {"rank": self.rank, "session": self.session, "pid": os.getpid(), "host": socket.gethostname()}
        name = str(SessionName(self.rank, self.session))
        write_json(self.path / SESSIONS / name, "session", {**about, "started_s": self.started_s, **end})


def create(
    path: str | os.PathLike[str], *, resume: bool = False, rank: int = 0, info: Mapping[str, Any] | None = None
) -> OpenRun:
    """A run folder to record into. A taken name gets a suffix, `first-2`, unless the run is to be resumed.

    A folder that holds anything is taken. With `resume`, a folder that is no run is an error, a missing one is made.
    Other ranks of one training join the folder that rank 0 made with `resume=True`.
    """
    wanted = Path(path).absolute()
    try:
        if resume and _holds_anything(wanted):
            read_manifest(wanted)  # says so if it is no run
            return _opened(wanted, rank)
        folder = _claimed(wanted, search=not resume)
        _furnish(folder, dict(info or {}))
        return _opened(folder, rank)
    except OSError as error:
        raise StoreError(
            f"The run folder {wanted} cannot be written: {error.strerror or error}. "
            "Record to a folder you may write to."
        ) from None


def run_at(path: str | os.PathLike[str]) -> Path:
    """The run in a folder, made now if there is none: for what is written once, beside any recorder."""
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


def _claimed(wanted: Path, *, search: bool) -> Path:
    """The first free folder among `name`, `name-2`, `name-3` …; making `segments` in it decides between two who ask."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number, folder = 1, wanted
    while True:
        try:
            folder.mkdir(exist_ok=True)
            if not _holds_anything(folder):
                (folder / SEGMENTS).mkdir()
                return folder
        except FileExistsError:
            pass  # a file has the name, or another recorder was faster
        if not search:
            raise FormatError(f"{folder} is just being made by another recorder, or is a file. Try again.")
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")


def _furnish(folder: Path, info: dict[str, Any]) -> None:
    """Makes an empty folder a run; run.json comes last, with it the run exists."""
    for name in (
        SESSIONS,
        *(f"{SEGMENTS}/{table}" for table in TABLES),
        *(f"{PARTS}/{table}" for table in TABLES),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_live(folder, Live())
    content = {"name": folder.name, "id": secrets.token_hex(8), "created_s": time.time(), "layerscope": __version__}
    try:
        write_json(folder / RUN, "run", {**content, "info": info})
    except TypeError as error:
        raise StoreError(
            f"The info of run {folder.name!r} is not JSON: {error}. Give numbers, texts, lists, dicts."
        ) from None
    sync_folder(folder.parent)


def _opened(folder: Path, rank: int) -> OpenRun:
    lock = FileLock.take(folder / lock_name(rank))
    if lock is None:
        raise _busy(folder, rank)
    try:
        for name in (SESSIONS, *(f"{SEGMENTS}/{table}" for table in TABLES)):
            (folder / name).mkdir(parents=True, exist_ok=True)  # empty folders get lost in some copies
        files = RunFiles(folder)
        series = known_series(files, rank)
        number = 1 + max(largest_series(files), *series.values(), -1)
        session = 1 + max([*_sessions_of(folder, rank), 0])
        run = OpenRun(folder, rank, session, series, number, time.time(), lock)
        lock.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "session": session}).encode())
        run.mark()
    except BaseException:
        lock.release()
        raise
    return run


def _busy(folder: Path, rank: int) -> BusyError:
    try:
        holder = json.loads((folder / lock_name(rank)).read_bytes())
        who = f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return BusyError(
        f"{folder} is being recorded by {who}. Close that recorder first, or record to another folder: "
        "without resume=True a taken name gets a new suffix."
    )


def known_series(files: RunFiles, rank: int) -> dict[Series, int]:
    """Every series of a rank with its number; one whose kind this version does not know is left alone."""
    rows = files.sources("series").read(SCHEMA["series"].names, Wanted()).to_pylist()
    known: dict[Series, int] = {}
    for row in rows:
        if row["rank"] != rank:
            continue
        try:
            kind, mode, reading = Kind(row["kind"]), Mode(row["mode"]), Reading(row["reading"])
        except ValueError:
            continue  # a newer layerscope's word
        words = (row["site"], row["port"], kind, mode, reading, row["dtype"])
        series = Series(*words, tuple(row["shape"] or ()), row["context"] or "", row["local"] or "")
        known.setdefault(series, row["series"])
    return known


def largest_series(files: RunFiles) -> int:
    """The largest series number that any row uses, also one whose series was lost; -1 if there is none."""
    largest = -1
    for table in ("series", *BY_SERIES):
        sources = files.sources(table)
        numbers = [part.largest_series for part in sources.parts]
        numbers += [int(segment.series_numbers().max(initial=-1)) for segment in sources.segments]
        largest = max([largest, *numbers])
    return largest


def _sessions_of(folder: Path, rank: int) -> set[int]:
    """Session numbers that have been used, by their marks and by what they left."""
    used = {name.session for name in session_names(folder) if name.rank == rank}
    for table in TABLES:
        used |= {name.session for name in segment_names(folder, table) if name.rank == rank}
    return used


def session_names(folder: Path) -> list[SessionName]:
    """The sessions of a run, in the order of rank and number."""
    try:
        names = [SessionName.parse(entry.name) for entry in (folder / SESSIONS).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)


def status_of(folder: Path) -> Status:
    """Whether a run is being written, was ended properly, or its writer died."""
    if any(is_held(path) for path in folder.iterdir() if _LOCK_NAME.fullmatch(path.name)):
        return "running"
    last = {name.rank: name for name in session_names(folder)}
    return "finished" if last and all(_is_closed(folder, name) for name in last.values()) else "stopped"


def _is_closed(folder: Path, name: SessionName) -> bool:
    try:
        content = json.loads((folder / SESSIONS / str(name)).read_bytes())
    except (OSError, ValueError):
        return False  # a mark that is not whole marks nothing
    return isinstance(content, dict) and "closed_s" in content
