"""A training whose data loader's worker lives on when the training is killed. Run as a process by the tests."""

from __future__ import annotations

import os
import sys

from layerscope.store.folder import create
from layerscope.store.writer import FolderSink


def main(folder: str) -> None:
    """Forks a worker that lives as long as its parent's input is open, then waits to be killed."""
    FolderSink(create(folder))
    held, _ = os.pipe()
    if os.fork() == 0:
        os.close(1)
        os.read(held, 1)  # both ends of the pipe are open here: for ever
    sys.stdout.write("forked\n")
    sys.stdout.flush()
    os.read(held, 1)


if __name__ == "__main__":
    main(sys.argv[1])
