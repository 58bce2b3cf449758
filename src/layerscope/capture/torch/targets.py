"""Which modules, parameters and optimizers of a PyTorch training are listened to."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn import UninitializedParameter
from torch.optim import Optimizer

from layerscope.capture.core.framework import Targets
from layerscope.capture.torch.hooks import is_compile_wrapper
from layerscope.errors import ArgumentError, LayerscopeWarning, SelectError
from layerscope.model.patterns import ROOT, listed, selected, unmatched
from layerscope.model.records import Kind, ModuleNode

Choice = str | re.Pattern[str] | type[nn.Module]
Choices = Choice | Iterable[Choice] | None
OF_PARAMETERS = frozenset((Kind.WEIGHT, Kind.WEIGHT_GRAD, Kind.UPDATE, Kind.OPTIMIZER))


class WatchSelection:
    """What the user's words select in a model, looked up anew whenever its modules or parameters were replaced."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: tuple[Optimizer, ...],
        kinds: frozenset[Kind],
        sites: tuple[Choice, ...],
        exclude: tuple[Choice, ...] = (),
    ) -> None:
        self._model = weakref.ref(model)
        self._own = model if type(model) in (nn.Module, Models) else None  # ours: nobody else keeps it alive
        self.optimizers = optimizers  # none given: whichever steps
        self.kinds = kinds
        self._sites = sites
        self._exclude = exclude
        self._members: list[object] = []
        self._targets: Targets | None = None

    @property
    def model(self) -> nn.Module:
        """The model; an empty module once nobody else keeps it alive."""
        model = self._model()
        if model is None:
            self._own = model = nn.Module()
            self._model = weakref.ref(model)
        return model

    @property
    def is_bare(self) -> bool:
        """Whether there is no model: only what the user names is recorded."""
        return type(self.model) is nn.Module

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The models of the user."""
        if self.is_bare:
            return ()
        return tuple(self.model.children()) if isinstance(self.model, Models) else (self.model,)

    @property
    def is_training(self) -> bool:
        """Whether the model, or any of several, is in training mode."""
        roots = () if self._targets is None else self._targets.roots
        return any(root.training for root in roots) if roots else self.model.training

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """All parameters of the model, each once."""
        return self.model.named_parameters()

    def module_nodes(self) -> tuple[ModuleNode, ...]:
        """The modules in the order of registration."""
        return module_nodes(self.model)

    def targets(self) -> Targets:
        """The modules, parameters and buffers as they are now."""
        members = _members(self.model)
        if self._targets is None or not _same(members, self._members):
            modules = {path or ROOT: module for path, module in self.model.named_modules()}
            parameters: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
            buffers: dict[str, Tensor] = dict(self.model.named_buffers(remove_duplicate=False))
            names = [*modules, *parameters, *buffers]
            chosen = _chosen(self._sites, modules, names) - _chosen(self._exclude, modules, names)
            roots = _roots(self.model)
            self._targets = Targets(
                members=_weak(modules.items()),
                modules=_weak((path, module) for path, module in modules.items() if path in chosen),
                parameters=_by_tensor(parameters, chosen),
                buffers=_by_tensor(buffers, chosen),
                kinds=self.kinds,
                roots=_weak((path, module) for path, module in modules.items() if module in roots),
            )
            self._members = members
        return self._targets


def _by_tensor(tensors: Mapping[str, Tensor], chosen: set[str]) -> dict[Tensor, tuple[str, ...]]:
    """The chosen names of each tensor."""
    names: dict[Tensor, tuple[str, ...]] = {}
    for name, tensor in tensors.items():
        if name in chosen:
            names[tensor] = (*names.get(tensor, ()), name)
    return names


def _chosen(choices: tuple[Choice, ...], modules: Mapping[str, nn.Module], names: list[str]) -> set[str]:
    """The names that are chosen; a module stands for its own parameters and buffers too."""
    chosen: set[str] = set()
    for choice in choices:
        chosen |= _hits(choice, modules, names)
    return chosen | {name for name in names if name not in modules and (name.rpartition(".")[0] or ROOT) in chosen}


def _hits(choice: Choice, modules: Mapping[str, nn.Module], names: list[str]) -> set[str]:
    if not isinstance(choice, type):
        return selected([choice], names)
    return {path for path, module in modules.items() if isinstance(module, choice)}


def _weak(named: Iterable[tuple[str, nn.Module]]) -> Mapping[nn.Module, str]:
    return weakref.WeakKeyDictionary({module: path for path, module in named})


def _members(model: nn.Module) -> list[object]:
    """All modules (by weak reference), parameters and buffers in some order; torch's own walk takes ten times as long.

    A module has one weak reference for as long as that is referenced, so it can be compared by identity.
    """
    members: list[object] = []
    waiting: list[nn.Module | None] = [model]
    seen: set[nn.Module | None] = {None}
    while waiting:
        module = waiting.pop()
        if module not in seen:
            assert module is not None
            seen.add(module)
            members.append(weakref.ref(module))
            members += module._parameters.values()
            members += module._buffers.values()
            waiting += module._modules.values()
    return members


def _roots(model: nn.Module) -> tuple[nn.Module, ...]:
    """The model itself; of a container without a forward, and of several models, the outermost that have one."""
    if type(model).forward is not nn.Module.forward or "forward" in vars(model):
        return (model,)
    roots = dict.fromkeys(root for part in model.children() for root in _roots(part))
    inside = {part for root in roots for part in root.modules() if part is not root}
    return tuple(root for root in roots if root not in inside)


def _same(one: list[object], other: list[object]) -> bool:
    return len(one) == len(other) and all(map(lambda a, b: a is b, one, other))


class Models(nn.Module):
    """Several models that are watched under their names: a container whose own forward is never called.

    It does not keep them alive, and no attribute of a module stands in the way of a name.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._modules = weakref.WeakValueDictionary(models)  # type: ignore[assignment]  # used like a dict


