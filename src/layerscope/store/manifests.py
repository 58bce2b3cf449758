"""The JSON files of a run, each with a checksum in its first line and bounds on its size."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerscope.errors import FormatError
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
from layerscope.store.lock import is_held

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
