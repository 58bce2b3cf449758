"""Opening Python functions that torch shows as one call, such as `multi_head_attention_forward`.

Such a function asks `has_torch_function` and hands itself over as a whole. A clone that is always told no goes on into
its body, where the calls it makes are seen one by one.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any

from layerscope.capture.torch.trace.functions import Function

_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _never(*tensors: object) -> bool:
    return False


@lru_cache(maxsize=1024)
def opened(function: Function) -> Function | None:
    """A clone that shows what it does inside; None for a function that has no inside to show."""
    if not isinstance(function, FunctionType):
        return None
    names = set(function.__code__.co_names)
    asked: dict[str, Any] = {name: _never for name in _ASKS if name in names and name in function.__globals__}
    if not asked:
        return None
    clone = FunctionType(
        function.__code__,
        {**function.__globals__, **asked},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone
