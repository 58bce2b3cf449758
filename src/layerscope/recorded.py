"""`Run`: a recorded run with everything it holds, its traces included."""

from __future__ import annotations

from urllib.parse import urlencode

from layerscope.diagnose.check import check
from layerscope.diagnose.tables import findings_table
from layerscope.errors import SelectError
from layerscope.query.run import Run as RunTables
from layerscope.query.table import Table
from layerscope.select import unmatched
from layerscope.store.curves import add_curves
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

    def add_curves(self, curves: object, step: str = "step") -> list[str]:
        """Add curves that were kept elsewhere, such as the loss, as KPIs of the run; their names.

        A pandas or polars data frame, an Arrow table or a dict of columns, one of them with the steps. Where a value
        is missing, the curve has none; pandas cannot tell NaN from that.
        """
        return add_curves(self.path, curves, step)

    def show(
        self,
        view: str = "charts",
        *,
        site: str | None = None,
        kind: str | None = None,
        stat: str | None = None,
        step: int | None = None,
    ) -> object:
        """The run to look at: in a notebook a widget, as last line of a cell; elsewhere it opens in the browser.

        It begins with a view ("charts", "graph", "heatmap", "findings", "traces", "compare", "tensors"), and there with
        a site, a kind of its tensors, a statistic and a step.
        """
        from layerscope.shown import VIEWS, show

        known = self.series().arrow()
        chosen = {"view": view, "site": site, "kind": kind, "stat": stat}
        there = (VIEWS, *(known[name].unique().to_pylist() for name in ("site", "kind")), self.statistics)
        for (what, name), names in zip(chosen.items(), there, strict=True):
            if name is not None and name not in names:
                raise SelectError(unmatched(name, names, what))
        said = {what: value for what, value in {**chosen, "step": step}.items() if value is not None}
        return show(self.path, f"#{urlencode(said)}")
