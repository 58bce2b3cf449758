"""Source files for the tests of the repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "layerscope"
WEB = ROOT / "web" / "src"


def modules() -> list[Path]:
    """Every Python module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def page_sources() -> list[Path]:
    """Every handwritten source file of the page, except unit tests."""
    made = (".gen.", ".test.")
    return sorted(
        p for p in WEB.rglob("*") if p.suffix in (".ts", ".svelte") and not any(part in p.name for part in made)
    )


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def size_line() -> str:
    """Sizes in one line, printed after every test run."""
    python, page = [lines(p) for p in modules()], [lines(p) for p in page_sources()]
    tests = sum(lines(p) for p in (ROOT / "tests").rglob("*.py"))
    kernel = sum(lines(p) for p in (PACKAGE / "stats").iterdir() if p.suffix in (".c", ".h"))
    return (
        f"size: {sum(python)} lines of Python in {len(python)} modules, {kernel} of C, "
        f"{sum(page)} of TypeScript and Svelte, {tests} of tests"
    )
