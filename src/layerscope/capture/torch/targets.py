"""Which modules, parameters and optimizers of a PyTorch training are listened to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from layerscope.errors import SelectError
from layerscope.records import Graph, Kind, ModuleNode
from layerscope.select import Patterns, listed, matching

ROOT = "(model)"  # the watched model's own site: its path is empty, and a child may be called "model"
RECORDABLE = (Kind.OUTPUT, Kind.WEIGHT, Kind.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True)
class Targets:
    """What is listened to: modules by their paths, parameters by their names, and the kinds of tensor."""

    model: nn.Module
    modules: dict[nn.Module, str]
    parameters: dict[Tensor, str]
    optimizers: tuple[Optimizer, ...]  # none given: whichever steps
    kinds: frozenset[Kind]


def choose(
    model: nn.Module, optimizer: Optimizer | Iterable[Optimizer] | None, kinds: Patterns, sites: Patterns
) -> Targets:
    """The targets that the user's words select in the model."""
    if not isinstance(model, nn.Module):
        raise SelectError(f"watch() needs a torch.nn.Module, not {type(model).__name__}. Give the model itself.")
    modules = {path or ROOT: module for path, module in model.named_modules()}
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    chosen = set(matching(sites, [*modules, *parameters], "site"))
    return Targets(
        model=model,
        modules={module: path for path, module in modules.items() if path in chosen},
        parameters={parameter: name for name, parameter in parameters.items() if name in chosen},
        optimizers=_optimizers(optimizer),
        kinds=_kinds(kinds),
    )


def _optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> tuple[Optimizer, ...]:
    several = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    for one in several:
        if not isinstance(one, Optimizer):
            raise SelectError(f"watch() needs a torch.optim.Optimizer, or several, not {type(one).__name__}.")
    return several


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
                parameters=sum(parameter.numel() for parameter in module.parameters(recurse=False)),
                detail=module.extra_repr(),
            )
            for path, module in model.named_modules()
        )
    )
