"""ARCHITECTURE.md follows three tensors function by function: each function exists and is called."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import layerscope as ls
from layerscope.server.app import create_app
from tests.repo.source import PACKAGE, ROOT

STEP = re.compile(r"^\| \d+ \| `([\w/.]+)::([\w.]+)`", re.MULTILINE)
MOST_FUNCTIONS = 55  # from a hook to the wire


def steps_of(title: str) -> list[tuple[str, str]]:
    """File and function of every row of the table under a heading."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition(f"### {title}\n")[2]
    return STEP.findall(re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0])


def functions_of(file: Path) -> set[str]:
    """Every function of a module, methods as `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


@contextmanager
def calls() -> Iterator[set[tuple[str, str]]]:
    """Collects file and name of every function of the package that is called, in any thread."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            called.add((path.removeprefix(f"{PACKAGE}/"), frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


def record(folder: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, to=folder / "run", every=1) as run:
        for _ in range(2):
            x = torch.randn(2, 4)
            run.record("data", x, type="input")
            output = model(x)
            run.record("output", output)
            loss = output.sum()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)


def ask(folder: Path, *addresses: str) -> None:
    with TestClient(create_app(folder), base_url="http://127.0.0.1:8765") as client:
        assert client.get("/api/runs").status_code == 200
        for address in addresses:
            assert client.get(address).status_code == 200, address


def of_module_output(folder: Path) -> None:
    record(folder)
    ask(folder, "/api/run/run/scalar?series=0&stat=rms&width=100")


def of_named_tensor(folder: Path) -> None:
    record(folder)
    ask(folder, "/api/tensors?run=run&node=output", "/api/tensors/samples?run=run&of=output")


def of_operation(folder: Path) -> None:
    trace = ls.trace(Net(), torch.randn(2, 4))
    assert trace.validate()
    trace.save(folder / "run")
    ask(folder, *(f"/api/run/run/{view}trace=000001" for view in ("trace?", "operation?op=2&")))


DATA: dict[str, Callable[[Path], None]] = {
    "A module output": of_module_output,
    "A traced operation": of_operation,
    "A named tensor": of_named_tensor,
}


@pytest.mark.parametrize("title", DATA)
def test_every_function_of_a_datum_exists(title: str) -> None:
    steps = steps_of(title)
    assert steps
    missing = [f"{file}::{name}" for file, name in steps if not exists(file, name)]
    assert missing == []


def exists(file: str, name: str) -> bool:
    if file.startswith("web/"):
        path = ROOT / file
        return (
            path.exists() and re.search(rf"\b{name.rpartition('.')[2]}\b", path.read_text(encoding="utf-8")) is not None
        )
    path = PACKAGE / file
    if path.suffix == ".c":
        return f"*{name}(" in path.read_text(encoding="utf-8")
    return path.exists() and name in functions_of(path)


@pytest.mark.parametrize("title", DATA)
def test_a_datum_passes_every_function_of_its_table(title: str, tmp_path: Path) -> None:
    with calls() as called:
        DATA[title](tmp_path)
    python = [(file, name) for file, name in steps_of(title) if file.endswith(".py")]
    assert [f"{file}::{name}" for file, name in python if (file, name) not in called] == []


def test_a_module_output_passes_few_functions() -> None:
    assert len(steps_of("A module output")) <= MOST_FUNCTIONS
