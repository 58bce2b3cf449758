"""The `layerscope` command: arguments, what each command does, and errors as one sentence."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rich.progress import Progress, track
from rich.text import Text

from layerscope.diagnose.findings import Diagnosis, Finding, Severity, as_json
from layerscope.diagnose.rules import check
from layerscope.errors import LayerscopeError, MissingError, StoreError
from layerscope.model.text import quantity
from layerscope.query.discover import find_runs
from layerscope.query.tables import Table
from layerscope.runs import Run
from layerscope.server.background import compact_in_process, give_memory_back, leave_pandas_out
from layerscope.server.one_file import report
from layerscope.server.serve import PageServer, announce, open_page, serve
from layerscope.store.compaction import CompactReport, compact
from layerscope.version import __version__
from layerscope.views import terminal

if TYPE_CHECKING:
    from rich.console import Console


UNLIMITED = 100_000  # columns: what is written to a file or another program is not cut to a screen


@cache
def console() -> Console:
    """The terminal, or the file or pipe that replaces it."""
    from rich.console import Console  # a mistake in the arguments is reported without loading it

    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)


def complain(problem: object) -> None:
    """Print a problem to stderr, in one sentence."""
    sys.stderr.write(f"layerscope: {problem}\n")


SOUND, TROUBLE = 0, 2  # exit codes


def each_run(folder: Path, act: Callable[[Path, bool], None], doing: str = "") -> int:
    """The exit code after acting on every run; `act` gets the run and whether it is one of several.

    `doing` names what takes so long that a terminal shows how far it is.
    """
    folder_runs = find_runs(folder)
    for problem in folder_runs.skipped:
        complain(problem)
    if not folder_runs.runs:
        raise StoreError(f"There are no runs in {str(folder)!r}. Give a run, or a folder that holds runs.")
    code = TROUBLE if folder_runs.skipped else SOUND
    several = len(folder_runs.runs) > 1
    show_progress = bool(doing) and several and console().is_terminal
    for run in track(folder_runs.runs, doing, console=console(), disable=not show_progress):
        try:
            act(run, several)
        except BrokenPipeError:
            raise  # our own output, not the run
        except Exception as error:  # noqa: BLE001  a border: the other runs have nothing to do with it
            complain(_error_text(run, error, several=several))
            code = TROUBLE
    return code


def _error_text(run: Path, error: Exception, *, several: bool) -> str:
    if not isinstance(error, LayerscopeError | OSError):
        fault = f"{run} could not be read: {type(error).__name__}: {error}."
        return f"{fault} This is a fault of layerscope: please report it with the run."
    return f"{run}: {error}" if several and str(run) not in str(error) else str(error)


def compact_runs(options: argparse.Namespace) -> int:
    """Compact a run or each run of a folder, and print the result; the exit code."""

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        console().print(f"{path}: {compaction_text(compact(path))}", markup=False)

    return each_run(options.path, one, "compacting")


def compaction_text(report: CompactReport) -> str:
    """What a compaction did, as a sentence."""
    if not report.done:
        return "another process is compacting it."
    rows = sum(report.rows.values())
    if not rows:
        return "nothing new to compact."
    before, after = quantity(report.bytes_before, "B"), quantity(report.bytes_after, "B")
    return f"{rows:,} {'row' if rows == 1 else 'rows'} compacted from {before} to {after} in {report.elapsed_s:.2f} s."


def write_report(options: argparse.Namespace) -> int:
    """Write the report and print its contents; the exit code."""
    made = report(options.run_folder, most_bytes=round(options.size * 1e6))
    file = options.output or Path(f"{options.run_folder.resolve().name}.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made.html, encoding="utf-8")
    summary = f"{file}: {quantity(file.stat().st_size, 'B')}, {made.holds}"
    console().print(summary, markup=False, highlight=False)
    return 0


TELLING = ("mean", "std", "rms", "abs_max", "zero_share", "nan")


def show_runs(options: argparse.Namespace) -> int:
    """Print the overview of a run or of each run, or the table asked for; the exit code."""

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        run = Run(path)
        if not (options.sql or options.sites or options.kind or options.stat or options.context is not None):
            console().print(terminal.overview(run.reader))
            return
        if options.sql:
            content = run.sql(options.sql)
        else:
            stat = options.stat or (*TELLING, *run.custom_statistics)
            content = run.stats(options.sites or "*", kind=options.kind, stat=stat, context=options.context)
            for column in ("context", "local"):
                if not any(content[column]):
                    content = Table(content.arrow().drop_columns(column))
        if several:
            console().print(Text(str(path), "bold"))
        console().print(terminal.table(content))
        for problem in run.problems:
            complain(f"{path}: {problem}" if several else problem)

    return each_run(options.path, one)


BROKEN = 1  # exit code: a finding is an error
COLORS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def check_runs(options: argparse.Namespace) -> int:
    """Print the findings of every run; the exit code is 1 if one has an error, 2 if something cannot be read."""
    diagnoses: dict[str, Diagnosis] = {}

    def one(path: Path, several: bool) -> None:  # noqa: FBT001  what `each_run` calls
        diagnoses[str(path)] = diagnosis = check(path)
        if not options.json:
            _print_diagnosis(path, diagnosis)
        for problem in diagnosis.problems:
            complain(problem if str(path) in problem else f"{path}: {problem}")

    code = max(_each(path, one) for path in options.runs)
    if options.json:
        console().print(as_json(diagnoses), markup=False)
    broken = any(diagnosis.count(Severity.ERROR) for diagnosis in diagnoses.values())
    if any(diagnosis.problems for diagnosis in diagnoses.values()):
        code = TROUBLE
    return code if code != SOUND else BROKEN if broken else SOUND


def _each(path: Path, one: Callable[[Path, bool], None]) -> int:
    try:
        return each_run(path, one)
    except LayerscopeError as error:  # the others are checked all the same
        complain(error)
        return TROUBLE


def _print_diagnosis(path: Path, diagnosis: Diagnosis) -> None:
    out = console()
    worst = next((severity for severity in Severity if diagnosis.count(severity)), None)
    out.print(Text.assemble((str(path), "bold"), ": ", (diagnosis.verdict, COLORS[worst] if worst else "green")))
    for cause in diagnosis.findings:
        _print_finding(cause)
        for finding in cause.consequences:
            step = f"step {finding.step}: {finding.title}"
            _paragraph("    then ", f"{step}. {finding.why}", COLORS[finding.severity])
    reasons: dict[str, list[str]] = {}
    for missing in diagnosis.not_checked:
        reasons.setdefault(missing.reason, []).append(missing.rule)
    for reason, rules in reasons.items():
        _paragraph("  not checked: ", f"{', '.join(rules)}: {reason}", "dim")


def _print_finding(finding: Finding) -> None:
    console().print(
        Text.assemble(
            "  ",
            (finding.severity.value, COLORS[finding.severity]),
            f", step {finding.step}: ",
            (finding.title, "bold"),
        )
    )
    _paragraph("    why: ", finding.why)
    _paragraph("    do:  ", finding.advice)


def _paragraph(head: str, text: str, style: str = "") -> None:
    """Text after its head, wrapped in a terminal; one line in a pipe."""
    out = console()
    if out.is_terminal:
        wide = max(out.width, len(head) + 20)
        text = textwrap.fill(text, wide, initial_indent=head, subsequent_indent=" " * len(head))[len(head) :]
    out.print(Text.assemble((head, "dim"), (text, style)))


VIEW = Path(__file__).parents[1] / "demos" / "recurrent_view.py"


class Train(Protocol):
    """A training that records itself into a folder."""

    def __call__(self, to: Path, steps: int, track: Callable[[range, str], Iterable[int]]) -> None:
        """Train; `track` shows how far it is."""
        ...


class Demo(NamedTuple):
    """What one of the demos needs."""

    train: Train
    steps: int
    to: Path
    project: Path  # the folder the page shows
    view: Path | None = None


def train_demo(options: argparse.Namespace) -> int:
    """Train with the page open, then keep serving it until interrupted; the exit code."""
    chosen = _chosen(options.name, options.to)
    chosen.project.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if not options.no_serve:
            server = PageServer(
                chosen.project,
                host=options.host,
                port=options.port,
                compactor=compact_in_process,
                view=chosen.view,
            )
            stack.enter_context(server)
            announce(server.address)
            if not options.no_browser:
                open_page(server.address)
        _train(chosen, options.steps or chosen.steps)
        if not options.no_serve:
            server.wait()
    return SOUND


def _chosen(name: str, to: Path | None) -> Demo:
    if importlib.util.find_spec("torch") is None:
        raise MissingError("The demo trains with PyTorch, which is not installed: run `pip install torch`.")
    if name == "recurrent-bug":
        from layerscope.demos import recurrent_bug

        folder = to or Path("runs/recurrent-bug")
        return Demo(recurrent_bug.train, recurrent_bug.STEPS, folder, folder, VIEW)
    from layerscope.demos import spirals

    folder = to or Path("runs/demo")
    return Demo(spirals.train, spirals.STEPS, folder, folder.parent)


def _train(chosen: Demo, steps: int) -> None:
    with Progress(console=console()) as progress:
        chosen.train(chosen.to, steps, lambda counted, what: progress.track(counted, description=what))
    again = f"layerscope ui {chosen.project}" + (f" --view {chosen.view}" if chosen.view else "")
    is_project = chosen.to == chosen.project
    said = f"The runs are in {chosen.to}" if is_project else f"The run is in {chosen.to}"
    console().print(f"{said}. Look again with: {again}", markup=False)


EXAMPLES = """examples:
  layerscope demo                                   train a small network, record it, open the page
  layerscope demo recurrent-bug                     the two runs of the tutorial, with a bug to find
  layerscope ui runs                                the page on every run in a folder
  layerscope ui runs --view my_view.py              with a view of your own
  layerscope show runs/first                        what a run holds
  layerscope show runs/first "layers.*" --stat rms  one statistic of the sites that match
  layerscope check runs/first                       what is wrong with the training, since when, what to do
  layerscope report runs/first -o first.html        one file to mail: the page with what was recorded
  layerscope compact runs/first                     smaller and faster to read, while or after training
