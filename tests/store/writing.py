"""Records into a folder until it is killed; says after each flush which step is safe. Run as a process by the tests."""

from __future__ import annotations

import sys

from layerscope.store import segments
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.store.runs import put_named, put_steps


def main(folder: str, first: int, roll_bytes: int, last: int, *, in_turn: bool) -> None:
    """Records steps from the first to the last, more series with each; one batch or a few at a time.

    In turn: what was said is waited for to be answered with a line before anything else is written.
    """
    segments.ROLL_BYTES = roll_bytes
    sink = FolderSink(create(folder, resume=True), compact=False)
    for step in range(first, last + 1):
        put_steps(sink, [step], width=20 + (step - first) % 40)
        put_named(sink, [step])
        if step % 3 and sink.flush():
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()
            if in_turn:
                sys.stdin.readline()
    sink.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), in_turn="in-turn" in sys.argv)
