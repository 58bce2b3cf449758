"""Budgets: exceeding one is a reason to delete or to simplify, not to raise the number."""

from __future__ import annotations

import ast
from collections import Counter
from statistics import median

from tests.repo.source import functions, lines, modules, page_sources

MODULE, FUNCTION = 500, 60
MODULE_MEDIAN = 220
MODULES, REPEATED_NAMES = 150, 6
PUBLIC_NAMES = 40  # of one module: classes, functions and constants that others may import
PYTHON_TOTAL, PAGE_TOTAL = 31_500, 16_700  # docs/adr/0016-renovation.md


def test_no_module_is_too_long() -> None:
    assert [f"{p.name}: {lines(p)}" for p in (*modules(), *page_sources()) if lines(p) > MODULE] == []


def test_the_median_module_is_short() -> None:
    assert median(map(lines, modules())) <= MODULE_MEDIAN


def test_no_function_is_too_long() -> None:
    long = []
    for module in modules():
        for function in functions(ast.parse(module.read_text(encoding="utf-8"))):
            assert function.end_lineno is not None
            if (length := function.end_lineno - function.lineno + 1) > FUNCTION:
                long.append(f"{module.name}:{function.name} {length}")
    assert long == []


def test_no_module_has_too_many_public_names() -> None:
    wide = []
    for module in modules():
        body = ast.parse(module.read_text(encoding="utf-8")).body
        names = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        if len(public := [name for name in names if not name.startswith("_")]) > PUBLIC_NAMES:
            wide.append(f"{module.name}: {len(public)}")
    assert wide == []


def test_modules_are_few_and_have_names_of_their_own() -> None:
    names = Counter(p.stem for p in modules() if p.name != "__init__.py")
    assert len(modules()) <= MODULES
    assert len(repeated := [name for name, count in names.items() if count > 1]) <= REPEATED_NAMES, repeated


def test_no_two_public_classes_have_the_same_name() -> None:
    trees = [ast.parse(module.read_text(encoding="utf-8")) for module in modules()]
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1 and not name.startswith("_")] == []


def test_the_code_base_stays_within_its_budget() -> None:
    assert sum(map(lines, modules())) <= PYTHON_TOTAL
    assert sum(map(lines, page_sources())) <= PAGE_TOTAL