def _one_model(model: object) -> nn.Module:
    """The model, or several of them in one; what `torch.compile` was put around instead of its wrapper."""
    if isinstance(model, Mapping):
        for name in model:
            if not isinstance(name, str) or not name or not {".", "#", "@"}.isdisjoint(name) or name == ROOT:
                raise ArgumentError(
                    f"watch() cannot call a model {name!r}: a name is text without '.', '#' and '@'. Rename it."
                )
            if not isinstance(model[name], nn.Module):
                raise ArgumentError(
                    f"watch() got {type(model[name]).__name__} as {name!r}. Give a torch.nn.Module for each name."
                )
        models = {name: _one_model(one) for name, one in model.items()}
        names = {one: name for name, one in models.items()}
        twice = [name for name, one in models.items() if names[one] != name]
        if twice:
            raise ArgumentError(f"watch() got one model under two names, {twice[0]!r} and {names[models[twice[0]]]!r}.")
        if not models:
            raise ArgumentError(
                "watch() got an empty dictionary of models. Give at least one: {'generator': generator}."
            )
        return Models(models)
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"watch() needs a torch.nn.Module, or a dictionary of them by name, not {type(model).__name__}. Give the "
            "model itself."
        )
    return model._orig_mod if is_compile_wrapper(model) else model  # type: ignore[return-value]  # a module too


def choose(
    model: nn.Module | Mapping[str, nn.Module] | None,
    optimizer: Optimizer | Iterable[Optimizer] | None,
    kinds: Choices,
    sites: Choices,
    exclude: Choices = (),
) -> WatchSelection:
    """The selection that the user's words make; an error if they select nothing."""
    if model is None:
        model, optimizer = nn.Module(), None  # whichever optimizer steps
    model = _one_model(model)
    modules = {path or ROOT: module for path, module in model.named_modules()}
    tensors = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    names = [*modules, *(name for named in tensors for name, _ in named)]
    for choice in (*choices(sites), *choices(exclude)):
        if choice != "*" and not _hits(choice, modules, names):
            raise SelectError(_missed(choice, modules, names))
    selection = WatchSelection(model, _optimizers(optimizer), _kinds(kinds), choices(sites), choices(exclude))
    targets = selection.targets()
    of_modules = targets.modules and targets.kinds - OF_PARAMETERS
    of_parameters = targets.parameters and targets.kinds & OF_PARAMETERS
    of_buffers = targets.buffers and Kind.BUFFER in targets.kinds
    if not (of_modules or of_parameters or of_buffers):
        raise SelectError(
            f"Nothing would be recorded: sites={sites!r} and kinds={kinds!r} leave no module or parameter."
        )
    if not selection.is_bare:
        _warn_of_strangers(model, selection.optimizers)
    return selection


def choices(words: Choices, what: str = "site") -> tuple[Choice, ...]:
    """The user's words as a tuple, whether one or several were given; lists may hold lists."""
    return listed(words, what)


def _missed(choice: Choice, modules: Mapping[str, nn.Module], names: list[str]) -> str:
    """The error of a choice that selects nothing."""
    if not isinstance(choice, type):
        return unmatched(choice, names, "site")
    classes = sorted({type(module).__name__ for module in modules.values()})
    return f"No module is a {choice.__name__}. There are: {', '.join(classes)}."


def _optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> tuple[Optimizer, ...]:
    several = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    for one in several:
        if not isinstance(one, Optimizer):
            raise ArgumentError(f"watch() needs a torch.optim.Optimizer, or several, not {type(one).__name__}.")
    return several


def _warn_of_strangers(model: nn.Module, optimizers: tuple[Optimizer, ...]) -> None:
    trained = {
        parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    }
    if trained and trained.isdisjoint(model.parameters()):
        warnings.warn(
            "The optimizer holds none of the model's parameters: their gradients are read when the step ends instead. "
            "Give the optimizer that trains this model.",
            LayerscopeWarning,
            stacklevel=4,
        )


def _kinds(kinds: Choices) -> frozenset[Kind]:
    names = [kind.value for kind in Kind]
    chosen: set[str] = set()
    for choice in ("*",) if kinds == "all" else choices(kinds, "kind"):
        hits = set() if isinstance(choice, type) else _hits(choice, {}, names)
        if not hits:
            word = choice.pattern if isinstance(choice, re.Pattern) else choice
            raise SelectError(f"No kind matches {word!r}. There are: {', '.join(names)}, or 'all'.")
        chosen |= hits
    return frozenset(map(Kind, chosen))


def module_nodes(model: nn.Module) -> tuple[ModuleNode, ...]:
    """The model's modules with class, own parameters and details."""
    return tuple(
        ModuleNode(
            path=path or ROOT,
            class_name=type(module).__name__,
            parameters=sum(_elements(parameter) for parameter in module.parameters(recurse=False)),
            detail=module.extra_repr(),
        )
        for path, module in model.named_modules()
    )


def _elements(parameter: Tensor) -> int:
    """How many elements a parameter has; a lazy module's have none before its first forward."""
    return 0 if isinstance(parameter, UninitializedParameter) else parameter.numel()
