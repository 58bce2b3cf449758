"""`layerscope report`: a run as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerscope.cli.output import console
from layerscope.server.report import report
from layerscope.viz.pass_text import size


def write_report(options: argparse.Namespace) -> int:
    """Write the file and say what it holds; the exit code."""
    made = report(options.run_folder, most_bytes=round(options.size * 1e6))
    file = options.output or Path(f"{options.run_folder.resolve().name}.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made.html, encoding="utf-8")
    told = f"{file}: {size(file.stat().st_size)}, {made.holds}"
    console().print(told, markup=False, highlight=False)
    return 0
