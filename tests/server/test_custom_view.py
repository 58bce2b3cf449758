"""A view of the user's own: what it may give back, and what happens when it fails, hangs or is saved again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from layerscope.cli.main import main
from layerscope.errors import SelectError
from layerscope.query.tensor_query import TensorSelection
from layerscope.server import custom_view
from layerscope.server.app import create_app
from layerscope.server.custom_view import CustomView, items_of
from tests.server.conftest import HOST
from tests.server.named_runs import write_named
from tests.server.test_routes import asked, refused

CHOSEN = TensorSelection("a", 30, "short", 2, "memory")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_named(tmp_path / "runs" / "a", steps=4)


def saved(file: Path, body: str) -> Path:
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(body)
    os.utime(file, ns=(before + 1, before + 1))  # a disk may tell only whole milliseconds apart
    return file


def test_it_gets_the_selection_and_the_run(run: Path, tmp_path: Path) -> None:
    file = saved(
        tmp_path / "mine.py",
        "def view(selection, run):\n"
        "    kept = run.named().values(selection.step, selection.node, selection.role, selection.iteration)\n"
        "    return f'{selection.type} {selection.sample} {kept.array.shape}'\n",
    )
    with TestClient(create_app(run.parent, view=file), base_url=HOST) as client:
        assert asked(client, "/api/tensors?run=a")["custom_view"] == "mine.py"
        answer = asked(client, "/api/tensors/custom?run=a&step=30&node=memory&sample=1&iteration=2")
    assert [item["text"] for item in answer["items"]] == ["short 1 (3, 8)"]


def test_nothing_is_run_unless_it_was_asked_for(run: Path) -> None:
    with TestClient(create_app(run.parent), base_url=HOST) as client:
        assert asked(client, "/api/tensors?run=a")["custom_view"] == ""
        assert "--view" in refused(client, "/api/tensors/custom?run=a", 404)


def test_a_file_that_is_saved_again_is_loaded_again(run: Path, tmp_path: Path) -> None:
    file = saved(tmp_path / "mine.py", "def view(selection, run): return 'one'")
    own = CustomView(file)
    before = own.saved()
    assert own.result(CHOSEN, run).items[0].text == "one"
    saved(file, "def view(selection, run): return 'two'")
    assert own.saved() != before
    assert own.result(CHOSEN, run).items[0].text == "two"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def view(selection, run):\n    return 1 / 0", "ZeroDivisionError"),
        ("def view(selection, run)", "SyntaxError"),
        ("pass", "no function `view(selection, run)`"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import numpy\ndef view(s, r): return numpy.zeros((2, 2, 7))", "is no image"),
    ],
)
def test_an_exception_is_shown_and_the_next_call_works(run: Path, tmp_path: Path, body: str, told: str) -> None:
    file = saved(tmp_path / "mine.py", body)
    own = CustomView(file)
    result = own.result(CHOSEN, run)
    assert told in result.problem
    assert result.items == ()
    assert "custom_view.py" not in result.problem or "layerscope" not in body
    saved(file, "def view(selection, run): return 'well'")
    assert own.result(CHOSEN, run).problem == ""


def test_a_view_that_takes_too_long_is_told_and_does_not_block_a_mended_one(run: Path, tmp_path: Path) -> None:
    file = saved(tmp_path / "mine.py", "import threading\ndef view(s, r): threading.Event().wait(60)")
    own = CustomView(file, patience_s=0.05)
    assert "busy" in own.result(CHOSEN, run).problem
    assert "busy" in own.result(CHOSEN, run).problem
    assert sum(thread.name == "layerscope-view" for thread in threading.enumerate()) == 1
    own._patience_s = 30.0
    saved(file, "def view(selection, run): return 'quick'")
    assert own.result(CHOSEN, run).items[0].text == "quick"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Views of `GATED` end when it is set."""
    gate = threading.Event()
    monkeypatch.setattr(custom_view, "gate", gate, raising=False)
    before = set(threading.enumerate())
    yield gate
    gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(20.0)


GATED = """from layerscope.server import custom_view
def view(s, r): custom_view.gate.wait(60); return str(s.step)"""


def test_while_one_call_hangs_further_ones_are_answered_at_once(
    run: Path, tmp_path: Path, gate: threading.Event
) -> None:
    own = CustomView(saved(tmp_path / "mine.py", GATED), patience_s=0.1)
    assert "still running" in own.result(CHOSEN, run).problem
    assert own._call is not None
    own._patience_s, own._call.began = 60.0, own._call.began - 100.0
    with ThreadPoolExecutor(8) as pool:
        done, waiting = wait([pool.submit(own.result, CHOSEN, run) for _ in range(16)], timeout=20.0)
        gate.set()
    assert not waiting
    assert all("still running" in one.result().problem for one in done)


