"""Who may import whom: ARCHITECTURE.md has the same table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repo.source import PACKAGE, modules

BASE = {"errors", "records", "operations"}
MAY_IMPORT = {
    "version": set[str](),
    "errors": set[str](),
    "records": {"errors"},
    "operations": set[str](),
    "select": {"errors"},
    "stats": BASE,
    "store": {*BASE, "stats.spec", "stats.derive", "stats.buckets", "version"},
    "capture": {*BASE, "stats", "select"},
    "query": {*BASE, "stats.spec", "stats.derive", "stats.buckets", "store", "select"},
    "diagnose": {*BASE, "query", "store"},
    "viz": {*BASE, "query", "diagnose", "stats.spec", "stats.derive", "stats.buckets", "stats.ranges"},
    "server": {*BASE, "store", "query", "diagnose", "viz", "version"},
    "demos": {*BASE, "api", "capture", "query"},
    "cli": {*BASE, "api", "demos", "diagnose", "query", "store", "viz", "server", "version", "select"},
    "shown": {*BASE, "viz", "server", "select"},
    "traced": {*BASE, "query", "store", "viz", "server", "shown"},
    "compared": {*BASE, "query", "traced"},
    "recorded": {*BASE, "diagnose", "query", "store", "traced", "shown", "select"},
    "summarized": {*BASE, "query", "viz"},
    "passes": {*BASE, "capture", "query", "traced"},
    "api": {*BASE, "capture", "store", "query", "server", "select", "passes", "recorded", "summarized", "traced"},
    "__init__": {"api", "capture", "compared", "errors", "recorded", "traced", "version"},
}
FRAMEWORKS = {"torch", "jax", "flax"}
FRAMEWORK_HOMES = ("capture/torch/", "capture/jax/", "stats/torch", "stats/jax", "integrations/", "passes", "demos/")


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything the module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def violations(root: Path, files: list[Path]) -> Iterator[str]:
    for file in files:
        path = file.relative_to(root)
        layer = path.parts[0].removesuffix(".py")
        for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            head, *rest = name.split(".")
            type_only = head in FRAMEWORKS and layer == "api"  # annotations of the public verbs
            if head in FRAMEWORKS and not path.as_posix().startswith(FRAMEWORK_HOMES) and not type_only:
                yield f"{path}:{line} imports {head}"
            if head == "layerscope" and rest and not allowed(layer, rest):
                yield f"{path}:{line} {layer} may not import {name}"


def allowed(layer: str, target: list[str]) -> bool:
    return target[0] == layer or target[0] in MAY_IMPORT[layer] or ".".join(target[:2]) in MAY_IMPORT[layer]


def test_no_module_imports_what_its_layer_may_not() -> None:
    assert list(violations(PACKAGE, modules())) == []


def test_planted_violations_are_found(tmp_path: Path) -> None:
    planted = {
        "capture/bad.py": "from layerscope.store import writer",
        "server/bad.py": "import torch",
        "query/bad.py": "from layerscope.stats import kernel",
        "query/good.py": "from layerscope.stats import spec",
    }
    for name, text in planted.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = list(violations(tmp_path, sorted(tmp_path.rglob("*.py"))))
    assert [line.split(":")[0] for line in found] == ["capture/bad.py", "query/bad.py", "server/bad.py"]
