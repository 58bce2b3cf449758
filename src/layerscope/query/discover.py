"""Find the runs in a folder."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from layerscope.errors import StoreError
from layerscope.store.reader import RUN

DEPTH = 3  # project/experiment/run: deeper trees are data sets, not projects


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The runs of a folder, sorted by path, and a sentence for each folder that cannot be read."""

    runs: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def must_be_folder(path: Path) -> None:
    """Raise an error if a path is not a folder, or its name is not UTF-8."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            if _is_text(path):
                return
            raise StoreError(f"{_odd(path)}.")
        reason = f"{str(path)!r} is not a folder"
    except FileNotFoundError:
        reason = f"There is no folder {str(path)!r}"
    except OSError as error:
        reason = _cause(path, error)
    raise StoreError(f"{reason}. Give a run, or a folder that holds runs.")


def find_runs(folder: Path) -> RunFolder:
    """Run folders in a folder, or the folder itself when it is one.

    The folder may be a symbolic link; those below it are not followed, so that nothing outside is ever read.
    """
    must_be_folder(folder)
    try:
        inside = None if _is_run(folder) else _folders(folder)
    except OSError as error:
        raise StoreError(f"{_cause(folder, error)}. Check its permissions.") from None
    if inside is None:
        return RunFolder([folder])
    folders = RunFolder()
    for entry in inside:
        _search(entry, DEPTH - 1, folders)
    folders.runs.sort()
    return folders


def _search(folder: Path, depth: int, folders: RunFolder) -> None:
    if not _is_text(folder):
        folders.skipped.append(f"{_odd(folder)}; it was skipped.")
        return
    try:
        if _is_run(folder):
            folders.runs.append(folder)
            return
        inside = _folders(folder) if depth else []
    except FileNotFoundError:
        return  # deleted since it was listed
    except OSError as error:
        folders.skipped.append(f"{_cause(folder, error)}. It was skipped.")
        return
    for entry in inside:
        _search(entry, depth - 1, folders)


def _is_text(path: Path) -> bool:
    """Whether the path is UTF-8, as Arrow and the page require."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _odd(folder: Path) -> str:
    return f"The name of the folder {str(folder)!r} is not UTF-8. Rename it"


def is_still_run(root: Path, run: Path) -> bool:
    """Whether a run below the root still exists, and no folder on its path has become a link."""
    on_the_way = [run, *run.parents[: len(run.relative_to(root).parts) - 1]] if run != root else []
    try:
        return _is_run(run) and not any(stat.S_ISLNK(folder.lstat().st_mode) for folder in on_the_way)
    except OSError:
        return False


def _is_run(folder: Path) -> bool:
    """Whether the folder has a run's manifest; does not list the folder.

    A link, a pipe or a device in its place counts: who opens the run says what is wrong with it, and follows no link.
    """
    try:
        return not stat.S_ISDIR((folder / RUN).lstat().st_mode)
    except FileNotFoundError:
        return False


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    return [folder / name for name in names]


def _cause(folder: Path, error: OSError) -> str:
    return f"The folder {str(folder)!r} cannot be read: {error.strerror or error}"
