"""Which runs a folder holds."""

from __future__ import annotations

from pathlib import Path

from layerscope.errors import StoreError
from layerscope.store.format import RUN

DEPTH = 3  # project/experiment/run: deeper trees are somebody's data set, not a project


def find_runs(folder: Path) -> list[Path]:
    """Run folders in a folder, or the folder itself when it is one, sorted by path."""
    if not folder.exists():
        raise StoreError(f"There is no folder {str(folder)!r}. Give a run, or a folder that holds runs.")
    return sorted(_runs(folder, DEPTH))


def _runs(folder: Path, depth: int) -> list[Path]:
    if (folder / RUN).is_file():
        return [folder]
    if depth == 0 or not folder.is_dir():
        return []
    inside = (entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [run for entry in inside for run in _runs(entry, depth - 1)]
