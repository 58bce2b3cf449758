"""A run to look at where you are: a widget in a notebook, a file in the browser elsewhere."""

from __future__ import annotations

import re
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from layerscope.errors import ArgumentError, LayerscopeError, MissingError, SelectError
from layerscope.model.patterns import unmatched
from layerscope.server.one_file import OfflineApi, report
from layerscope.server.serve import has_screen
from layerscope.views.histogram import FORMATS, NO_FORMAT
from layerscope.views.scales import AxisKind

#: What one can begin with, as the page's address says it.
VIEWS: dict[str, dict[str, str]] = {
    "charts": {},
    "histogram": {"view": "charts", "oneStep": "1"},
    "graph": {},
    "heatmap": {},
    "findings": {},
    "traces": {},
    "compare": {},
    "tensors": {},
}
IN_WIDGET = 1_500_000  # bytes that a widget holds by itself; the rest it asks for
HEIGHT = 720
#: Shows the page in a frame, and hands its questions to Python. Every view of a widget has its own token.
CODE = """
function render({ model, el }) {
  const token = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const frame = document.createElement("iframe");
  frame.title = "layerscope";
  frame.style.cssText = `display:block;width:100%;height:${model.get("height")}px;border:0`;
  const address = URL.createObjectURL(new Blob([model.get("html")], { type: "text/html" }));
  frame.src = address;
  const asked = (event) => {
    if (event.source === frame.contentWindow && typeof event.data?.path === "string")
      model.send({ token, id: event.data.layerscope, path: event.data.path });
  };
  const answered = (content, buffers) => {
    if (content.token !== token) return;
    const view = buffers?.[0];
    const message = view && view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    frame.contentWindow?.postMessage({ layerscope: content.id, problem: content.problem, message }, "*");
  };
  addEventListener("message", asked);
  model.on("msg:custom", answered);
  el.append(frame);
  return () => {
    removeEventListener("message", asked);
    model.off("msg:custom", answered);
    URL.revokeObjectURL(address);
  };
}
export default { render };
"""


def start_at(view: str, words: Mapping[str, str | None], numbers: Mapping[str, int | None]) -> str:
    """The page's address that begins with a view and what is said of it; other words are known to exist."""
    known: dict[str, Sequence[str]] = {
        "view": tuple(VIEWS),
        "axis": tuple(kind.value for kind in AxisKind),
        "format": (NO_FORMAT, *FORMATS),
    }
    said = {name: word for name, word in {"view": view, **words}.items() if word is not None}
    for name, word in said.items():
        if name in known and word not in known[name]:
            raise SelectError(unmatched(word, known[name], name))
    every = numbers["every"]
    if every is not None and every < 1:
        raise ArgumentError(f"every={every} shows no step: it must be 1 or more.")
    given = {name: str(number) for name, number in numbers.items() if number is not None}
    return f"#{urlencode({**said, **VIEWS[view], **given})}"


def show(run: Path, start: str, keep: object = None) -> object:
    """The page on a run: in a notebook a widget, elsewhere the path of the file that the browser opens.

    `keep` is kept alive as long as the widget, such as a temporary folder that the run is in.
    """
    return widget(run, start, keep) if in_notebook() else in_browser(run, start)


def in_notebook() -> bool:
    """Whether this is a notebook that shows widgets: Jupyter or marimo."""
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def in_browser(run: Path, start: str) -> Path:
    """Open the run as one file, which stays in the temporary folder; on a machine without a screen only write it."""
    file = Path(tempfile.mkdtemp(prefix="layerscope-")) / f"{run.name}.html"
    file.write_text(report(run, start=start).html, encoding="utf-8")
    if has_screen():
        webbrowser.open(file.as_uri())
    return file


def widget(run: Path, start: str, keep: object = None) -> Any:  # Any: a class of an optional package
    """The page on a run as a widget. It asks Python for what it does not hold, as long as Python runs."""
    if find_spec("anywidget") is None:
        raise MissingError("A notebook widget needs anywidget: pip install 'layerscope[notebook]'.")
    import anywidget
    import traitlets

    class RunWidget(anywidget.AnyWidget):
        """The page on a run."""

        _esm = CODE
        html = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)

    answers = OfflineApi(run)

    def answer(sender: Any, content: dict[str, Any], buffers: object) -> None:
        known = {"token": content["token"], "id": content["id"]}
        try:
            sender.send(known, [answers.ask_path(content["path"])])
        except (LayerscopeError, OSError) as error:
            sender.send({**known, "problem": str(error)})

    made = RunWidget(html=report(run, start=start, most_bytes=IN_WIDGET, hosted=True).html)
    made.on_msg(answer)
    made.kept = (keep, answers)  # as long as the widget
    return made


def folder_name(model: str) -> str:
    """A name for a folder out of a model's.

    >>> folder_name("ResNet"), folder_name("<lambda>")
    ('ResNet', 'lambda')
    """
    return re.sub(r"\W+", "-", model).strip("-")[:60] or "trace"
