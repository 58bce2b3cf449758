"""The lines of code around each line that a pass went through."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

from layerscope.operations import CodeFrame, Frame, PassRecord
from layerscope.store.passes import Code, Snippet

AROUND = 2  # lines before and after


def code_of(record: PassRecord) -> dict[tuple[str, int], Snippet]:
    """The code around every line of the pass, as the files are now; those that cannot be read are left out."""
    frames = {frame for operation in record.operations for frame in operation.frames}
    frames.update(frame for call in record.calls for frame in call.frames)
    snippets = {(frame.file, frame.line): snippet(frame) for frame in sorted(frames)}
    return {place: found for place, found in snippets.items() if found[1]}


def snippet(frame: Frame) -> Snippet:
    """The code around one line; no lines where the file cannot be read."""
    lines = linecache.getlines(frame.file)
    first = max(frame.line - AROUND, 1)
    return first, tuple(line.rstrip() for line in lines[first - 1 : frame.line + AROUND])


def stack_of(record: PassRecord, operation: int, code: Code | None) -> Iterator[CodeFrame]:
    """Where in the code an operation was called, innermost first; without `code` the files are read."""
    around: int | None = record.operations[operation].call
    frames = record.operations[operation].frames
    while True:
        for frame in frames:
            found = snippet(frame) if code is None else code.get((frame.file, frame.line), (0, ()))
            yield CodeFrame(*frame, *found)
        if around is None:
            return
        frames, around = record.calls[around].frames, record.calls[around].parent
