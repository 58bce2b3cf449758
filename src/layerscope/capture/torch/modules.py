"""Listening to a PyTorch model: module outputs, weights, and gradients as the optimizer applied them.

Forward hooks are torch's global ones, looked up by module, rather than hooks on the user's modules: nothing is
stored in the model, so that it can be copied and saved while it is watched, and `nn.TransformerEncoderLayer` keeps its
fused path, which it leaves for modules that carry hooks. Global hooks run before a module's own, which may replace the
output: behind those a hook of ours is put for the length of one call.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import UninitializedParameter
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.collector import Collector
from layerscope.capture.torch.targets import Selection, Targets
from layerscope.capture.torch.tensors import tensors_in
from layerscope.errors import LayerscopeError, LayerscopeWarning
from layerscope.records import Kind, Mode, Reading
from layerscope.stats.torch import dtype_name


class _Forward(threading.local):
    """The forward in progress on one thread: how deep in the model we are, and which module was called how often."""

    def __init__(self) -> None:
        self.depth = 0
        self.calls: Counter[nn.Module] = Counter()


class TorchListener:
    """Reads the selected tensors into a collector while it is attached; changes none of them."""

    def __init__(self, selection: Selection, collector: Collector, report: Callable[[str], None]) -> None:
        self._selection = selection
        self._targets: Targets = selection.targets()
        self._collector = collector
        self._report = report
        self._hooks = ExitStack()
        self._failed = False
        self._forward = _Forward()
        self._late: dict[nn.Module, RemovableHandle] = {}
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._graded: set[Tensor] = set()
        self._unreadable: set[str] = set()

    def attach(self) -> None:
        """Put the hooks in place."""
        if self._failed:
            return
        self._start_over()
        handles: list[RemovableHandle] = []
        if Kind.OUTPUT in self._targets.kinds:
            handles += [
                register_module_forward_pre_hook(self._before_forward),
                register_module_forward_hook(self._after_forward, always_call=True),
            ]
        if Kind.WEIGHT_GRAD in self._targets.kinds:
            handles += self._optimizer_hooks()
        for handle in handles:
            self._hooks.callback(handle.remove)

    def detach(self) -> None:
        """Take every hook away."""
        self._hooks.close()
        self._start_over()

    def finish(self, step: int) -> None:
        """Read the weights, and gradients that no optimizer step showed; hand over the step's summaries."""
        if not self._failed:
            self._guarded(lambda: self._read_parameters(step))
            self._start_over()

    def _start_over(self) -> None:
        """Forget the step, and look up the modules and parameters as they are now."""
        self._targets = self._selection.targets()
        self._forward = _Forward()
        self._seen.clear()
        self._graded.clear()
        while self._late:
            self._late.popitem()[1].remove()

    def _before_forward(self, module: nn.Module, args: object) -> None:
        if torch.compiler.is_compiling() or module not in self._targets.members:
            return
        self._forward.depth += 1
        if module._forward_hooks and module in self._targets.modules and module not in self._late:
            # A plain function: a copy of the model copies its hooks, and a method would drag us along.
            def behind_others(module: nn.Module, args: object, output: object) -> None:
                if module in self._late:
                    self._late.pop(module).remove()
                    self._read_forward(module, output)

            self._late[module] = module.register_forward_hook(behind_others)

    def _after_forward(self, module: nn.Module, args: object, output: object) -> None:
        """Called after the forward, also when it raised: then with None, as for a module that gives nothing."""
        if torch.compiler.is_compiling() or module not in self._targets.members:
            return
        if output is None and module in self._late:
            self._late.pop(module).remove()
        if module in self._targets.modules and module not in self._late:
            self._read_forward(module, output)
        self._forward.depth -= 1
        if self._forward.depth <= 0:  # calls are numbered within one outermost call
            self._forward.calls.clear()

    def _read_forward(self, module: nn.Module, output: object) -> None:
        # Backward running means that checkpointing computes the forward again: it was read the first time.
        if torch._C._current_graph_task_id() == -1:
            self._guarded(lambda: self._read_output(module, output))

    def _read_output(self, module: nn.Module, output: object) -> None:
        self._forward.calls[module] += 1
        call = self._forward.calls[module]
        path = self._targets.modules[module]
        site = path if call == 1 else f"{path}#{call}"
        mode = Mode.TRAIN if module.training else Mode.EVAL
        for port, tensor in tensors_in(output, "output"):
            self._read(tensor, site, port, Kind.OUTPUT, mode, Reading.FORWARD)

    def _optimizer_hooks(self) -> list[RemovableHandle]:
        def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._guarded(lambda: self._read_gradients(optimizer))

        if not self._selection.optimizers:
            return [register_optimizer_step_post_hook(after_step)]
        return [optimizer.register_step_post_hook(after_step) for optimizer in self._selection.optimizers]

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
            if isinstance(parameter, UninitializedParameter):  # a lazy module's, before its first forward
                continue
            if Kind.WEIGHT_GRAD in self._targets.kinds and parameter not in self._graded:
                self._read_gradient(parameter, Reading.STEP)
            if Kind.WEIGHT in self._targets.kinds:
                self._read(parameter, name, Kind.WEIGHT.value, Kind.WEIGHT, Mode.TRAIN, Reading.STEP)
        self._collector.finish(step)

    def _read(self, tensor: Tensor, site: str, port: str, kind: Kind, mode: Mode, reading: Reading) -> None:
        # An optimizer may write through `.data`, which leaves no trace in the version: only outputs are looked up.
        known = self._known_row(tensor) if kind is Kind.OUTPUT else None
        try:
            identity = (site, port, kind, mode, reading, dtype_name(tensor))
            row = self._collector.add(tensor, identity, tuple(tensor.shape), known)
        except LayerscopeError as error:
            if site not in self._unreadable:
                self._unreadable.add(site)
                self._report(f"{kind.value} of {site!r} is not recorded: {error}")
        else:
            if kind is Kind.OUTPUT and not tensor.is_inference():  # which has no version to tell whether it changed
                self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, row)

    def _known_row(self, tensor: Tensor) -> int | None:
        """The tensor's row in this step, if it was summarised and has not changed since."""
        seen = self._seen.get(id(tensor))
        return seen[2] if seen is not None and seen[0]() is tensor and seen[1] == tensor._version else None

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
