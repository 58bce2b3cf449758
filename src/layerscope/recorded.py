"""`Run`: a recorded run with everything it holds, its traces included."""

from __future__ import annotations

from layerscope.query.run import Run as RunTables
from layerscope.store.passes import pass_folders, read_pass
from layerscope.traced import Trace, stored_trace


class Run(RunTables):
    """A recorded run: `stats()`, `histograms()`, `exponents()`, `kpis()`, `events()`, `sql()`, `traces()`.

    It may still be growing: every call reads what has been written by then.
    """

    def traces(self) -> list[Trace]:
        """The traces saved in the run, oldest first; their values are numpy arrays."""
        return [stored_trace(read_pass(folder)) for folder in pass_folders(self.path)]
