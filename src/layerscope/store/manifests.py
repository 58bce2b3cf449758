"""The JSON files of a run and the locks of its writers: what they say, and who records at the moment."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import math
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerscope.errors import FormatError, StoreError
from layerscope.store.columns import json_text
from layerscope.store.files import Directory, checksum_text, damaged, opened
from layerscope.store.format import (
    GRAPH,
    LIVE,
    RUN,
    SESSIONS,
    TABLES,
    VERSION,
    Live,
    Manifest,
    PartEntry,
    SegmentName,
    SessionName,
    TableFiles,
    is_lock_name,
    is_part_name,
    lock_name,
)

LOCKS = importlib.util.find_spec("fcntl") is not None  # Windows lacks it: runs can be read there, not written
if LOCKS:
    import fcntl

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if LOCKS else 0  # follows no link and does not block on a pipe
_LOCK_PATIENCE_S = 0.3  # longer than `is_held` holds the lock
_PAUSE_S = 0.01


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process.

    A forked child closes its copy, so that a data-loader worker that outlives a killed training does
    not keep the run locked.
    """

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _abandon(mine()))

    @staticmethod
    def take(path: Path, patience_s: float = _LOCK_PATIENCE_S) -> FileLock | None:
        """The lock, or None if another process holds it."""
        if not LOCKS:
            raise StoreError(f"{path} cannot be locked on this system. Record on Linux or macOS; read runs anywhere.")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}. Choose a folder you can write to.") from None
        until = time.monotonic() + patience_s
        locked = False
        try:
            while not (locked := _try(handle, fcntl.LOCK_EX, path)) and time.monotonic() < until:
                time.sleep(_PAUSE_S)
        finally:
            if not locked:
                os.close(handle)
        return FileLock(handle) if locked else None

    def write(self, content: bytes) -> None:
        """Writes the owner into the lock file."""
        assert self._handle is not None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, content, 0)

    def release(self) -> None:
        """Releases the lock; may be called twice."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Closes the handle of a forked child; the parent keeps the lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _abandon(lock: FileLock | None) -> None:
    if lock is not None:
        lock.abandon()


def _try(handle: int, how: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be locked: {error.strerror}. Record to a local disk.") from None
    return True


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """A `with` block under an exclusive lock on a file; waits for other processes."""
    handle = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile has the handle too, so closing is not enough
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. Holds the lock for an instant itself, so `take` retries."""
    if not LOCKS:
        return False
    try:
        handle = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}. Check its permissions.") from None
    try:
        return not _try(handle, fcntl.LOCK_SH, path)
    finally:
        os.close(handle)


#: Bounds of a JSON file; docs/format.md states them.
MOST_BYTES = {"run": 1 << 20, "session": 1 << 20, "live": 64 << 20, "graph": 64 << 20, "trace": 256 << 20}
MOST_NESTED = 64
MOST_ITEMS = 5_000_000
MOST_WHOLE = 2**53  # exact in JavaScript, too
_FIRST_BYTES = len('{"checksum": "0123456789abcdef",')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_SUM = re.compile(r"[0-9a-f]{16}")
_SESSION = re.compile(r"r[0-9]{1,6}-s[0-9]{1,6}")


