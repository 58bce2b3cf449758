"""Adds to the graph of a run again and again, as one rank of several. Run as a process by the tests."""

from __future__ import annotations

import sys

from layerscope.model.records import CallGraph, ModuleNode
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink


def main(folder: str, rank: int, times: int) -> None:
    """Puts one new module after the other."""
    sink = FolderSink(create(folder, resume=True, rank=rank), compact=False)
    for k in range(times):
        sink.put(CallGraph((ModuleNode(f"{rank}.{k}", "Linear", 1, ""),)))
        sink.flush()
    sink.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
