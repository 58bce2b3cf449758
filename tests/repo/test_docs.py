"""Tests of the documentation: code runs, links resolve, lines are wrapped."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.source import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


COLUMNS = 100


def prose_lines(page: Path) -> list[tuple[int, str]]:
    """Numbered lines of running text, without the targets of links; no code, tables, headings, images or comments."""
    lines, in_code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith(("|", "#", "![", "<!--")):
            lines.append((number, re.sub(r"\]\([^)]*\)", "]", line)))
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_prose_is_wrapped(page: Path) -> None:
    assert [f"{number}: {line}" for number, line in prose_lines(page) if len(line) > COLUMNS] == []


def test_the_index_links_every_page() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    assert {page for page in PAGES if page.parent == index.parent} - linked == {index}


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub computes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_the_python_blocks_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_a_page_resolves(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_test_named_in_the_feature_table_exists() -> None:
    named = TEST.findall((ROOT / "docs/features.md").read_text(encoding="utf-8"))
    assert named
    missing = []
    for file, name in named:
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        if name not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    assert missing == []


def test_every_feature_row_has_a_page_and_a_test() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \|(.*)$", (ROOT / "docs/features.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows
    assert [row for row, text in rows if not (LINK.search(text) and TEST.search(text))] == []


def test_the_changelog_names_the_current_version() -> None:
    from layerscope import __version__

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(__version__)}", text, re.MULTILINE)