"""
DEMO_EXAMPLES = """demos:
  spirals          a residual network; one batch of its training is corrupt: see in which layers that stays (default)
  recurrent-bug    two runs of a recurrent network, one with a bug, tensors named inside the loop: docs/tutorial.md

examples:
  layerscope demo                                   train, with the page open
  layerscope demo recurrent-bug                     both runs, with a custom view in the page: about a minute
  layerscope demo recurrent-bug --to runs/lesson    into another folder
  layerscope demo --no-serve --steps 100            record only, and less
"""
REPORT_EXAMPLES = """examples:
  layerscope report runs/first                  first.html: the page, the histories and the traces of the run
  layerscope report runs/first -o mail.html     under another name
  layerscope report runs/first --size 4         at most 4 MB besides the page; sites with findings come first

The file needs no server and no network. It says what it holds when the pointer rests on "saved page".
"""
CHECK_EXAMPLES = """examples:
  layerscope check runs/first             one run, finished or still training
  layerscope check runs                   every run in a folder
  layerscope check runs/first --json      for other programs
  layerscope check runs/first || exit 1   in CI: stop if it is broken

exit code: 0 sound, or nothing worse than warnings and notes; 1 a finding is an error; 2 a run, or a part
of it, cannot be read
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 if `check` reports an error, or 2 if the user has to change something."""
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name need not be text that the terminal knows
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
    except LayerscopeError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    return code


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="layerscope",
        description="An oscilloscope for neural networks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"layerscope {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    _add_demo(commands)
    ui = commands.add_parser("ui", help="the page on one run or a folder of runs")
    ui.add_argument(
        "runs", type=Path, nargs="?", default=Path("runs"), help="a run, or a folder of runs (default: runs)"
    )
    ui.add_argument("--view", type=Path, metavar="FILE", help="a Python file with a view of your own; its code is run")
    _server_options(ui)
    ui.set_defaults(run=_ui)

    show = commands.add_parser("show", help="tables in the terminal")
    show.add_argument("path", type=Path, help="a run, or a folder of runs")
    show.add_argument("sites", nargs="*", help='names or globs, such as "layers.*.mlp"')
    show.add_argument("--kind", help='such as "output" or "weight_grad"')
    show.add_argument("--context", help='forwards inside run.context(…): a name or glob; "" for those outside')
    show.add_argument("--stat", help='such as "rms"; without it the most telling ones')
    show.add_argument("--sql", metavar="QUERY", help='such as "select site, max(rms) from stats group by site"')
    show.set_defaults(run=show_runs)

    check = commands.add_parser(
        "check",
        help="what is wrong with a training: verdict, why, what to do",
        epilog=CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, or a folder of runs")
    check.add_argument("--json", action="store_true", help="all findings with their evidence, as JSON")
    check.set_defaults(run=check_runs)

    report = commands.add_parser(
        "report",
        help="write a run as one HTML file",
        epilog=REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file (default: the run's name .html)")
    report.add_argument("--size", type=float, default=12.0, metavar="MB", help="beside the page, at most (default 12)")
    report.set_defaults(run=write_report)

    compact = commands.add_parser("compact", help="turn what was appended into sorted Parquet files")
    compact.add_argument("path", type=Path, help="a run, or a folder of runs")
    compact.set_defaults(run=compact_runs)
    return top


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train a small network, record it, open the page",
        epilog=DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("name", nargs="?", choices=("spirals", "recurrent-bug"), default="spirals", help="which one")
    demo.add_argument(
        "--to",
        type=Path,
        metavar="FOLDER",
        help="folder of the run (default: runs/demo, or runs/recurrent-bug); never overwritten",
    )
    demo.add_argument("--steps", type=int, help="training steps (default 600, or 1200 of each run)")
    demo.add_argument("--no-serve", action="store_true", help="end after recording")
    _server_options(demo)
    demo.set_defaults(run=train_demo)


def _server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", help="listen on this address (default: this machine only)")
    command.add_argument("--port", type=int, default=8765, help="listen on this port, or the next free one")
    command.add_argument("--no-browser", action="store_true", help="do not open a browser")


def _ui(options: argparse.Namespace) -> int:
    give_memory_back()
    if options.view is None:  # else code of the user's runs here
        leave_pandas_out()
    serve(
        options.runs,
        host=options.host,
        port=options.port,
        open_browser=not options.no_browser,
        view=options.view,
    )
    return 0
