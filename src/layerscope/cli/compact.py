"""`layerscope compact`: what was appended becomes sorted Parquet files."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerscope.cli.each import each_run
from layerscope.cli.output import console
from layerscope.store.compact import CompactReport, compact


def compact_runs(options: argparse.Namespace) -> int:
    """Compact a run or each run of a folder, and say what became of it; the exit code."""

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        console().print(f"{path}: {told(compact(path))}", markup=False)

    return each_run(options.path, one, "compacting")


def told(report: CompactReport) -> str:
    """What a compaction did, as a sentence."""
    if not report.done:
        return "another process is compacting it."
    rows = sum(report.rows.values())
    if not rows:
        return "nothing new to compact."
    before, after = size_text(report.bytes_before), size_text(report.bytes_after)
    return f"{rows:,} {'row' if rows == 1 else 'rows'} compacted from {before} to {after} in {report.elapsed_s:.2f} s."


def size_text(size_bytes: int) -> str:
    """A number of bytes in the unit that fits.

    >>> size_text(1_234_567)
    '1.2 MB'
    """
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
