"""Modules that take a fused path in evaluation, which an active function mode would keep them from taking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_ATTENTION = ("query", "key", "value")


def may_take_fused_path(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the module has to run with nobody looking, to compute what it would compute without us.

    Saying yes too often hides some calls and does no other harm.
    """
    if module.training:
        return False
    if isinstance(module, nn.MultiheadAttention):
        given = [*args[:3], *(kwargs[name] for name in _ATTENTION if name in kwargs)]
        wanted = len(given) == 3 and given[0] is given[1] is given[2]
    elif isinstance(module, nn.TransformerEncoder):  # packs padded sequences into nested tensors
        wanted = (kwargs.get("src_key_padding_mask") if len(args) < 3 else args[2]) is not None
    else:
        wanted = isinstance(module, nn.TransformerEncoderLayer)
    if not wanted or not torch.is_grad_enabled():
        return wanted
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return not any(tensor.requires_grad for tensor in (*tensors, *module.parameters()))
