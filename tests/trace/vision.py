"""timm and torchvision, made importable beside a torch that torchvision's binary was not built for.

They lie in a folder of their own (see the Makefile): a torchvision without its operators breaks the import of
everything that looks for it, transformers first of all. Here the operators are declared before the import.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.repo.source import ROOT

FOLDER = ROOT / ".venv" / "vision"
_library: torch.library.Library | None = None


@cache
def library(name: str) -> Any:  # Any: a module without types
    """A module of timm or torchvision."""
    if not FOLDER.is_dir():
        pytest.skip("timm and torchvision are not there: `make test` installs them")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        _import_torchvision()
    return importlib.import_module(name)


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_operators()
        importlib.import_module("torchvision")
        extension: Any = importlib.import_module("torchvision.extension")
        extension._has_ops = lambda: True  # those that are used here
        regions: Any = importlib.import_module("torchvision.ops.roi_align")
        regions._roi_align = regions._roi_align.__wrapped__  # compiled, it would take a minute


def _declare_operators() -> None:
    global _library  # noqa: PLW0603  an operator lives as long as its library
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.impl("nms", _nms, "CPU")


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Numbers of the boxes that overlap no better one, best first."""
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        corner, other = torch.maximum(boxes[best, :2], boxes[left, :2]), torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (other - corner).clamp_min(0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        left = left[shared / (area[best] + area[left] - shared) <= iou_threshold]
    return torch.stack(kept) if kept else scores.new_empty(0, dtype=torch.long)
