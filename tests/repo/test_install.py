"""`pip install .` in an empty environment, also without compiler and Node. Needs the package registries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.source import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAYERSCOPE_FULL"), reason="a minute each: set LAYERSCOPE_FULL=1, or `make full`"
    ),
]
TOOLS = ("sh", "env", "cat", "ls", "rm", "mkdir", "cp", "mv", "uname", "dirname", "readlink", "sed", "grep")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources of the working tree, without build results."""
    leave = shutil.ignore_patterns("node_modules", "static", "*.so", "__pycache__", ".venv", ".git", ".*_cache")
    shutil.copytree(ROOT, tmp_path / "clone", ignore=leave)
    return tmp_path / "clone"


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with the common tools, without compiler and Node."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        if path := shutil.which(tool):
            (folder / tool).symlink_to(Path(path).resolve())
    return str(folder)


def installed(clone: Path, environment: dict[str, str]) -> Path:
    home = clone.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([home / "bin/python", "-m", "pip", "install", "-q", clone], check=True, env=environment)
    return home / "bin"


def serving(command: Path, folder: Path) -> Iterator[str]:
    folder.mkdir()
    line = [str(command), "ui", str(folder), "--port", "0", "--no-browser"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as server:
        try:
            assert server.stdout is not None
            yield next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        finally:
            server.terminate()


@pytest.mark.parametrize("tools", ["all", "none"])
def test_installing_builds_the_page_and_if_possible_the_kernel(tools: str, clone: Path, bare_path: str) -> None:
    environment = dict(os.environ) if tools == "all" else {**os.environ, "PATH": bare_path}
    commands = installed(clone, environment)
    for address in serving(commands / "layerscope", clone.parent / "runs"):
        with urllib.request.urlopen(address) as page:
            assert b"layerscope" in page.read()
    printed = subprocess.run(
        [commands / "python", "-c", "from layerscope.stats import kernel; print(kernel.COMPILED)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == str(tools == "all")
