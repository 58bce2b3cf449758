"""What this process holds of a tensor that is spread over several: a DTensor's local part."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from layerscope.stats.torch import is_wrapper

SHARD, BEFORE_REDUCTION = "shard", "before reduction"
_HOME = "torch.distributed.tensor"


def local_part(tensor: Tensor) -> tuple[Tensor, str]:
    """The tensor in this process's memory, and what it is of the whole: `shard`, `before reduction`, or "" for all.

    Only a DTensor has another tensor inside that is known to hold its values; no other is looked into.
    """
    if not is_wrapper(tensor):
        return tensor, ""
    home = sys.modules.get(_HOME)  # whoever has such a tensor has loaded it
    if home is None or not isinstance(tensor, home.DTensor):
        return tensor, ""
    with torch.no_grad():
        part = tensor.to_local()
    placements = tensor.placements
    words = [SHARD] if any(not (each.is_replicate() or each.is_partial()) for each in placements) else []
    words += [BEFORE_REDUCTION] if any(each.is_partial() for each in placements) else []
    return part, ", ".join(words)
