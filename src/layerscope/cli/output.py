"""Where the command writes."""

from __future__ import annotations

from functools import cache

from rich.console import Console


@cache
def console() -> Console:
    """The terminal, or whatever the output was sent to."""
    return Console(highlight=False, soft_wrap=True)
