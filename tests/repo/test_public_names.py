from __future__ import annotations

import inspect
import json
import pkgutil
import subprocess
import sys

import pytest

import layerscope
from layerscope import errors
from layerscope.capture.core.recorder import Recorder
from tests.repo.source import ROOT

HEAVY = ("torch", "pyarrow", "duckdb", "starlette", "uvicorn", "numpy", "rich")


def test_every_public_name_can_be_loaded() -> None:
    for name in layerscope.__all__:
        assert getattr(layerscope, name) is not None


def test_public_names_fit_on_one_screen_and_are_sorted() -> None:
    assert len(layerscope.__all__) <= 15
    assert list(layerscope.__all__) == sorted(layerscope.__all__)
    assert dir(layerscope) == sorted(layerscope.__all__)


def test_importing_layerscope_loads_no_heavy_package() -> None:
    code = f"import layerscope, sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_every_public_name_is_in_the_reference() -> None:
    headings = [line for line in (ROOT / "docs/reference.md").read_text().splitlines() if line.startswith("#")]
    missing = [n for n in layerscope.__all__ if not any(f"`{n}" in heading for heading in headings)]
    assert missing == []


def test_no_module_has_the_name_of_a_public_function() -> None:
    modules = {module.name for module in pkgutil.iter_modules(layerscope.__path__)}
    assert modules.isdisjoint(layerscope.__all__)


LOAD_IN_MANY_ORDERS = """
import importlib, random, sys
from types import ModuleType
import layerscope
names, shuffled = list(layerscope.__all__), random.Random(0)
orders = [names[i:] + names[:i] for i in range(len(names))] + [shuffled.sample(names, len(names)) for _ in range(15)]
for order in orders:
    for module in [module for module in sys.modules if module.split(".")[0] == "layerscope"]:
        del sys.modules[module]
    fresh = importlib.import_module("layerscope")
    for name in order:
        getattr(fresh, name)
        modules = [each for each in names if isinstance(getattr(fresh, each), ModuleType)]
        assert not modules, f"{modules} are modules after {name} in the order {order}"
"""


def test_a_public_name_is_never_a_module_in_any_order_of_loading() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD_IN_MANY_ORDERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ArgumentError, ValueError),
        (errors.SelectError, KeyError),
        (errors.StateError, RuntimeError),
        (errors.StoreError, RuntimeError),
        (errors.FormatError, ValueError),
        (errors.MissingError, ImportError),
    ],
)
def test_an_error_is_caught_by_its_built_in_class_and_shows_its_message(
    error: type[errors.LayerscopeError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match=r"^it's gone$") as caught:
        raise error("it's gone")
    assert str(caught.value) == "it's gone"
    assert isinstance(caught.value, layerscope.LayerscopeError)


#: Functions whose keywords are the user's own: inputs of a model, and metrics.
OPEN_KEYWORDS = {"trace", "summary", "Recorder.step"}


def test_every_public_function_shows_its_whole_signature() -> None:
    classes = {"Recorder": Recorder, "Run": layerscope.Run, "Trace": layerscope.Trace}
    functions = {name: getattr(layerscope, name) for name in layerscope.__all__ if name.islower()}
    for name, owner in classes.items():
        functions |= {f"{name}.{method}": getattr(owner, method) for method in dir(owner) if method[0] != "_"}
    hidden = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function)
        and inspect.Parameter.VAR_KEYWORD in {each.kind for each in inspect.signature(function).parameters.values()}
    }
    assert hidden == OPEN_KEYWORDS
    assert len(inspect.signature(layerscope.watch).parameters) <= 15
