"""What an optimizer works on: gradients as they were applied, updates, its state; weights and buffers as they stand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import UninitializedBuffer, UninitializedParameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.torch.guard import Guard
from layerscope.capture.torch.intake import Intake, Place
from layerscope.capture.torch.scaling import Scaling
from layerscope.capture.torch.shards import local_part
from layerscope.capture.torch.targets import Selection, Targets
from layerscope.capture.torch.tensors import tensors_in
from layerscope.records import UPDATE_RATIO, Kind, Mode, Reading
from layerscope.stats.torch import is_wrapper

APPLIED_KINDS = frozenset((Kind.WEIGHT_GRAD, Kind.UPDATE, Kind.OPTIMIZER))
AT_THE_END = frozenset((Kind.WEIGHT_GRAD, Kind.WEIGHT))
IN_BACKWARD = frozenset(  # which a scale is on, found when the optimizer steps
    (Kind.INPUT_GRAD, Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD, Kind.OUTPUT_GRAD_NORM, Kind.TENSOR_GRAD)
)
_COUNT = "step"  # in an optimizer's state: how often it stepped
_BLOCK = 1 << 15
_SMALLEST_SAFE = 1e-15  # below, squares may have been lost in float32


class Parameters:
    """Reads the chosen parameters, their gradients and updates, the optimizer's state and the buffers."""

    def __init__(
        self, intake: Intake, guard: Guard, selection: Selection, before_step: Callable[[], None] = lambda: None
    ) -> None:
        self._intake = intake
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
        self.still_scaled = False  # the gradients of this step, which a fused optimizer was told to skip
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
        kinds, those = self._targets.kinds, list[tuple[Tensor, list[Place]]]()
        for parameter, names in self._targets.parameters.items() if kinds & AT_THE_END else ():
            if isinstance(parameter, UninitializedParameter):  # a lazy module's, before its first forward
                continue
            gradient = self._held.get(parameter) if parameter.grad is None else parameter.grad
            if Kind.WEIGHT_GRAD in kinds and parameter not in self.graded and gradient is not None:
                self.graded.add(parameter)
                those.append((gradient, _places(names, Kind.WEIGHT_GRAD, Reading.STEP)))
            if Kind.WEIGHT in kinds:
                those.append((parameter, _places(names, Kind.WEIGHT, Reading.STEP)))
        for buffer, names in self._targets.buffers.items() if Kind.BUFFER in kinds else ():
            if not isinstance(buffer, UninitializedBuffer):
                those.append((buffer, _places(names, Kind.BUFFER, Reading.STEP)))
        self._intake.add_all(those)

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
            applied = [found for parameter in mine for found in self._applied(parameter, optimizer)]
            rows = self._intake.add_all([(tensor, places) for tensor, places, _ in applied])
            for row, (_, _, ratio) in zip(rows, applied, strict=True):
                if row is not None and ratio is not None:
                    self._intake.collector.add_extra(row, UPDATE_RATIO, ratio)
        self._before.clear()
        for parameter in mine:
            self._held.pop(parameter, None)

    def _applied(self, parameter: Tensor, optimizer: Optimizer) -> Iterator[tuple[Tensor, list[Place], float | None]]:
        """A parameter's gradient, its update with what that is against the weights, and its state."""
        kinds, names, gradient = self._targets.kinds, self._targets.parameters[parameter], parameter.grad
        if Kind.WEIGHT_GRAD in kinds and gradient is not None:
            self.graded.add(parameter)
            yield gradient, _places(names, Kind.WEIGHT_GRAD), None
        if Kind.UPDATE in kinds and gradient is not None and parameter in self._before:
            part, local = local_part(parameter)
            update, ratio = _update(part, self._before[parameter])
            yield update, [place._replace(local=local) for place in _places(names, Kind.UPDATE)], ratio
        if Kind.OPTIMIZER in kinds:
            state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if key != _COUNT}
            for port, tensor in tensors_in(state, "state"):
                yield tensor, [place._replace(port=port) for place in _places(names, Kind.OPTIMIZER)], None

    def _parameters_of(self, optimizer: Optimizer) -> Iterable[Tensor]:
        chosen = self._targets.parameters
        return (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter in chosen)


def _places(names: Iterable[str], kind: Kind, reading: Reading = Reading.OPTIMIZER) -> list[Place]:
    return [Place(name, kind.value, kind, Mode.TRAIN, reading) for name in names]


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
