"""Every benchmark in turn, as the tables of docs/performance.md. Run it on a machine with nothing else to do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
TABLES = {
    "watch": "Watching a training",
    "recorder": "Recording named tensors",
    "trace": "Tracing a pass",
    "kernel": "Summaries of tensors",
    "store": "Writing and reading runs",
    "page": "The page",
    "page_tensors": "The page's view of named tensors, on the tutorial's demo",
    "imports": "Importing",
}


def rows(benchmark: str, more: list[str]) -> list[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--json", str(file), *more]
        subprocess.run(command, cwd=ROOT, check=True)
        found: list[dict[str, str]] = json.loads(file.read_text())
        return found


def table(title: str, found: list[dict[str, str]]) -> str:
    lines = [f"### {title}", "", "| what | measured | goal |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['measured']} | {row.get('limit', '')} |" for row in found]
    return "\n".join(lines)


def machine() -> str:
    cores = os.cpu_count()
    return f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, {cores} cores."


def main() -> None:
    head, mark, _ = PAGE.read_text().partition("<!-- measured -->")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--torchlens", metavar="PYTHON", help="an environment with torchlens, to be measured beside ours"
    )
    parser.add_argument("--peers", metavar="PYTHON", help="one with wandb, tensorboard and torchexplorer, likewise")
    options = parser.parse_args()
    more = {
        "trace": ["--torchlens", options.torchlens] if options.torchlens else [],
        "watch": ["--peers", options.peers] if options.peers else [],
    }
    parts = [table(title, rows(name, more.get(name, []))) for name, title in TABLES.items()]
    PAGE.write_text(f"{head}{mark}\n\n{machine()}\n\n" + "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
