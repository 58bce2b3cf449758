"""What is wrong with those files of a run that few readers ask for: a list of runs says it all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from layerscope.errors import FormatError
from layerscope.store.files import opened
from layerscope.store.format import GRAPH
from layerscope.store.manifests import unreadable, verified
from layerscope.store.passes import RECORD, TRACES, pass_folders


def unread_problems(folder: Path) -> list[str]:
    """A sentence for every link, pipe or device in a run folder or its traces, and every damaged graph or trace.

    Little is read for it: the bytes of the JSON files are compared with their checksums.
    """
    found = list(_problems(folder, (), GRAPH, "graph"))
    try:
        traces = pass_folders(folder)
    except FormatError as error:
        return list(dict.fromkeys([*found, str(error)]))
    if traces:
        found += _problems(folder, (TRACES,), "", "")
    for trace in traces:
        found += _problems(folder, (TRACES, trace.name), RECORD, "pass")
    return found


def _problems(folder: Path, below: tuple[str, ...], name: str, kind: str) -> Iterator[str]:
    """What is wrong in one folder, and with a JSON file in it, if that is there."""
    try:
        with opened(folder, *below) as directory:
            yield from directory.problems()
            if name in directory.names():
                verified(directory, name, kind)
    except FormatError as error:
        yield str(error)
    except OSError as error:
        yield str(unreadable(folder.joinpath(*below), error))
