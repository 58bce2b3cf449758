"""The factor that AMP's GradScaler puts on the loss, and so on every gradient while backward runs.

Nobody hands the scaler to a recorder. It is on the call stack when it makes an optimizer step; in a step that it skips,
and none seen before, it is looked for among all objects, once.
"""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.nn import UninitializedBuffer, UninitializedParameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.framework import Targets
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.summarizer import SeriesKey, Summarizer
from layerscope.capture.torch.targets import WatchSelection
from layerscope.capture.torch.tensor_tree import local_part, tensors_in
from layerscope.model.records import UPDATE_RATIO, Kind, Mode, Phase
from layerscope.stats.torch import is_wrapper

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
                scaler = frame.f_locals.get("self")
                if isinstance(scaler, GradScaler):
                    self._scaler, self.scale = weakref.ref(scaler), scaler.get_scale()
                    return
            if frame.f_back is None:
                break
            frame = frame.f_back
        if self._known() is None:
            self.scale = 1.0

    def of_skipped_step(self) -> float | None:
        """The scale in a step in which no optimizer stepped; None if it cannot be known."""
        if self.scale is None and not self._searched:
            self._searched = True
            # By type: asking an object for its class may run code of its own.
            scalers = [each for each in gc.get_objects() if issubclass(type(each), GradScaler)]
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


APPLIED_KINDS = frozenset((Kind.WEIGHT_GRAD, Kind.UPDATE, Kind.OPTIMIZER))
AT_THE_END = frozenset((Kind.WEIGHT_GRAD, Kind.WEIGHT))
IN_BACKWARD = frozenset(  # with a scale, which is known when the optimizer steps
    (Kind.INPUT_GRAD, Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD, Kind.OUTPUT_GRAD_NORM, Kind.TENSOR_GRAD)
)
_COUNT = "step"  # in an optimizer's state: how often it stepped
_BLOCK = 1 << 15
_SMALLEST_SAFE = 1e-15  # below, squares may have been lost in float32


