"""A custom view: a Python file of the user's whose function is called with the selection, if `--view` names it.

    def view(selection: TensorSelection, run: Run) -> object

It may return a figure of matplotlib or plotly, an image (PIL, a numpy array, PNG or SVG), a table (ours,
Arrow or pandas), text, a list of (text, weight) to color, or a list of several of these.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import io
import itertools
import struct
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.errors import SelectError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Floats
from layerscope.query.tables import cell_text
from layerscope.query.tensor_query import TensorSelection

FUNCTION = "view"
PATIENCE_S = 10.0
MOST_WAITING = 4  # callers for whom a call that is under way is waited for
MOST_ROWS, MOST_COLUMNS, MOST_ITEMS, MOST_TOKENS, MOST_TEXT = 500, 40, 12, 5000, 200_000
MOST_PIXELS = 16_000_000
DOTS_PER_INCH = 144
PNG = b"\x89PNG\r\n\x1a\n"
KEPT_RUNS, KEPT_PAGES = 4, 2 * MOST_ITEMS


@dataclass(frozen=True, slots=True)
class CustomItem:
    """One thing that the user's view gave back."""

    kind: str  # "text", "image", "table", "tokens", "page"
    text: str = ""  # of an image and a page the address
    columns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()  # of a table, row by row; of tokens, each of them
    weights: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class CustomResult:
    """What the user's view made of a selection, or why it made nothing."""

    file: str
    items: tuple[CustomItem, ...]
    problem: str  # the traceback of its exception, or that it takes long
    seconds: float


@dataclass(frozen=True, slots=True)
class CustomSaved:
    """Another stamp than before means that the user's file was saved again."""

    stamp: str


@dataclass
class _Call:
    """A call of the user's function in a thread of its own, which nobody can end."""

    began: float
    stamp: object  # of the file as it was
    done: threading.Event = field(default_factory=threading.Event)
    result: CustomResult | None = None


class CustomView:
    """The user's file, loaded anew when it was changed. One call at a time: matplotlib knows no threads."""

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        if not path.is_file():
            raise SelectError(f"There is no file {path} for --view. Give a Python file with a function `view`.")
        self.path, self.name, self._patience_s = path, path.name, patience_s
        self._free = threading.Condition()
        self._waiting = 0
        self._loaded: tuple[object, Callable[[TensorSelection, object], object]] | None = None
        self._call: _Call | None = None
        self._runs: LRUCache[Path, object] = LRUCache(KEPT_RUNS)
        self._pages: LRUCache[int, str] = LRUCache(KEPT_PAGES)
        self._count = itertools.count()

    def result(self, selection: TensorSelection, run: Path) -> CustomResult:
        """What the file makes of a selection; an exception, or that it takes too long, is part of the result."""
        with self._free:
            if (busy := self._still_busy()) is not None:
                return self._late(busy)
            call = self._call = _Call(time.monotonic(), self._stamp())
            arguments = (call, selection, run)
            threading.Thread(target=self._answer, args=arguments, name="layerscope-view", daemon=True).start()
        if not call.done.wait(self._patience_s) or call.result is None:
            return self._late(call)
        return call.result

    def _still_busy(self) -> _Call | None:
        """A call that is under way and hangs, or has enough callers waiting for it; one that does not is waited for."""
        if self._waiting >= MOST_WAITING:
            return self._under_way()
        end = time.monotonic() + self._patience_s
        self._waiting += 1
        while (busy := self._under_way()) is not None:
            left = min(end, busy.began + self._patience_s) - time.monotonic()
            if left <= 0:
                break
            self._free.wait(left)
        self._waiting -= 1
        return busy

    def _under_way(self) -> _Call | None:
        """The call of the file as it is now: what an earlier one does is nobody's concern any more."""
        call = self._call
        return None if call is None or call.done.is_set() or call.stamp != self._stamp() else call

    def saved(self) -> CustomSaved:
        """When the file was saved."""
        return CustomSaved(str(self._stamp()))

    def page(self, number: int) -> str:
        """The HTML of a result that is a page of its own; the newest few are kept."""
        page = self._pages.peek(number)
        if page is None:
            raise SelectError("This page is gone. Choose the selection again.")
        return page

    def _stamp(self) -> object:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _late(self, call: _Call) -> CustomResult:
        waited = time.monotonic() - call.began
        text = f"{self.name} is still running, busy with one selection for {waited:.0f} s. Choose again later."
        return CustomResult(self.name, (), text, waited)

    def _answer(self, call: _Call, selection: TensorSelection, run: Path) -> None:
        try:
            with _importing_from(self.path.resolve().parent):
                made = self._function(call.stamp)(selection, self._runs.get(run, lambda: _open_run(run)))
                items, problem = tuple(map(self._kept, items_of(made))), ""
        except BaseException as error:  # noqa: BLE001 - the user's code: whatever it raises is shown in its tab
            items, problem = (), _traceback_text(error, self.path)
        call.result = CustomResult(self.name, items, problem, time.monotonic() - call.began)
        with self._free:
            call.done.set()
            self._free.notify_all()

    def _kept(self, item: CustomItem) -> CustomItem:
        """The item; HTML is kept, and shown in a frame that may run its scripts but reach nothing of ours."""
        if item.kind != "page":
            return item
        number = next(self._count)
        self._pages.put(number, item.text)
        return replace(item, text=f"api/tensors/custom-page?number={number}")

    def _function(self, stamp: object) -> Callable[[TensorSelection, object], object]:
        if self._loaded is not None and self._loaded[0] == stamp:
            return self._loaded[1]
        name = f"_layerscope_view_{zlib.crc32(str(self.path).encode()):08x}"
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise SelectError(f"{self.path} is no Python file. Give one whose name ends in .py.")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
        # Compiled here: a cached compilation is recognized by whole seconds, and a file is saved more often than that.
        text = self.path.read_text(encoding="utf-8")
        exec(compile(text, str(self.path), "exec", dont_inherit=True), module.__dict__)
        function: Callable[[TensorSelection, object], object] | None = getattr(module, FUNCTION, None)
        if function is None or not callable(function):
            raise SelectError(f"{self.name} has no function `{FUNCTION}(selection, run)`. Define it.")
        self._loaded = (stamp, function)
        return function