def write_json(directory: Directory, name: str, kind: str, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file of the run, marked with its checksum, format and version."""
    made = sealed({"format": f"layerscope-{kind}", "version": VERSION, **content})
    if len(made) > MOST_BYTES[kind]:
        raise ValueError(f"{name} would have {len(made):,} bytes, more than the {MOST_BYTES[kind]:,} that are allowed")
    directory.replace(name, made)


def sealed(content: Mapping[str, Any]) -> bytes:
    """A JSON file with its checksum."""
    rest = json_text(content, indent=1)[1:].encode() + b"\n"
    return _first(rest) + rest


def _first(rest: bytes) -> bytes:
    return f'{{"checksum": "{checksum_text(rest)}",'.encode()


def read_json(directory: Directory, name: str, kind: str) -> dict[str, Any]:
    """Content of a JSON file of the run, after its checksum, bounds, format and version are verified."""
    path, content = directory.path / name, verified(directory, name, kind)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no whole JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != f"layerscope-{kind}":
        raise damaged(path, f'it does not say "format": "layerscope-{kind}"')
    check_version(path, document.get("version"))
    return document


def verified(directory: Directory, name: str, kind: str) -> bytes:
    """Bytes of a JSON file of the run, after its checksum and bounds are verified."""
    path, content = directory.path / name, directory.read(name, MOST_BYTES[kind])
    if content[:_FIRST_BYTES] != _first(content[_FIRST_BYTES:]):
        raise damaged(path, "its bytes do not match its checksum")
    if _nested(content) > MOST_NESTED and _nested(_STRING.sub(b"", content)) > MOST_NESTED:
        raise damaged(path, f"it is nested more than {MOST_NESTED} times")
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MOST_ITEMS:
        raise damaged(path, f"it holds more than {MOST_ITEMS:,} values")
    return content


def _nested(content: bytes) -> int:
    """How deep brackets are nested, including those in strings."""
    brackets = np.frombuffer(content.translate(None, _NO_BRACKETS), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opening, 1, -1)).max(initial=0))


def check_version(path: Path, version: object) -> None:
    """Rejects a file of a newer format version."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(path, f"its version is {str(version)[:100]!r}")
    if version > VERSION:
        raise FormatError(
            f"{path} has format version {str(version)[:20]}; this layerscope reads up to {VERSION}. "
            "Update layerscope to open this run."
        )


def whole(value: object, least: int = 0, most: int = MOST_WHOLE) -> int:
    """An integer of a JSON file, checked against bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{str(value)[:100]!r} is no whole number from {least} to {most}")
    return value


def read_manifest(folder: Path) -> Manifest:
    """The content of run.json."""
    path = folder / RUN
    try:
        with opened(folder) as directory:
            content = read_json(directory, RUN, "run")
        created_s, info = float(content["created_s"]), content.get("info") or {}
        if not (math.isfinite(created_s) and isinstance(info, dict)):
            raise ValueError("created_s or info")
        words = {name: str(content[name]) for name in ("name", "id", "layerscope")}
        return Manifest(created_s=created_s, info=info, **words)
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{folder} is not a run: it has no {RUN}. Give the folder that a recorder wrote, "
            "or `layerscope ui` a folder of runs."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, f"a key is missing or wrong ({error})") from None


def unreadable(path: Path, error: OSError) -> FormatError:
    """The error for a file that cannot be opened."""
    return FormatError(f"{path} cannot be read: {error.strerror}. Check its permissions.")


def read_live(folder: Path, run: str) -> Live:
    """The content of live.json; `run` is the id of the run."""
    path = folder / LIVE
    try:
        with opened(folder) as directory:
            content = read_json(directory, LIVE, "live")
        if content["run"] != run:
            raise damaged(path, "it is that of another run")
        tables = {str(name): _table(path, about) for name, about in content["tables"].items()}
        if missing := [table for table in TABLES if table not in tables]:
            raise damaged(path, f"it lacks the tables {', '.join(missing)}")
        unknown = tuple(name for name in tables if name not in TABLES)
        return Live(whole(content["generation"]), {table: tables[table] for table in TABLES}, unknown)
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(path, f"a key is missing or wrong ({str(error)[:200]})") from None


def _table(path: Path, about: Mapping[str, Any]) -> TableFiles:
    parts, replaced, compacted = about["parts"], about["replaced"], about["compacted"]
    names = [part["file"] for part in parts]
    if not all(map(is_part_name, names)) or not all(is_part_name(name) or SegmentName.parse(name) for name in replaced):
        raise damaged(path, "it names files that no part or segment can have")
    if not all(_SESSION.fullmatch(name) for name in compacted):
        raise damaged(path, "it names sessions that there cannot be")
    return TableFiles(
        tuple(_part(part) for part in parts),
        {name: _sum(given) for name, given in replaced.items()},
        {name: whole(number) for name, number in compacted.items()},
    )


def _part(about: Mapping[str, Any]) -> PartEntry:
    try:
        inside = [base64.b64decode(about[name], validate=True) for name in ("chunks", "groups")]
    except binascii.Error as error:
        raise ValueError(f"chunks or groups: {error}") from None
    return PartEntry(about["file"], whole(about["rows"]), whole(about["bytes"]), _sum(about["footer"]), *inside)


def _sum(text: object) -> int:
    if not isinstance(text, str) or not _SUM.fullmatch(text):
        raise ValueError(f"{str(text)[:100]!r} is no checksum")
    return int(text, 16)


def write_live(folder: Path, run: str, live: Live) -> None:
    """Replaces live.json."""
    tables = {
        table: {
            "parts": [
                {
                    "file": part.file,
                    "rows": part.rows,
                    "bytes": part.size,
                    "footer": f"{part.footer:016x}",
                    "chunks": base64.b64encode(part.chunks).decode(),
                    "groups": base64.b64encode(part.groups).decode(),
                }
                for part in live.of(table).parts
            ],
            "replaced": {name: f"{given:016x}" for name, given in live.of(table).replaced.items()},
            "compacted": dict(live.of(table).compacted),
        }
        for table in TABLES
    }
    with opened(folder) as directory:
        write_json(directory, LIVE, "live", {"run": run, "generation": live.generation, "tables": tables})


Status = Literal["running", "finished", "stopped"]
_MOST_LOCK = 1 << 16  # bytes of a lock file


@dataclass(frozen=True, slots=True)
class Ended:
    """What a session file records at its end."""

    segments: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # table → number of the last segment, and its bytes
    graph: bool = False  # whether graph.json exists
    closed: bool = False


def write_session(folder: Path, name: SessionName, content: Mapping[str, Any]) -> None:
    """Replaces the file of a session."""
    with opened(folder, SESSIONS) as directory:
        write_json(directory, str(name), "session", {"rank": name.rank, "session": name.session, **content})


def session_names(folder: Path) -> list[SessionName]:
    """The sessions of a run, in the order of rank and number."""
    try:
        with opened(folder, SESSIONS) as directory:
            names = [SessionName.parse(name) for name in directory.names()]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)


def _read(directory: Directory, name: SessionName, run: str) -> Ended:
    path = directory.path / str(name)
    try:
        content = read_json(directory, str(name), "session")
        if (content["rank"], content["session"], content["run"]) != (name.rank, name.session, run):
            raise damaged(path, "it is that of another session")
        written = content.get("segments", {})
        segments = {table: (whole(written[table][0]), whole(written[table][1])) for table in TABLES if table in written}
        return Ended(segments, content.get("graph") is True, "closed_s" in content)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, f"a key is missing or wrong ({str(error)[:200]})") from None


def read_sessions(folder: Path, run: str) -> tuple[dict[SessionName, Ended], list[str]]:
    """Content of every session file, and a message for each that is damaged or missing."""
    sessions: dict[SessionName, Ended] = {}
    problems: list[str] = []
    for name in session_names(folder):
        sessions[name] = Ended()
        try:
            with opened(folder, SESSIONS) as directory:
                sessions[name] = _read(directory, name, run)
        except (FormatError, OSError) as error:
            problems.append(str(error))
    last = _last_by_locks(folder)
    for name in sessions:
        last[name.rank] = max(name.session, last.get(name.rank, 0))
    for rank, session in last.items():
        missing = session - sum(name.rank == rank for name in sessions)
        if missing > 0:
            problems.append(f"{folder / SESSIONS} lacks {missing} of the {session} sessions of rank {rank}.")
    return sessions, problems


def _last_by_locks(folder: Path) -> dict[int, int]:
    """The last session of each rank, according to the lock files."""
    last: dict[int, int] = {}
    with opened(folder) as directory:
        for name in filter(is_lock_name, directory.names()):
            try:
                lock = json.loads(directory.read(name, _MOST_LOCK))
                last[int(name[len("writer-r") : -len(".lock")])] = whole(lock["session"], 1, 999_999)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # it only names the owner
    return last


def has_graph(sessions: Mapping[SessionName, Ended], folder: Path) -> str | None:
    """A message if graph.json is missing although a session wrote it, else None."""
    with opened(folder) as directory:
        if any(ended.graph for ended in sessions.values()) and GRAPH not in directory.names():
            return f"{folder / GRAPH} is missing: modules and calls are left out."
    return None


def status_of(folder: Path, run: str) -> Status:
    """Status of a run: running, finished or stopped."""
    with opened(folder) as directory:
        names = directory.names()
    if any(is_held(folder / name) for name in names if is_lock_name(name)):
        return "running"
    last = {name.rank: name for name in session_names(folder)}
    return "finished" if last and all(_is_closed(folder, name, run) for name in last.values()) else "stopped"


def _is_closed(folder: Path, name: SessionName, run: str) -> bool:
    try:
        with opened(folder, SESSIONS) as directory:
            return _read(directory, name, run).closed
    except (FormatError, OSError):
        return False  # a damaged session file does not count; the problems of the run name it


def holder_of(folder: Path, rank: int) -> str:
    """Owner of the lock of a rank, from the lock file."""
    try:
        with opened(folder) as directory:
            lock = json.loads(directory.read(lock_name(rank), _MOST_LOCK))
        return f"process {lock['pid']} on {lock['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
