"""A verb applied to every run of a folder: one that cannot be read does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from layerscope.cli.output import complain, console
from layerscope.errors import LayerscopeError, StoreError
from layerscope.query.discover import find_runs

SOUND, TROUBLE = 0, 2  # exit codes


def each_run(folder: Path, act: Callable[[Path, bool], None], doing: str = "") -> int:
    """The exit code after acting on every run; `act` is told the run and whether it is one of several.

    `doing` names what takes so long that a terminal shows how far it is.
    """
    found = find_runs(folder)
    for problem in found.skipped:
        complain(problem)
    if not found.runs:
        raise StoreError(f"There are no runs in {str(folder)!r}. Give a run, or a folder that holds runs.")
    code = TROUBLE if found.skipped else SOUND
    several = len(found.runs) > 1
    show_progress = bool(doing) and several and console().is_terminal
    for run in track(found.runs, doing, console=console(), disable=not show_progress):
        try:
            act(run, several)
        except BrokenPipeError:
            raise  # our own output, not the run
        except Exception as error:  # noqa: BLE001  a border: the other runs have nothing to do with it
            complain(_told(run, error, several=several))
            code = TROUBLE
    return code


def _told(run: Path, error: Exception, *, several: bool) -> str:
    if not isinstance(error, LayerscopeError | OSError):
        fault = f"{run} could not be read: {type(error).__name__}: {error}."
        return f"{fault} This is a fault of layerscope: please report it with the run."
    return f"{run}: {error}" if several and str(run) not in str(error) else str(error)
