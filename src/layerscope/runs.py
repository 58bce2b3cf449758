"""`Run`: a recorded run with everything it holds, its traces included."""

from __future__ import annotations

from layerscope.diagnose.findings import findings_table
from layerscope.diagnose.rules import check
from layerscope.model.patterns import Patterns, listed, only
from layerscope.query.run_tables import RunTables as RunTables
from layerscope.query.tables import Table
from layerscope.store.curves import add_curves
from layerscope.store.traces import pass_folders, read_pass
from layerscope.traces import Trace, stored_trace


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
        """Add curves that were kept elsewhere, such as the loss, as metrics of the run; their names.

        A pandas or polars data frame, an Arrow table or a dict of columns, one of them with the steps. Where a value
        is missing, the curve has none; pandas cannot tell NaN from that.
        """
        return add_curves(self.path, curves, step)

    def show(  # noqa: PLR0913  all that the page can begin with
        self,
        view: str = "charts",
        *,
        site: Patterns = None,
        kind: Patterns = None,
        stat: Patterns = None,
        step: int | None = None,
        every: int = 1,
        axis: str | None = None,
        format: str | None = None,
    ) -> object:
        """The run to look at: in a notebook a widget, as last line of a cell; elsewhere it opens in the browser.

        It begins with a view ("charts", "histogram" of one step, "graph", "heatmap", "findings", "traces", "compare",
        "tensors"), and there with a site, a kind of its tensors, a statistic and a step; of `every` steps one is shown.
        Site, kind and statistic are given as to `stats()`, by anything that matches one of them.
        Histograms have an `axis`, "linear", "symlog" or "exponent", and on the last one the limits of a number
        `format` such as "float8_e4m3fn".
        """
        from layerscope.widgets import show, start_at

        known = self.series().arrow()
        site = None if site is None else listed(site)
        words = {
            "site": only(site, known["site"].unique().to_pylist(), "site", self._classes(site or ())),
            "kind": only(kind, known["kind"].unique().to_pylist(), "kind"),
            "stat": only(stat, self.statistics, "statistic"),
        }
        start = start_at(
            view, {**words, "axis": axis, "format": format}, {"step": step, "every": None if every == 1 else every}
        )
        return show(self.path, start)
