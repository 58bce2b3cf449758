"""A training whose data loader's worker lives on when the training is killed. Run as a process by the tests."""

from __future__ import annotations

import os
import sys

from layerscope.store.folder import create
from layerscope.store.writer import FolderSink


def main(folder: str) -> None:
    """Forks a worker that lives as long as the input is open, then waits to be killed."""
    FolderSink(create(folder))
    held, _ = os.pipe()
    if os.fork() == 0:
        os.write(1, b"forked\n")  # by its own word: it has let go of what it inherited
        os.close(1)
        os.read(0, 1)
        os._exit(0)
    os.read(held, 1)  # both ends of the pipe are open here: for ever


if __name__ == "__main__":
    main(sys.argv[1])
