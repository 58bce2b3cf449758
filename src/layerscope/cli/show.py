"""`layerscope show`: what a run holds, in the terminal."""

from __future__ import annotations

import argparse

from layerscope.cli.output import console
from layerscope.query.discover import find_runs
from layerscope.query.run import Run
from layerscope.viz import text

TELLING = ("mean", "std", "rms", "abs_max", "zero_share", "nan")


def show(options: argparse.Namespace) -> None:
    """Print the overview of a run or of each run, or the table asked for."""
    runs = [Run(path) for path in find_runs(options.path)]
    asked = options.sites or options.kind or options.stat
    for run in runs:
        if options.sql:
            console().print(text.table(run.sql(options.sql)))
        elif asked:
            stat = options.stat or TELLING
            console().print(text.table(run.stats(options.sites or "*", kind=options.kind, stat=stat)))
        else:
            console().print(text.overview(run))
