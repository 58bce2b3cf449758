"""The page as one file: its code, its styles and the answers to what it will ask for, in one HTML text.

The answers stand in a script element that no browser runs, as base64 of a gzip stream: nothing from a run can end the
element. The stream is the length of a head (uint32, little endian), the head in JSON, `{"paths": […], "sizes": […]}`,
and the messages one after the other. A path is what is asked for without what only the screen decides: its place and
its sorted `name=value`s, one on each line.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from layerscope.errors import MissingError

SCREEN = frozenset({"width", "height", "first", "last", "smooth", "coarse"})  # as in web/src/offline.ts
_SCRIPT = re.compile(r'<script type="module"[^>]* src="\./([^"]+)"></script>')
_STYLE = re.compile(r'<link rel="stylesheet"[^>]* href="\./([^"]+)">')
_ICON = re.compile(r'<link rel="icon"[^>]*>')


@dataclass(frozen=True, slots=True)
class OneFile:
    """What a file holds beside the page itself."""

    answers: Mapping[str, bytes]  # by `key_of` what is asked for
    start: str  # fragment of the address to begin with
    holds: str  # in words
    hosted: bool = False  # whoever shows the page answers what is not in it


def key_of(place: str, query: Mapping[str, object]) -> str:
    """What is asked for, as the page looks it up.

    >>> key_of("api/run/a/b/scalar", {"width": 640, "stat": "rms", "series": 3}).splitlines()
    ['api/run/a/b/scalar', 'series=3', 'stat=rms']
    """
    return "\n".join([place, *sorted(f"{name}={value}" for name, value in query.items() if name not in SCREEN)])


def one_file(page: Path, content: OneFile) -> str:
    """The page in the folder `page` as one HTML text that needs nothing else: no server, no network."""
    if not (page / "index.html").is_file():
        raise MissingError(
            "The page has not been built. Install layerscope with `pip install .`, or build it in `web`."
        )
    index = (page / "index.html").read_text(encoding="utf-8")
    (script,), (style,) = (_read(page, pattern.findall(index)) for pattern in (_SCRIPT, _STYLE))
    script = _inside_html(script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    said = {"start": content.start, "holds": content.holds, **({"hosted": ""} if content.hosted else {})}
    data = "".join(f' data-{name}="{escape(text)}"' for name, text in said.items())
    answers = (
        f'<script type="application/octet-stream" id="layerscope-answers"{data}>{packed(content.answers)}</script>'
    )
    index = _ICON.sub(lambda _: f'<meta http-equiv="Content-Security-Policy" content="{policy}" />', index, count=1)
    index = _STYLE.sub(lambda _: f"<style>{style}</style>", index)
    index = _SCRIPT.sub("", index)
    code = f'{answers}\n<script type="module">{script}</script>'
    return index.replace("</body>", f"{code}\n</body>")


def _read(page: Path, names: list[str]) -> list[str]:
    return ["\n".join((page / name).read_text(encoding="utf-8") for name in names)]


def _inside_html(script: str) -> str:
    """Code that cannot end its element: in strings and regular expressions a backslash changes nothing."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def packed(answers: Mapping[str, bytes]) -> str:
    """Messages as text that can stand anywhere in HTML."""
    sizes = [len(message) for message in answers.values()]
    head = json.dumps({"paths": list(answers), "sizes": sizes}).encode()
    whole = b"".join([len(head).to_bytes(4, "little"), head, *answers.values()])
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode()
