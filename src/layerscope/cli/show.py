"""`layerscope show`: what a run holds, in the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from layerscope.cli.each import each_run
from layerscope.cli.output import complain, console
from layerscope.query.run import Run
from layerscope.query.table import Table
from layerscope.viz import text

TELLING = ("mean", "std", "rms", "abs_max", "zero_share", "nan")


def show(options: argparse.Namespace) -> int:
    """Print the overview of a run or of each run, or the table asked for; the exit code."""

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        run = Run(path)
        if not (options.sql or options.sites or options.kind or options.stat or options.context is not None):
            console().print(text.overview(run))
            return
        if options.sql:
            content = run.sql(options.sql)
        else:
            stat = options.stat or (*TELLING, *run.own_statistics)
            content = run.stats(options.sites or "*", kind=options.kind, stat=stat, context=options.context)
            for column in ("context", "local"):
                if not any(content[column]):
                    content = Table(content.arrow().drop_columns(column))
        if several:
            console().print(Text(str(path), "bold"))
        console().print(text.table(content))
        for problem in run.problems:
            complain(f"{path}: {problem}" if several else problem)

    return each_run(options.path, one)