def test_few_callers_wait_for_a_call_and_then_get_their_own(run: Path, tmp_path: Path, gate: threading.Event) -> None:
    own = CustomView(saved(tmp_path / "mine.py", GATED), patience_s=60.0)
    answered = 1 + custom_view.MOST_WAITING
    with ThreadPoolExecutor(9) as pool:
        asking = [pool.submit(own.result, replace(CHOSEN, step=step), run) for step in range(9)]
        told = list(islice(as_completed(asking, timeout=60.0), 9 - answered))
        gate.set()
        results = [one.result(60.0) for one in asking]
    assert all("still running" in one.result().problem for one in told)
    texts = {step: result.items[0].text for step, result in enumerate(results) if result.items}
    assert len(texts) == answered
    assert all(text == str(step) for step, text in texts.items())


def test_a_file_may_define_dataclasses_and_import_what_lies_beside_it(run: Path, tmp_path: Path) -> None:
    (tmp_path / "beside_the_view.py").write_text("WORD = 'helped'")
    (tmp_path / "late_beside_the_view.py").write_text("WORD = 'later'")
    body = (
        "from dataclasses import dataclass, fields\n"
        "from typing import ClassVar\n"
        "from beside_the_view import WORD\n"
        "@dataclass\n"
        "class Pair:\n"
        "    first: int\n"
        "    kinds: 'ClassVar[int]' = 2\n"
        "def view(selection, run):\n"
        "    import late_beside_the_view\n"
        "    (only,) = fields(Pair)\n"
        "    return [only.name, only.type.__name__, WORD, late_beside_the_view.WORD]\n"
    )
    before = list(sys.path)
    try:
        result = CustomView(saved(tmp_path / "mine.py", body)).result(CHOSEN, run)
    finally:
        for name in ("beside_the_view", "late_beside_the_view"):
            sys.modules.pop(name, None)
    assert result.problem == ""
    assert [item.text for item in result.items] == ["first", "int", "helped", "later"]
    assert sys.path == before


def test_figures_images_tables_text_and_tokens_are_shown() -> None:
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    pandas = pytest.importorskip("pandas")
    made: list[Any] = [
        figure,
        Image.new("RGB", (3, 2)),
        np.linspace(0, 1, 6).reshape(2, 3),
        b"\x89PNG\r\n\x1a\n",
        "<svg xmlns='http://www.w3.org/2000/svg'/>",
        pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}),
        "text",
        [("the", 0.1), ("cat", np.float32(-0.9))],
    ]
    items = items_of(made)
    assert [item.kind for item in items] == [*["image"] * 5, "table", "text", "tokens"]
    assert all(item.text.startswith("data:image/") for item in items[:5])
    assert (items[5].columns, items[5].cells) == (("a", "b"), ("1", "0.5", "2", "1.5"))
    assert items[7].cells == ("the", "cat")
    assert items_of(None) == items_of([]) == ()


def test_an_array_is_the_image_it_holds() -> None:
    import base64
    import io

    from PIL import Image

    array = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    (item,) = items_of(array)
    image = Image.open(io.BytesIO(base64.b64decode(item.text.partition(",")[2])))
    assert np.array_equal(np.asarray(image), array)


def test_a_page_of_its_own_gets_a_policy_without_network_and_origin(run: Path, tmp_path: Path) -> None:
    body = (
        "class Figure:\n"
        "    __module__ = 'plotly.graph_objs'\n"
        "    def to_html(self, **how): return '<p>drawn</p>'\n"
        "def view(selection, run): return Figure()\n"
    )
    file = saved(tmp_path / "mine.py", body)
    with TestClient(create_app(run.parent, view=file), base_url=HOST) as client:
        (item,) = asked(client, "/api/tensors/custom?run=a")["items"]
        page = client.get(f"/{item['text']}")
        assert page.text == "<p>drawn</p>"
        policy = page.headers["content-security-policy"]
        assert "sandbox allow-scripts;" in policy
        assert "default-src 'none'" in policy
        assert "connect-src" not in policy
        assert "gone" in refused(client, "/api/tensors/custom-page?number=99", 404)


def test_a_file_that_is_not_there_is_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SelectError, match="There is no file"):
        create_app(run.parent, view=tmp_path / "missing.py")
    assert main(["ui", str(run.parent), "--no-browser", "--view", str(tmp_path / "missing.py")]) == 2
    assert "There is no file" in capsys.readouterr().err
