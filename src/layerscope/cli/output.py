"""Where the command writes."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 100_000  # columns: what is written to a file or another program is not cut to a screen


@cache
def console() -> Console:
    """The terminal, or whatever the output was sent to."""
    from rich.console import Console  # a mistake in the arguments is told without waiting for it

    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)


def complain(problem: object) -> None:
    """Say what is wrong, in one sentence, where errors go."""
    sys.stderr.write(f"layerscope: {problem}\n")
