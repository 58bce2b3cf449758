"""Budgets: passing one is a reason to split or to delete, not to raise the number."""

from __future__ import annotations

import ast

from tests.repo.source import functions, lines, modules, page_sources

MODULE, FUNCTION, PUBLIC_METHODS = 500, 60, 12
PYTHON_TOTAL, PAGE_TOTAL = 32_000, 17_600  # docs/adr/0014-budget-for-trust.md


def test_no_module_is_too_long() -> None:
    assert [f"{p.name}: {lines(p)}" for p in (*modules(), *page_sources()) if lines(p) > MODULE] == []


def test_no_function_is_too_long() -> None:
    long = []
    for module in modules():
        for function in functions(ast.parse(module.read_text(encoding="utf-8"))):
            assert function.end_lineno is not None
            if (length := function.end_lineno - function.lineno + 1) > FUNCTION:
                long.append(f"{module.name}:{function.name} {length}")
    assert long == []


def test_no_class_has_too_many_public_methods() -> None:
    wide = []
    for module in modules():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
                called = [m for m in methods if not m.decorator_list]  # a property is read, not called
                if len(called) > PUBLIC_METHODS:
                    wide.append(f"{module.name}:{node.name} {len(called)}")
    assert wide == []


def test_the_whole_stays_within_its_budget() -> None:
    assert sum(map(lines, modules())) <= PYTHON_TOTAL
    assert sum(map(lines, page_sources())) <= PAGE_TOTAL
