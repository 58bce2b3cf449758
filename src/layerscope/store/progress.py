"""How far something is, for who waits in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0  # what takes less shows nothing


@contextmanager
def progress_line(text: str) -> Iterator[Callable[[float], None]]:
    """A function to tell the share that is done: shown on stderr if that is a terminal and it takes long."""
    began = time.monotonic()
    lines: list[Progress] = []
    with ExitStack() as shown:

        def tell(share: float) -> None:
            if not lines and time.monotonic() - began >= PATIENCE_S and sys.stderr is not None and sys.stderr.isatty():
                lines.append(shown.enter_context(_line(text)))
            for line in lines:
                line.update(line.task_ids[0], completed=share)

        yield tell


def _line(text: str) -> Progress:
    from rich.console import Console  # loaded when somebody waits, not by every training
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    line = Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    line.add_task(escape(text), total=1.0)
    return line