class Parameters:
    """Reads the chosen parameters, their gradients and updates, the optimizer's state and the buffers."""

    def __init__(
        self,
        summarizer: Summarizer,
        guard: ListenerGuard,
        selection: WatchSelection,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._summarizer = summarizer
        self._guard = guard
        self._selection = selection
        self._tell_step = before_step
        self._optimizers = selection.optimizers  # none: whichever steps
        self._targets: Targets
        self._memory: dict[Tensor, Tensor] = {}  # for copies of the weights
        self._before: dict[Tensor, Tensor] = {}
        self._stepping: Counter[Optimizer] = Counter()  # steps in progress
        self._held: dict[Tensor, Tensor | None] = {}  # gradients, for a step that AMP skips: it resets them unread
        self.graded: set[Tensor] = set()  # whose gradients were read in this step
        self.scaling = Scaling()
        self.stepped = False  # in this step
        self.still_scaled = False  # the gradients of this step, which a fused optimizer skips
        self.trained = bool(selection.optimizers)  # by an optimizer that was given or has been seen

    def hooks(self, targets: Targets) -> list[RemovableHandle]:
        """The hooks of a recorded step, put in place."""
        self._targets = targets
        if not targets.kinds & (APPLIED_KINDS | IN_BACKWARD):
            return []
        # One that was made without torch's own constructor has no room for hooks, and hands its steps on to another.
        if (
            not all(hasattr(optimizer, "_optimizer_step_pre_hooks") for optimizer in self._optimizers)
            or not self._optimizers
        ):
            return [
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ]
        handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers]
        return handles + [optimizer.register_step_post_hook(self._after_step) for optimizer in self._optimizers]

    def holding_hooks(self) -> list[RemovableHandle]:
        """Hooks that hold on to gradients until the step ends, put in place."""
        if Kind.WEIGHT_GRAD not in self._targets.kinds:
            return []
        return [
            parameter.register_post_accumulate_grad_hook(self._hold)
            for parameter in self._targets.parameters
            if parameter.requires_grad and not isinstance(parameter, UninitializedParameter)
        ]

    def start_over(self, targets: Targets) -> None:
        """Forget the step."""
        self._targets = targets
        self._before.clear()
        self._held.clear()
        self.still_scaled = False
        self._stepping.clear()
        self.graded.clear()
        self.stepped = False
        self.scaling.start_over()

    def let_go(self) -> None:
        """Free the memory for copies of the weights."""
        self._before.clear()
        self._memory.clear()

    def finish(self) -> None:
        """Read what stands when the step ends, and gradients that no optimizer step showed."""
        kinds, those = self._targets.kinds, list[tuple[Tensor, list[SeriesKey]]]()
        for parameter, names in self._targets.parameters.items() if kinds & AT_THE_END else ():
            if isinstance(parameter, UninitializedParameter):  # a lazy module's, before its first forward
                continue
            gradient = self._held.get(parameter) if parameter.grad is None else parameter.grad
            if Kind.WEIGHT_GRAD in kinds and parameter not in self.graded and gradient is not None:
                self.graded.add(parameter)
                those.append((gradient, _keys(names, Kind.WEIGHT_GRAD, Phase.STEP)))
            if Kind.WEIGHT in kinds:
                those.append((parameter, _keys(names, Kind.WEIGHT, Phase.STEP)))
        for buffer, names in self._targets.buffers.items() if Kind.BUFFER in kinds else ():
            if not isinstance(buffer, UninitializedBuffer):
                those.append((buffer, _keys(names, Kind.BUFFER, Phase.STEP)))
        self._summarizer.add_all(those)

    def _hold(self, parameter: Tensor) -> None:
        if not self._guard.failed:
            self._held[parameter] = parameter.grad

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._stepping[optimizer] += 1
        self._tell_step()
        if not any(True for _ in self._parameters_of(optimizer)):  # replaced since the step began, as FSDP does
            self._targets = self._selection.targets()
        if self._stepping[optimizer] == 1 and Kind.UPDATE in self._targets.kinds:
            self._guard.run(self._copy_weights, optimizer)

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        # A subclass whose step calls its parent's is called twice, and done the second time.
        self._stepping[optimizer] -= 1
        if self._stepping[optimizer] <= 0:
            self._guard.run(self._read_step, optimizer)

    def _copy_weights(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            for parameter in self._parameters_of(optimizer):
                if parameter.requires_grad and not parameter.is_meta:  # its gradient may only come in a closure
                    self._before[parameter] = self._copy(parameter)

    def _copy(self, parameter: Tensor) -> Tensor:
        """A copy in memory that is kept from step to step: getting it anew costs more than the copying."""
        part, _ = local_part(parameter)
        if is_wrapper(part):
            return part  # which is refused when its update is read
        memory = self._memory.get(parameter)
        kept = memory is not None and (memory.shape, memory.dtype, memory.device) == _form(part)
        if memory is None or not kept:
            memory = self._memory[parameter] = torch.empty_like(part, requires_grad=False)
        return memory.copy_(part)

    def _read_step(self, optimizer: Optimizer) -> None:
        mine = list(self._parameters_of(optimizer))
        found_inf = getattr(optimizer, "found_inf", None)  # set while a scaler has a fused optimizer step
        self.scaling.notice_step()
        if not mine or (found_inf is not None and bool(found_inf)):
            self._held.update((parameter, parameter.grad) for parameter in mine)
            self._before.clear()
            self.still_scaled |= bool(mine)
            return
        self.stepped = self.trained = True
        if self._targets.kinds & APPLIED_KINDS:
            applied = [read for parameter in mine for read in self._applied(parameter, optimizer)]
            rows = self._summarizer.add_all([(tensor, keys) for tensor, keys, _ in applied])
            for row, (_, _, ratio) in zip(rows, applied, strict=True):
                if row is not None and ratio is not None:
                    self._summarizer.collector.add_custom(row, UPDATE_RATIO, ratio)
        self._before.clear()
        for parameter in mine:
            self._held.pop(parameter, None)

    def _applied(
        self, parameter: Tensor, optimizer: Optimizer
    ) -> Iterator[tuple[Tensor, list[SeriesKey], float | None]]:
        """A parameter's gradient, its update with what that is against the weights, and its state."""
        kinds, names, gradient = self._targets.kinds, self._targets.parameters[parameter], parameter.grad
        if Kind.WEIGHT_GRAD in kinds and gradient is not None:
            self.graded.add(parameter)
            yield gradient, _keys(names, Kind.WEIGHT_GRAD), None
        if Kind.UPDATE in kinds and gradient is not None and parameter in self._before:
            part, local = local_part(parameter)
            update, ratio = _update(part, self._before[parameter])
            yield update, [key._replace(local=local) for key in _keys(names, Kind.UPDATE)], ratio
        if Kind.OPTIMIZER in kinds:
            state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if key != _COUNT}
            for port, tensor in tensors_in(state, "state"):
                yield tensor, [key._replace(port=port) for key in _keys(names, Kind.OPTIMIZER)], None

    def _parameters_of(self, optimizer: Optimizer) -> Iterable[Tensor]:
        chosen = self._targets.parameters
        return (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter in chosen)


def _keys(names: Iterable[str], kind: Kind, phase: Phase = Phase.OPTIMIZER) -> list[SeriesKey]:
    return [SeriesKey(name, kind.value, kind, Mode.TRAIN, phase) for name in names]


def _update(parameter: Tensor, before: Tensor) -> tuple[Tensor, float | None]:
    """What was added to a parameter, written over what it was before, and how large that is against it.

    Against weights that are all 0, as biases often are at first, there is no ratio.
    """
    if is_wrapper(before):
        return before, None
    size = _norm(before)
    with torch.no_grad():
        update = torch.sub(parameter.detach(), before, out=before)
    change = _norm(update)
    return update, change / size if size else None


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _norm(tensor: Tensor) -> float:
    """The norm, by blocks: one sum in float32 over ten million elements is wrong in the fourth digit."""
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        wide = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else None
        whole = len(flat) // _BLOCK * _BLOCK
        norm = float(torch.linalg.vector_norm(flat[whole:], dtype=wide))
        if whole:
            blocks = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1, dtype=wide)
            norm = math.hypot(norm, float(torch.linalg.vector_norm(blocks.double())))
        if (math.isfinite(norm) and norm > _SMALLEST_SAFE) or not len(flat):
            return norm
        sizes = flat.to(torch.complex128 if flat.is_complex() else torch.float64).abs()
        largest = float(sizes.max())
        in_range = math.isfinite(largest) and largest > 0  # and so are the squares of shares of it
        return largest * float(torch.linalg.vector_norm(sizes / largest)) if in_range else largest
