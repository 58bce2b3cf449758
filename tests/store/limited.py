"""Records with a limit on the size of a file, as a full disk would set it. Run as a process by the tests."""

from __future__ import annotations

import resource
import sys
import warnings

from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.store.runs import put_steps


def main(folder: str, limit_bytes: int) -> None:
    """Records twenty steps; each file may grow to the limit, where the system says that it is too large."""
    sink = FolderSink(create(folder), compact=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))  # Python ignores the signal that goes with it
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(20):
            put_steps(sink, [step], width=40)
            sink.flush()
        sink.close()
    reasons = {str(warning.message).partition("written: ")[2].partition(".")[0] for warning in told}
    sys.stdout.write(f"{len(told)} warning: {' '.join(reasons)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
