"""`Run`: a recorded run with everything it holds, its traces included."""

from __future__ import annotations

from layerscope.diagnose.check import check
from layerscope.diagnose.tables import findings_table
from layerscope.query.run import Run as RunTables
from layerscope.query.table import Table
from layerscope.store.passes import pass_folders, read_pass
from layerscope.traced import Trace, stored_trace


class Run(RunTables):
    """A recorded run: the tables of `query.run.Run`, what is wrong with it by `findings()`, and its `traces()`.

    It may still be growing: every call reads what has been written by then.
    """

    def findings(self) -> Table:
        """What is wrong with the training as far as it is recorded: causes by step, each before what came of it."""
        return Table(findings_table(check(self.path)))

    def traces(self) -> list[Trace]:
        """The traces saved in the run, oldest first; their values are numpy arrays."""
        return [stored_trace(read_pass(folder)) for folder in pass_folders(self.path)]

    def show(self) -> object:
        """The run to look at: in a notebook a widget, as last line of a cell; elsewhere it opens in the browser."""
        from layerscope.shown import show

        return show(self.path, "")
