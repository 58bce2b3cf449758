"""The page as one file: nothing from a run can become code, and nothing is fetched."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from layerscope.errors import MissingError
from layerscope.server.one_file import OneFile, key_of, one_file, packed

INDEX = """<!doctype html>
<html>
  <head>
    <link rel="icon" href="./favicon.svg" type="image/svg+xml" />
    <script type="module" crossorigin src="./assets/index-a.js"></script>
    <link rel="stylesheet" crossorigin href="./assets/index-a.css">
  </head>
  <body>
    <div id="app"></div>
  </body>
</html>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "assets" / "index-a.js").write_text('const end = "</script>", hidden = "<!--$&";')
    (tmp_path / "assets" / "index-a.css").write_text("body { color: red }")
    return tmp_path


def unpacked(text: str) -> dict[str, bytes]:
    whole = gzip.decompress(base64.b64decode(text))
    size = int.from_bytes(whole[:4], "little")
    head = json.loads(whole[4 : 4 + size])
    found, at = {}, 4 + size
    for path, length in zip(head["paths"], head["sizes"], strict=True):
        found[path] = whole[at : at + length]
        at += length
    return found


def test_a_file_holds_its_answers_byte_for_byte(page: Path) -> None:
    answers = {key_of("api/run/</script><b>/sites", {}): bytes(range(256)), "api/runs": b""}
    html = one_file(page, OneFile(answers, "#view=traces", "a run"))
    (text,) = re.findall(r'id="layerscope-answers"[^>]*>([^<]*)</script>', html)
    assert unpacked(text) == answers


def test_no_text_of_a_run_or_of_the_code_ends_an_element(page: Path) -> None:
    hostile = '"><script>alert(1)</script><!--'
    html = one_file(page, OneFile({hostile: hostile.encode()}, hostile, hostile))
    assert html.count("<script") == html.count("</script>") == 2
    assert "<!--" not in html
    assert "alert(1)<" not in html


def test_a_file_refers_to_no_other_and_allows_no_code_but_its_own(page: Path) -> None:
    html = one_file(page, OneFile({}, "", ""))
    assert not re.search(r'(src|href)="', html)
    assert "default-src 'none'; script-src 'sha256-" in html
    assert "body { color: red }" in html


def test_what_only_the_screen_decides_does_not_tell_two_requests_apart() -> None:
    asked = {"width": 640, "series": 3, "stat": "rms", "coarse": 1}
    assert key_of("api/run/a/b/scalar", asked) == "api/run/a/b/scalar\nseries=3\nstat=rms"


def test_without_a_built_page_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="has not been built"):
        one_file(tmp_path, OneFile({}, "", ""))


def test_the_same_answers_are_packed_the_same_way() -> None:
    assert packed({"a": b"1"}) == packed({"a": b"1"})
