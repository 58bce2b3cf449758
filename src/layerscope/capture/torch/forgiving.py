"""A tracer beside somebody's training, which must not hear of its errors."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec

from torch import nn

from layerscope.capture.torch.trace.tracer import Tracer

P = ParamSpec("P")


class ForgivingTracer(Tracer):
    """A tracer whose errors do not reach the training: it gives up instead."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model, keep=False, gradients=False)
        self.ops.forgiving = True
        self.begun: FrameType | None = None  # of the call that the tracer was told of before its hooks could hear of it

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        if frame is not self.begun:
            self.attempt(super().before_module, module, args, frame)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module."""
        self.attempt(super().after_module, module, result, frame)

    def attempt(self, listen: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless something went wrong before; if something goes wrong now, remember it."""
        if self.ops.trouble is None:
            try:
                listen(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  a bug of ours must not stop somebody's training
                self.ops.trouble = error
