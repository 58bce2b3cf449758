"""The factor that AMP's GradScaler puts on the loss, and so on every gradient while backward runs.

Nobody hands the scaler to a recorder. It is on the call stack when it makes an optimizer step; in a step that it skips,
and none seen before, it is looked for among all objects, once.
"""

from __future__ import annotations

import gc
import sys
import weakref

from torch.amp.grad_scaler import GradScaler, OptState

_HOME = GradScaler.__module__
_DEEPEST = 16  # frames between an optimizer's hook and the scaler that called the optimizer


class Scaling:
    """Which scaler is used, and what its scale was during the backwards of the step in progress."""

    def __init__(self) -> None:
        self._scaler: weakref.ref[GradScaler] | None = None
        self._searched = False
        self._unused = False  # nobody has a scaler
        self.scale: float | None = None  # in this step; None if not known yet

    def start_over(self) -> None:
        """Begin a step, in which the scale is what it is now."""
        scaler = self._known()
        self.scale = None if scaler is None else scaler.get_scale()

    def notice_step(self) -> None:
        """Called while an optimizer steps: if a scaler had it do so, that is the one."""
        frame = sys._getframe(1)
        for _ in range(_DEEPEST):
            # Looking at a frame's variables keeps them alive with it: only torch's own frames, which soon end.
            if frame.f_globals.get("__name__") == _HOME:
                found = frame.f_locals.get("self")
                if isinstance(found, GradScaler):
                    self._scaler, self.scale = weakref.ref(found), found.get_scale()
                    return
            if frame.f_back is None:
                break
            frame = frame.f_back
        if self._known() is None:
            self.scale = 1.0

    def of_skipped_step(self) -> float | None:
        """The scale in a step in which no optimizer stepped; None if it cannot be told."""
        if self.scale is None and not self._searched:
            self._searched = True
            # By type: asking an object for its class may run code of its own.
            scalers = [found for found in gc.get_objects() if issubclass(type(found), GradScaler)]
            scalers = [scaler for scaler in scalers if scaler.is_enabled()]
            self._unused = not scalers
            if len(scalers) == 1:
                self._scaler, self.scale = weakref.ref(scalers[0]), _before_update(scalers[0])
        return 1.0 if self._unused and self.scale is None else self.scale

    def fell(self) -> bool:
        """Whether the scaler has lowered its scale in this step, as it does when it skips one."""
        scaler = self._known()
        return scaler is not None and self.scale is not None and scaler.get_scale() < self.scale

    def left_on_gradients(self) -> float:
        """The factor that is still on the parameters' gradients at the end of a step without an optimizer step."""
        scaler = self._known()
        if scaler is None or not scaler.is_enabled() or self.scale is None or self.fell():
            return 1.0
        unscaled = any(state["stage"] is not OptState.READY for state in scaler._per_optimizer_states.values())
        return 1.0 if unscaled else self.scale

    def _known(self) -> GradScaler | None:
        return None if self._scaler is None else self._scaler()


def _before_update(scaler: GradScaler) -> float:
    """The scale during the first step we see of a scaler: `update()` may have lowered it since."""
    scale = scaler.get_scale()
    as_it_was = bool(scaler._per_optimizer_states) or scale == scaler._init_scale
    return scale if as_it_was else scale / scaler.get_backoff_factor()