def _open_run(path: Path) -> object:
    """A run of its own to read from, since another thread reads the server's: the user's code gets the public class."""
    import layerscope

    return layerscope.open(path)


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Modules beside the file can be imported, as when it is run by itself."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # a folder is read again by its time, which may be too coarse
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _traceback_text(error: BaseException, file: Path) -> str:
    """The traceback from the user's file on: what is above it is ours."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((at for at, frame in enumerate(frames) if frame.filename == str(file)), None)
    lines = traceback.format_exception_only(error)
    if first is not None:
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:]), *lines]
    return "".join(lines)


def items_of(made: object) -> tuple[CustomItem, ...]:
    """What a view gave back, as the page shows it."""
    if isinstance(made, list | tuple) and not (made and _is_tokens(made)):
        return tuple(item for one in made[:MOST_ITEMS] for item in items_of(one))
    return () if made is None else (_item(made),)


def _item(made: object) -> CustomItem:
    package = type(made).__module__.partition(".")[0]
    if isinstance(made, str):
        if _is_svg(made):
            return CustomItem("image", _address(made.encode(), "svg+xml"))
        return CustomItem("text", made[:MOST_TEXT])
    if isinstance(made, bytes) and made.startswith(PNG):
        return CustomItem("image", _address(made))
    if isinstance(made, list | tuple):
        tokens = made[:MOST_TOKENS]
        return CustomItem(
            "tokens",
            cells=tuple(str(text) for text, _ in tokens),
            weights=np.array([float(weight) for _, weight in tokens]),
        )
    if isinstance(made, np.ndarray):
        return CustomItem("image", _address(_png(made)))
    if hasattr(made, "savefig"):
        return CustomItem("image", _figure(made))
    if package == "PIL":
        return CustomItem("image", _address(_png(np.asarray(made.convert("RGBA")))))  # type: ignore[attr-defined]
    if package == "plotly":
        return CustomItem("page", made.to_html(include_plotlyjs=True, full_html=True))  # type: ignore[attr-defined]
    if hasattr(made, "__arrow_c_stream__"):
        return _table(made)
    return CustomItem("text", repr(made)[:MOST_TEXT])


def _is_tokens(made: list[object] | tuple[object, ...]) -> bool:
    return all(
        isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) and _is_number(one[1])
        for one in made
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) or getattr(value, "ndim", None) == 0


def _table(made: Any) -> CustomItem:  # Any: whatever speaks Arrow's protocol
    import pyarrow as pa

    table = pa.table(made)
    table = table.select(table.column_names[:MOST_COLUMNS]).slice(0, MOST_ROWS)
    names = table.column_names
    cells = tuple(cell_text(name, row[name]) for row in table.to_pylist() for name in names)
    return CustomItem("table", columns=tuple(names), cells=cells)


def _figure(made: Any) -> str:  # Any: a class of an optional package
    file = io.BytesIO()
    made.savefig(file, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(made)  # pyplot keeps every figure until it is closed
    return _address(file.getvalue())


def _png(array: np.ndarray[Any, Any]) -> bytes:
    """An array as an image: height × width, and perhaps 3 or 4 channels; floats from 0 to 1, whole numbers to 255."""
    if array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,), (4,)) or not 0 < array.size <= MOST_PIXELS:
        raise SelectError(
            f"An array of shape {array.shape} is no image. Give height × width, or height × width × 3 or 4 channels."
        )
    scaled = array.astype(np.float64) * (255.0 if array.dtype.kind in "fb" else 1.0)
    pixels = np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8).reshape(len(array), -1)
    lines = np.concatenate([np.zeros((len(pixels), 1), np.uint8), pixels], 1).tobytes()  # each begins with its filter
    kind = {2: 0, 3: {3: 2, 4: 6}.get(array.shape[-1], 0)}[array.ndim]
    head = struct.pack(">IIBBBBB", array.shape[1], array.shape[0], 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    return PNG + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def _is_svg(text: str) -> bool:
    return text.lstrip().startswith(("<svg", "<?xml"))


def _address(image: bytes, kind: str = "png") -> str:
    """An image in an address: shown so, no script in it runs."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
