"""What plain PyTorch shows of a training, to compare a recording with: values by hooks, gradients by zeros.

A zero that requires grad is added to every tensor that goes into a module or comes out of it. Its gradient is that of
the loss by the value at this very place: before later in-place operations, and of an input only what flows back through
the module, not what passes it by.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerscope.model.records import Kind, Mode

#: Site, port, kind and mode of a tensor; and the tensors of one step, of which the recording adds up the summaries.
Key = tuple[str, str, Kind, Mode]
Parts = dict[Key, list[Tensor]]


def mapped(value: Any, port: str, change: Callable[[str, Tensor], Any]) -> Any:
    """The same structure with every tensor changed; the function gets the tensor's port, too."""
    if isinstance(value, Tensor):
        return change(port, value)
    if isinstance(value, Mapping):
        twin = copy.copy(value)
        for key, item in value.items():
            twin[key] = mapped(item, f"{port}.{key}", change)  # type: ignore[index]  # every mapping here is mutable
        return twin
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, f"{port}.{index}", change) for index, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: mapped(getattr(value, n), f"{port}.{n}", change) for n in names})
    return value


def running_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class Reference:
    """Keeps every tensor of every step; takes the place of a recorder around a training."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer], scale: float = 1.0) -> None:
        self.steps: list[Parts] = []
        self._model = model
        self._scale = scale
        self._parts: Parts = defaultdict(list)
        self._calls: Counter[nn.Module] = Counter()
        self._stack: list[tuple[str, Mode]] = []
        self._paths = {module: path or "(model)" for path, module in model.named_modules()}
        self._context = ""
        self._applied: set[Tensor] = set()
        self._before: dict[Tensor, Tensor] = {}
        self._depth = 0
        for module in self._paths:
            module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            module.register_forward_hook(self._after_forward, always_call=True)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before_update)
            optimizer.register_step_post_hook(self._after_update)

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        """Sites of calls inside are called `site@context`."""
        around, self._context = self._context, f"{self._context}/{name}" if self._context else name
        yield
        self._context = around

    def step(self) -> None:
        """End the step: weights, buffers, and gradients that no optimizer applied."""
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            self._keep(name, "weight", Kind.WEIGHT, parameter)
            if parameter.grad is not None and parameter not in self._applied:
                self._keep(name, "weight_grad", Kind.WEIGHT_GRAD, parameter.grad)
        for name, buffer in self._model.named_buffers(remove_duplicate=False):
            self._keep(name, "buffer", Kind.BUFFER, buffer)
        self.steps.append(dict(self._parts))
        self._parts.clear()
        self._applied.clear()

    def _keep(self, site: str, port: str, kind: Kind, tensor: Tensor, mode: Mode = Mode.TRAIN) -> None:
        self._parts[site, port, kind, mode].append(tensor.detach().clone())

    def _before_forward(self, module: nn.Module, args: object, kwargs: object) -> object:
        again = running_backward()  # checkpointing computes the forward again: its gradients count, its values did
        if not again:
            if not self._stack:
                self._calls.clear()
            self._calls[module] += 1
        number = max(self._calls[module], 1)
        call = (
            in_context(self._paths[module] + (f"#{number}" if number > 1 else ""), self._context),
            Mode.TRAIN if module.training else Mode.EVAL,
        )
        self._stack.append(call)
        probe = partial(self._probed, call, Kind.INPUT, {})
        return mapped(args, "input", probe), mapped(kwargs, "input", probe)

    def _after_forward(self, module: nn.Module, args: object, output: object) -> object:
        probe = partial(self._probed, self._stack.pop(), Kind.OUTPUT, {})
        return mapped(output, "output.0" if isinstance(output, Tensor) else "output", probe)

    def _probed(
        self, call: tuple[str, Mode], kind: Kind, zeros: dict[int, Tensor], port: str, tensor: Tensor
    ) -> Tensor:
        """The tensor plus a zero, one for all ports that have the same tensor."""
        site, mode = call
        if not running_backward():
            self._keep(site, port, kind, tensor, mode)
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return tensor
        zero = zeros.setdefault(id(tensor), torch.zeros_like(tensor, requires_grad=True))
        of_gradient, of_norm = (Kind(f"{kind.value}_{what}") for what in ("grad", "grad_norm"))

        def seen(gradient: Tensor) -> None:
            gradient = gradient.detach() / self._scale
            self._keep(site, port, of_gradient, gradient, mode)
            if gradient.dim():
                self._keep(site, port, of_norm, norms(gradient), mode)

        zero.register_hook(seen)
        return tensor + zero

    def _before_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._depth += 1  # the step of a subclass may call that of its base: both have the hooks run
        if self._depth == 1:
            self._before |= {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}

    def _after_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        mine = {p for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if parameter not in mine:
                continue
            if parameter.grad is not None:
                self._applied.add(parameter)
                self._keep(name, "weight_grad", Kind.WEIGHT_GRAD, parameter.grad)
                self._keep(name, "update", Kind.UPDATE, parameter.detach() - self._before[parameter])
            state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if key != "step"}
            mapped(state, "state", partial(self._keep_state, name))

    def _keep_state(self, name: str, port: str, tensor: Tensor) -> None:
        self._keep(name, port, Kind.OPTIMIZER, tensor)


def in_context(site: str, context: str) -> str:
    return f"{site}@{context}" if context else site


def norms(gradient: Tensor) -> Tensor:
    """One L2 norm for each sample."""
    gradient = gradient.to(torch.complex128 if gradient.is_complex() else torch.float64)
    rest = tuple(range(1, gradient.dim()))
    return torch.linalg.vector_norm(gradient, dim=rest) if rest else gradient.abs()


def statistics(parts: list[Tensor]) -> dict[str, float]:
    """The statistics of all the elements together, in float64."""
    smallest_normal = torch.finfo(parts[0].dtype).tiny if parts[0].is_floating_point() else 0.0
    whole = torch.cat([(p.abs() if p.is_complex() else p).detach().double().flatten() for p in parts])
    x = whole[whole.isfinite()]
    magnitude = x.abs()
    nothing = torch.tensor([float("nan")], dtype=torch.float64)
    extremes, nonzero = (x if len(x) else nothing), (magnitude[magnitude > 0] if magnitude.any() else nothing)
    return {
        "count": whole.numel(),
        "mean": float(x.mean()),
        "mean_abs": float(magnitude.mean()),
        "rms": float(x.square().mean().sqrt()),
        "std": float(x.std(correction=0)) if len(x) else float("nan"),
        "min": float(extremes.min()),
        "max": float(extremes.max()),
        "abs_min": float(nonzero.min()),
        "zeros": int((whole == 0).sum()),
        "subnormal": int((magnitude[magnitude > 0] < smallest_normal).sum()),
        "nan": int(whole.isnan().sum()),
        "pos_inf": int((whole == float("inf")).sum()),
        "neg_inf": int((whole == -float("inf")).sum()),
        "merged": len(parts),
    }
