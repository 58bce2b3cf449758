"""The page, served from the command line."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from layerscope.cli.output import console
from layerscope.server.serve import serve


def serve_until_interrupted(runs: Path, options: argparse.Namespace) -> None:
    """Serve the page, say where, and open it."""
    serve(
        runs,
        host=options.host,
        port=options.port,
        open_browser=not options.no_browser and has_screen(),
        ready=announce,
        compactor=compact_in_another_process,
    )


def announce(address: str) -> None:
    """Say where the page is."""
    console().print(f"layerscope is at [bold]{address}[/bold]   (Ctrl-C ends it)")


def has_screen() -> bool:
    """Whether a browser window can be opened: in a bare terminal a text browser would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def compact_in_another_process(run: Path) -> None:
    """Compact a run without taking memory or time from the server."""
    subprocess.run([sys.executable, "-m", "layerscope.cli", "compact", str(run)], check=True, capture_output=True)
