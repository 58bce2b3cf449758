"""Listening to a PyTorch model: module outputs, weights, and gradients as the optimizer applied them.

Forward hooks are torch's global ones, looked up by module, rather than hooks on the user's modules: nothing is
stored in the model, so that it can be copied and saved while it is watched, and `nn.TransformerEncoderLayer` keeps its
fused path, which it leaves for modules that carry hooks. Modules with forward hooks of their own get ours behind
theirs, since a hook may replace the output and global hooks run first.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from layerscope.capture.collector import Collector
from layerscope.capture.torch.targets import Targets
from layerscope.capture.torch.tensors import tensors_in
from layerscope.errors import LayerscopeError, LayerscopeWarning
from layerscope.records import Kind, Mode, Reading
from layerscope.stats.torch import dtype_name


class TorchListener:
    """Reads the targets' tensors into a collector while it is attached; changes none of them."""

    def __init__(self, targets: Targets, collector: Collector, report: Callable[[str], None]) -> None:
        self._targets = targets
        self._collector = collector
        self._report = report
        self._hooks = ExitStack()
        self._failed = False
        self._calls: Counter[nn.Module] = Counter()
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._graded: set[Tensor] = set()
        self._unreadable: set[str] = set()

    def attach(self) -> None:
        """Put the hooks in place."""
        if self._failed:
            return
        self._forget()
        if Kind.OUTPUT in self._targets.kinds:
            for handle in self._forward_hooks():
                self._hooks.callback(handle.remove)
        if Kind.WEIGHT_GRAD in self._targets.kinds:
            for handle in self._optimizer_hooks():
                self._hooks.callback(handle.remove)

    def detach(self) -> None:
        """Take every hook away."""
        self._hooks.close()
        self._forget()

    def finish(self, step: int) -> None:
        """Read the weights, and gradients that no optimizer step showed; hand over the step's summaries."""
        if not self._failed:
            self._guarded(lambda: self._read_parameters(step))
            self._forget()

    def _forget(self) -> None:
        self._calls.clear()
        self._seen.clear()
        self._graded.clear()

    def _forward_hooks(self) -> list[torch.utils.hooks.RemovableHandle]:
        crowded = [module for module in self._targets.modules if module._forward_hooks]
        others = self._targets.modules.keys() - set(crowded)

        # Plain functions, not methods: a copy of the model copies its hooks, and a method would drag us along.
        def after_forward(module: nn.Module, args: object, output: object) -> None:
            self._after_forward(module, output)

        def after_any_forward(module: nn.Module, args: object, output: object) -> None:
            if module in others:
                self._after_forward(module, output)
            if module is self._targets.model:  # calls are numbered within one forward of the model
                self._calls.clear()

        handles = [module.register_forward_hook(after_forward) for module in crowded]
        return [*handles, register_module_forward_hook(after_any_forward)]

    def _after_forward(self, module: nn.Module, output: object) -> None:
        # Backward running means that checkpointing computes the forward again: it was read the first time.
        if torch._C._current_graph_task_id() == -1:
            self._guarded(lambda: self._read_output(module, output))

    def _read_output(self, module: nn.Module, output: object) -> None:
        self._calls[module] += 1
        call = self._calls[module]
        path = self._targets.modules[module]
        site = path if call == 1 else f"{path}#{call}"
        mode = Mode.TRAIN if module.training else Mode.EVAL
        for port, tensor in tensors_in(output, "output"):
            self._read(tensor, site, port, Kind.OUTPUT, mode, Reading.FORWARD)

    def _optimizer_hooks(self) -> list[torch.utils.hooks.RemovableHandle]:
        def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._guarded(lambda: self._read_gradients(optimizer))

        if not self._targets.optimizers:
            return [register_optimizer_step_post_hook(after_step)]
        return [optimizer.register_step_post_hook(after_step) for optimizer in self._targets.optimizers]

    def _read_gradients(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._targets.parameters:
                    self._read_gradient(parameter, Reading.OPTIMIZER)

    def _read_gradient(self, parameter: Tensor, reading: Reading) -> None:
        if parameter.grad is not None:
            self._graded.add(parameter)
            name = self._targets.parameters[parameter]
            self._read(parameter.grad, name, Kind.WEIGHT_GRAD.value, Kind.WEIGHT_GRAD, Mode.TRAIN, reading)

    def _read_parameters(self, step: int) -> None:
        for parameter, name in self._targets.parameters.items():
            if Kind.WEIGHT_GRAD in self._targets.kinds and parameter not in self._graded:
                self._read_gradient(parameter, Reading.STEP)
            if Kind.WEIGHT in self._targets.kinds:
                self._read(parameter, name, Kind.WEIGHT.value, Kind.WEIGHT, Mode.TRAIN, Reading.STEP)
        self._collector.finish(step)

    def _read(self, tensor: Tensor, site: str, port: str, kind: Kind, mode: Mode, reading: Reading) -> None:
        try:
            row = self._row(tensor)
        except LayerscopeError as error:
            if site not in self._unreadable:
                self._unreadable.add(site)
                self._report(f"{kind.value} of {site!r} is not recorded: {error}")
        else:
            self._collector.assign(row, (site, port, kind, mode, reading, dtype_name(tensor)), tuple(tensor.shape))

    def _row(self, tensor: Tensor) -> int:
        """The tensor's row in this step: an unchanged tensor seen before is not summarised again."""
        if tensor.is_inference():  # has no version to tell whether it changed
            return self._collector.summarize(tensor)
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0]() is tensor and seen[1] == tensor._version:
            return seen[2]
        row = self._collector.summarize(tensor)
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, row)
        return row

    def _guarded(self, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as error:  # noqa: BLE001  a bug of ours must not stop somebody's training
            self._failed = True
            self.detach()
            text = (
                f"layerscope stopped listening after {type(error).__name__}: {error}. The training goes on unrecorded."
            )
            self._report(text)
            warnings.warn(text, LayerscopeWarning, stacklevel=2)
