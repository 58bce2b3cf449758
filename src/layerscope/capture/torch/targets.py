"""Which modules, parameters and optimizers of a PyTorch training are listened to."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import UninitializedParameter
from torch.optim import Optimizer

from layerscope.errors import LayerscopeWarning, SelectError
from layerscope.records import Graph, Kind, ModuleNode
from layerscope.select import Patterns, listed, matching, selected

ROOT = "(model)"  # the watched model's own site: its path is empty, and a child may be called "model"
RECORDABLE = (Kind.OUTPUT, Kind.WEIGHT, Kind.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True)
class Targets:
    """What is listened to: modules by their paths, parameters by their names, and the kinds of tensor."""

    members: frozenset[nn.Module]  # every module of the model, selected or not
    modules: dict[nn.Module, str]
    parameters: dict[Tensor, str]
    kinds: frozenset[Kind]


class Selection:
    """What the user's words select in a model, looked up anew whenever its modules or parameters were replaced."""

    def __init__(
        self, model: nn.Module, optimizers: tuple[Optimizer, ...], kinds: frozenset[Kind], sites: Patterns
    ) -> None:
        self.model = model
        self.optimizers = optimizers  # none given: whichever steps
        self._kinds = kinds
        self._patterns = listed(sites)
        self._found: list[object] = []
        self._targets: Targets | None = None

    def targets(self) -> Targets:
        """The modules and parameters as they are now."""
        modules = {path or ROOT: module for path, module in self.model.named_modules()}
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        found: list[object] = [*modules.values(), *parameters.values()]
        if self._targets is None or not _same(found, self._found):
            chosen = selected(self._patterns, [*modules, *parameters])
            # A module's name stands for its own parameters too.
            own = {name for name in parameters if (name.rpartition(".")[0] or ROOT) in chosen}
            self._targets = Targets(
                members=frozenset(modules.values()),
                modules={module: path for path, module in modules.items() if path in chosen},
                parameters={parameter: name for name, parameter in parameters.items() if name in chosen | own},
                kinds=self._kinds,
            )
            self._found = found
        return self._targets


def _same(one: list[object], other: list[object]) -> bool:
    return len(one) == len(other) and all(map(lambda a, b: a is b, one, other))


def choose(
    model: nn.Module, optimizer: Optimizer | Iterable[Optimizer] | None, kinds: Patterns, sites: Patterns
) -> Selection:
    """The selection that the user's words make; an error if they select nothing."""
    if not isinstance(model, nn.Module):
        raise SelectError(f"watch() needs a torch.nn.Module, not {type(model).__name__}. Give the model itself.")
    names = [path or ROOT for path, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    matching(sites, names, "site")
    selection = Selection(model, _optimizers(optimizer), _kinds(kinds), sites)
    targets = selection.targets()
    outputs = targets.modules if Kind.OUTPUT in targets.kinds else {}
    weights = targets.parameters if targets.kinds - {Kind.OUTPUT} else {}
    if not outputs and not weights:
        raise SelectError(
            f"Nothing would be recorded: sites={sites!r} and kinds={kinds!r} leave no module or parameter."
        )
    _warn_of_strangers(model, selection.optimizers)
    return selection


def _optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> tuple[Optimizer, ...]:
    several = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    for one in several:
        if not isinstance(one, Optimizer):
            raise SelectError(f"watch() needs a torch.optim.Optimizer, or several, not {type(one).__name__}.")
    return several


def _warn_of_strangers(model: nn.Module, optimizers: tuple[Optimizer, ...]) -> None:
    held = {parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]}
    if held and held.isdisjoint(model.parameters()):
        warnings.warn(
            "The optimizer holds none of the model's parameters: their gradients are read when the step ends instead. "
            "Give the optimizer that trains this model.",
            LayerscopeWarning,
            stacklevel=4,
        )


def _kinds(kinds: Patterns) -> frozenset[Kind]:
    patterns = ("*",) if kinds == "all" else listed(kinds)
    return frozenset(Kind(name) for name in matching(patterns, [kind.value for kind in RECORDABLE], "recordable kind"))


def module_graph(model: nn.Module) -> Graph:
    """The model's modules with class, own parameters and details."""
    return Graph(
        tuple(
            ModuleNode(
                path=path or ROOT,
                class_name=type(module).__name__,
                parameters=sum(_elements(parameter) for parameter in module.parameters(recurse=False)),
                detail=module.extra_repr(),
            )
            for path, module in model.named_modules()
        )
    )


def _elements(parameter: Tensor) -> int:
    """How many elements a parameter has; a lazy module's have none before its first forward."""
    return 0 if isinstance(parameter, UninitializedParameter) else parameter.numel()
