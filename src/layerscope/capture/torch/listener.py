"""Listening to a PyTorch model while a step is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.collector import Collector
from layerscope.capture.core.forwards import FORWARD_KINDS
from layerscope.capture.core.listener import ModelListener
from layerscope.capture.core.named_tensors import Detail
from layerscope.capture.core.summarizer import SummaryOptions
from layerscope.capture.torch.framework import TorchFramework
from layerscope.capture.torch.hooks import IdleHook, ModuleHooks, compiled_parts
from layerscope.capture.torch.parameters import Parameters
from layerscope.capture.torch.targets import WatchSelection
from layerscope.model.records import Kind, Phase

if TYPE_CHECKING:
    from layerscope.capture.torch.compiled_modules import CompiledModules


_COMPILED_BEFORE = (
    "What happens inside the compiled modules is not seen: they were compiled after watch(), or called before it. "
    "Compile first, then watch, then call them; torch.compiler.reset() makes them be compiled again."
)


class TorchListener(ModelListener):
    """The hooks of PyTorch, by which modules, parameters and compiled modules are read."""

    framework = TorchFramework()
    _selection: WatchSelection
    _compiled: CompiledModules | None = None

    def __init__(
        self,
        selection: WatchSelection,
        collector: Collector,
        report: Callable[[str, str], None],
        options: SummaryOptions,
        detail: Detail,
        *,
        holds: bool = False,
    ) -> None:
        super().__init__(selection, collector, report, options, detail, holds=holds)
        self._module_hooks = ModuleHooks(self.forwards)
        before_step = self.named.contributions.end_backwards
        self._parameters = Parameters(self._summarizer, self._guard, selection, before_step)
        self._has_reported_unseen = False
        self._holds = False  # gradients to the end of a step, since AMP was seen to skip one
        self._compile()

    def _hook_forwards(self, hooks: ExitStack) -> None:
        if self._compiled is not None and set(self._compiled.modules) != set(self._targets.members):
            self._compiled.close()  # some modules came later
            self._compile()
        if self._compiled is not None:
            self._compiled.recorded = True
        elif self._targets.kinds & FORWARD_KINDS:
            self._module_hooks.put(hooks)

    def _hook_parameters(self, hooks: ExitStack) -> None:
        self._keep(self._parameters.hooks(self._targets))
        if self._holds:
            self._keep(self._parameters.holding_hooks())

    def _hook_idle(self, hooks: ExitStack) -> None:
        root: nn.Module
        for root in self._evaluations.roots:
            hook = IdleHook(self._evaluations, self._notice)
            if isinstance(root, nn.TransformerEncoderLayer):  # leaves its fused path for a hook of its own
                handle = register_module_forward_pre_hook(hook)
            else:
                handle = root.register_forward_pre_hook(hook)
            hooks.callback(handle.remove)

    def _keep(self, handles: Iterable[RemovableHandle]) -> None:
        for handle in handles:
            self._hooks.callback(handle.remove)

    def _stop_listening(self) -> None:
        super()._stop_listening()
        if self._compiled is not None:
            self._compiled.recorded = False

    def detach(self) -> None:
        """Take the hooks of a recorded step away."""
        super().detach()
        self._parameters.let_go()

    def abandon(self, *, keep: bool = False) -> None:
        """Read nothing any more, without waiting for a lock; the hooks are removed when it is safe."""
        super().abandon(keep=keep)
        if self._compiled is not None:
            self._compiled.recorded = False

    def close(self) -> None:
        """Let go of everything, for good."""
        super().close()
        if self._compiled is not None:
            self._compiled.close()

    def _fail(self) -> None:
        super()._fail()
        self._parameters.let_go()

    def _start_over(self) -> None:
        super()._start_over()
        self._module_hooks.start_over()
        self._parameters.start_over(self._targets)

    def _compile(self) -> None:
        """Put hooks in place that reach into compiled modules, if there are any."""
        selection = self._selection
        beginnings = compiled_parts(selection.model) if selection.kinds & FORWARD_KINDS else set()
        self.is_compiled, self._compiled = bool(beginnings), None
        self.forwards.has_graph = not self.is_compiled
        if beginnings:
            from layerscope.capture.torch.compiled_modules import CompiledModules  # loads the compiler

            members, inputs = selection.targets().members, Kind.INPUT in selection.kinds
            notice = self._notice_compiled
            self._compiled = CompiledModules(self.forwards, members, beginnings, inputs=inputs, notice=notice)

    def _notice_compiled(self, module: nn.Module) -> None:
        is_idle = self._evaluations.is_apart or not (self._is_listening or self._is_paused)
        if is_idle and self._evaluations.awaits(module):
            self._notice(module)

    def _has_trained(self) -> bool:
        return self._gradients.arrived or self._parameters.stepped

    def _read_parameters(self) -> Mapping[Phase, float | None]:
        self._parameters.finish()
        scale = self._scale()
        left = scale if self._parameters.still_scaled else self._parameters.scaling.left_on_gradients()
        return {Phase.BACKWARD: scale, Phase.STEP: left}

    def _scale(self) -> float | None:
        """What the gradients of this step were multiplied by; None if that cannot be known."""
        parameters, scaling = self._parameters, self._parameters.scaling
        if not self._gradients.arrived and not scaling.fell():  # none arrive from inside compiled modules
            return 1.0
        if parameters.stepped:
            return scaling.scale
        scale = scaling.of_skipped_step()
        if scaling.fell():
            self._report("skipped", "The update was skipped: GradScaler found Inf or NaN in the gradients.")
            if not self._holds:
                self._holds = True
                self._keep(self._parameters.holding_hooks())
        elif parameters.trained:
            self._report("skipped", "No optimizer stepped, though a backward ran: no update was made in this step.")
        return scale

    def _report_unseen(self) -> None:
        """Say once, after a step with a backward, what could not be seen of it."""
        if self._has_reported_unseen or not (self._gradients.arrived or self._parameters.stepped):
            return
        self._has_reported_unseen = True
        wanted = Kind.WEIGHT_GRAD in self._targets.kinds and self._targets.parameters
        if wanted and not self._parameters.graded and not self._parameters.trained:
            self._report(
                "warning",
                "Gradients of weights are missing: no optimizer stepped, and they were gone when the step ended. Call "
                "run.step() before zero_grad().",
            )
        if self._compiled is None:
            self._report_uncalled()
        elif not self._compiled.has_reported and any(
            any(True for _ in part.children()) for part in self._compiled.beginnings
        ):
            self._report("warning", _COMPILED_BEFORE)
        elif any(map(self._gradients.wants, (Kind.INPUT_GRAD, Kind.OUTPUT_GRAD))):
            self._report("info", "Gradients of inputs and outputs inside compiled modules are not recorded.")

    def _report_uncalled(self) -> None:
        """Name the modules that were not seen to be called although their parameters have gradients."""
        targets, trained = self._selection.targets(), set(self._parameters.graded)
        for module in self.forwards.called:  # which may share parameters with one that is not
            trained.difference_update(module.parameters(recurse=False))
        silent = [
            path
            for module, path in targets.modules.items()
            if module not in self.forwards.called
            and not isinstance(module, NonDynamicallyQuantizableLinear)  # of attention, which uses its parameters
            and not trained.isdisjoint(module.parameters(recurse=False))
        ]
        if silent and compiled_parts(self._selection.model):
            self._report("warning", _COMPILED_BEFORE)
        elif silent:
            self._report(
                "warning",
                f"Not seen to be called, though trained: {', '.join(silent[:10])}{' …' if len(silent) > 10 else ''}. "
                "Either their forward() was called directly (call the module itself), or another module uses their "
                "parameters.",
            )


listener = TorchListener.open

#: The number of autograd's next node on this thread: another one once a forward has run.
progress = TorchListener.framework.next_node
