"""The session files: who recorded, whether it ended properly, and what it then had written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from layerscope.errors import FormatError
from layerscope.store.files import Directory, damaged, opened
from layerscope.store.format import GRAPH, SESSIONS, TABLES, SessionName, is_lock_name, lock_name
from layerscope.store.lock import is_held
from layerscope.store.manifests import read_json, whole, write_json

Status = Literal["running", "finished", "stopped"]
_MOST_LOCK = 1 << 16  # bytes of what a lock file says


@dataclass(frozen=True, slots=True)
class Ended:
    """What a session says at its end."""

    segments: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by table: the last one, and its bytes
    graph: bool = False  # whether there was a graph.json
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
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, f"a key is missing or wrong ({str(error)[:200]})") from None


def read_sessions(folder: Path, run: str) -> tuple[dict[SessionName, Ended], list[str]]:
    """What every session says, and a sentence for each that is damaged or missing."""
    found: dict[SessionName, Ended] = {}
    problems: list[str] = []
    for name in session_names(folder):
        found[name] = Ended()
        try:
            with opened(folder, SESSIONS) as directory:
                found[name] = _read(directory, name, run)
        except (FormatError, OSError) as error:
            problems.append(str(error))
    last = _last_by_locks(folder)
    for name in found:
        last[name.rank] = max(name.session, last.get(name.rank, 0))
    for rank, session in last.items():
        missing = session - sum(name.rank == rank for name in found)
        if missing > 0:
            problems.append(f"{folder / SESSIONS} lacks {missing} of the {session} sessions of rank {rank}.")
    return found, problems


def _last_by_locks(folder: Path) -> dict[int, int]:
    """The last session of each rank, as far as the lock files tell."""
    found: dict[int, int] = {}
    with opened(folder) as directory:
        for name in filter(is_lock_name, directory.names()):
            try:
                said = json.loads(directory.read(name, _MOST_LOCK))
                found[int(name[len("writer-r") : -len(".lock")])] = whole(said["session"], 1, 999_999)
            except (FormatError, OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # it only says who holds it
    return found


def has_graph(sessions: Mapping[SessionName, Ended], folder: Path) -> str | None:
    """What there is to say of a graph.json that is missing, None if nothing is."""
    with opened(folder) as directory:
        if any(ended.graph for ended in sessions.values()) and GRAPH not in directory.names():
            return f"{folder / GRAPH} is missing: modules and calls are left out."
    return None


def status_of(folder: Path, run: str) -> Status:
    """Whether a run is being written, was ended properly, or its writer died."""
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
        return False  # a mark that is not whole marks nothing; the problems of the run name it


def holder_of(folder: Path, rank: int) -> str:
    """Who holds the lock of a rank, as the lock file says."""
    try:
        with opened(folder) as directory:
            said = json.loads(directory.read(lock_name(rank), _MOST_LOCK))
        return f"process {said['pid']} on {said['host']}"
    except (FormatError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
