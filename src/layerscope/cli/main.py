"""The `layerscope` command: arguments in, one of the verbs called, errors as one sentence."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from layerscope.cli.commands import complain
from layerscope.errors import LayerscopeError
from layerscope.version import __version__

EXAMPLES = """examples:
  layerscope demo                                   train a small network, record it, open the page
  layerscope demo recurrent-bug                     the two trials of the tutorial, with a bug to find
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
  recurrent-bug    two trials of a recurrent network, one with a bug, tensors named inside the loop: docs/tutorial.md

examples:
  layerscope demo                                   train, with the page open
  layerscope demo recurrent-bug                     both trials, with a view of its own in the page: about a minute
  layerscope demo recurrent-bug --to runs/lesson    into another folder
  layerscope demo --no-serve --steps 100            record only, and less
"""
REPORT_EXAMPLES = """examples:
  layerscope report runs/first                  first.html: the page, the histories and the traces of the run
  layerscope report runs/first -o mail.html     under another name
  layerscope report runs/first --size 4         at most 4 MB beside the page; what was found wrong comes first

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
    """Run the command; the exit code is 0, 1 if `check` found an error, or 2 when the user has to change something."""
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
    show.set_defaults(run=_show)

    check = commands.add_parser(
        "check",
        help="what is wrong with a training: verdict, why, what to do",
        epilog=CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, or a folder of runs")
    check.add_argument("--json", action="store_true", help="all findings with their evidence, as JSON")
    check.set_defaults(run=_check)

    report = commands.add_parser(
        "report",
        help="a run as one HTML file to mail",
        epilog=REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file (default: the run's name .html)")
    report.add_argument("--size", type=float, default=12.0, metavar="MB", help="beside the page, at most (default 12)")
    report.set_defaults(run=_report)

    compact = commands.add_parser("compact", help="turn what was appended into sorted Parquet files")
    compact.add_argument("path", type=Path, help="a run, or a folder of runs")
    compact.set_defaults(run=_compact)
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
        help="where the run goes (default runs/demo), or both trials (runs/recurrent-bug); a taken name gets a suffix",
    )
    demo.add_argument("--steps", type=int, help="training steps (default 600, or 1200 of each trial)")
    demo.add_argument("--no-serve", action="store_true", help="end after recording")
    _server_options(demo)
    demo.set_defaults(run=_demo)


def _server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", help="listen on this address (default: this machine only)")
    command.add_argument("--port", type=int, default=8765, help="listen on this port, or the next free one")
    command.add_argument("--no-browser", action="store_true", help="do not open a browser")


def _demo(options: argparse.Namespace) -> int:
    from layerscope.cli.commands import demo

    demo(options)
    return 0


def _ui(options: argparse.Namespace) -> int:
    from layerscope.server.background import give_memory_back, leave_pandas_out
    from layerscope.server.serve import serve

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


def _show(options: argparse.Namespace) -> int:
    from layerscope.cli.commands import show

    return show(options)


def _check(options: argparse.Namespace) -> int:
    from layerscope.cli.commands import check_runs

    return check_runs(options)


def _report(options: argparse.Namespace) -> int:
    from layerscope.cli.commands import write_report

    return write_report(options)


def _compact(options: argparse.Namespace) -> int:
    from layerscope.cli.commands import compact_runs

    return compact_runs(options)
