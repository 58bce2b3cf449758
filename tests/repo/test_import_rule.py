"""Imports follow the table of ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repo.source import PACKAGE, ROOT, modules

FRAMEWORKS = {"torch", "jax", "flax"}
FRAMEWORK_HOMES = ("capture/torch/", "stats/torch", "torch_traces", "demos/")
_ROW = re.compile(r"^\| ((?:`[\w/]+`(?:, )?)+) \| ([^|]*) \|", re.MULTILINE)


@cache
def may_import() -> dict[str, frozenset[str]]:
    """Layer → what it may import: other layers, or single modules such as `stats/derived`."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Who may import whom")[2]
    return {
        layer: frozenset(re.findall(r"`([\w/]+)`", targets))
        for layers, targets in _ROW.findall(section.partition("\n## ")[0])
        for layer in re.findall(r"`([\w/]+)`", layers)
    }


def layer_of(path: str) -> str:
    """The layer of a module: the longest row of the table that is a prefix of its path."""
    return max((row for row in may_import() if f"{path}/".startswith(f"{row}/")), key=len, default="")


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of every import of the module, at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def violations(root: Path, files: list[Path]) -> Iterator[str]:
    for file in files:
        path = file.relative_to(root).with_suffix("").as_posix()
        layer = layer_of(path)
        if not layer:
            yield f"{path} belongs to no layer"
            continue
        for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            head, *rest = name.split(".")
            type_only = head in FRAMEWORKS and layer == "api"  # annotations of the public verbs
            if head in FRAMEWORKS and not path.startswith(FRAMEWORK_HOMES) and not type_only:
                yield f"{path}:{line} imports {head}"
            if head == "layerscope" and rest and not allowed(layer, "/".join(rest)):
                yield f"{path}:{line} {layer} may not import {name}"


def allowed(layer: str, target: str) -> bool:
    return any(f"{target}/".startswith(f"{each}/") for each in (layer, *may_import()[layer]))


def test_modules_import_only_what_their_layer_may() -> None:
    assert list(violations(PACKAGE, modules())) == []


def test_the_table_lists_only_imports_that_exist() -> None:
    unused = []
    for layer, targets in may_import().items():
        if layer in ("cli", "api", "demos"):
            continue
        files = [file for file in modules() if layer_of(file.relative_to(PACKAGE).with_suffix("").as_posix()) == layer]
        names = {name for file in files for _, name in imported(ast.parse(file.read_text(encoding="utf-8")))}
        paths = [name.removeprefix("layerscope.").replace(".", "/") + "/" for name in names]
        unused += [f"{layer} → {target}" for target in targets if not any(p.startswith(f"{target}/") for p in paths)]
    assert unused == []


def test_planted_violations_are_reported(tmp_path: Path) -> None:
    planted = {
        "capture/core/bad.py": "from layerscope.store import writer",
        "capture/core/worse.py": "from layerscope.capture.torch import hooks",
        "capture/torch/good.py": "from layerscope.capture.core import schedule",
        "nowhere/bad.py": "",
        "query/bad.py": "from layerscope.stats import kernel",
        "query/good.py": "from layerscope.stats import derived",
        "server/bad.py": "import torch",
    }
    for name, text in planted.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    lines = list(violations(tmp_path, sorted(tmp_path.rglob("*.py"))))
    assert [re.split("[: ]", line)[0] for line in lines] == [
        "capture/core/bad",
        "capture/core/worse",
        "nowhere/bad",
        "query/bad",
        "server/bad",
    ]
