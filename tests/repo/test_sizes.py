"""Budgets: exceeding one is a reason to delete or to simplify, not to raise the number."""

from __future__ import annotations

import ast
from statistics import median

from tests.repo.source import functions, lines, modules, page_sources

MODULE, FUNCTION = 500, 60
MODULE_MEDIAN = 220
PUBLIC_NAMES = 40  # of one module: classes, functions and constants that others may import
PYTHON_TOTAL, PAGE_TOTAL = 31_800, 17_600  # docs/adr/0014-budget-for-trust.md


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


def test_the_code_base_stays_within_its_budget() -> None:
    assert sum(map(lines, modules())) <= PYTHON_TOTAL
    assert sum(map(lines, page_sources())) <= PAGE_TOTAL
