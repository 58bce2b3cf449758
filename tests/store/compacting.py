"""Compacts a folder and kills itself before the n-th thing it would do to the disk. Run as a process by the tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from layerscope.store.compaction import compact


def main(folder: str, fatal: int) -> None:
    """Ends with SIGKILL, or well if there are fewer things to do."""
    done = 0

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("fsync", "rename", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
    compact(folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
