"""Facts about torch's functions: their names, what they write, whether they draw random numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket

from layerscope.capture.torch.tensor_tree import tensors_of

Function = Callable[..., Any]  # Any: torch's functions have arbitrary arguments and results
Arguments = Mapping[str, Any]

_IN_PLACE_OPERATORS = frozenset(
    f"__i{name}__"
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()  # noqa: SIM905
)
_RANDOM = re.compile(
    r"""rand(n|int|perm)?(_like)? | normal | bernoulli | multinomial | poisson | binomial | rrelu | gumbel_softmax
    | .*dropout\d?d? | fractional_max_pool.* | random | uniform | exponential | cauchy | geometric | log_normal
    | lstm | gru | rnn_(tanh|relu) | multi_head_attention_forward | scaled_dot_product_attention
    | (trunc|kaiming|xavier)_.* | orthogonal | sparse | _?sample_dirichlet | _?standard_gamma""",
    re.VERBOSE,
)
_QUERY = re.compile(
    r"""shape | dtype | device | layout | size | n?dim | numel | nelement | stride | storage_offset | names | itemsize
    | nbytes | requires_grad_? | grad_fn | is_leaf | _version | retain_grad | register_.*hook | output_nr | _base
    | (is|has)_(?!inf|nan).* | _is_view | data_ptr | element_size | get_device | (untyped_|_typed_)?storage
    | item | tolist | numpy | __(len|bool|int|float|index|contains|hash|repr|format|array|dlpack|deepcopy)__
    | _backward_hooks | _set_grad_enabled | backward | set_(?!data$).+ | (sparse|dense)_dim | _nnz | result_type
    | can_cast | promote_types | allclose | equal""",
    re.VERBOSE,
)
#: Arguments written although neither name nor `inplace` shows it: running statistics, weights renormed by max_norm.
_SIDE_WRITES: Mapping[str, Callable[[Arguments], Sequence[object]]] = {
    "batch_norm": lambda a: (a.get("running_mean"), a.get("running_var")) if a.get("training") else (),
    "instance_norm": lambda a: (a.get("running_mean"), a.get("running_var")) if a.get("use_input_stats", True) else (),
    "embedding": lambda a: (a.get("weight"),) if a.get("max_norm") is not None else (),
    "embedding_bag": lambda a: (a.get("weight"),) if a.get("max_norm") is not None else (),
}
#: Positional parameters of builtins whose written arguments or random numbers depend on them.
_BUILTIN_PARAMETERS = {
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"), ("input", "p", "training")
    ),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
    "instance_norm": ("input", "weight", "bias", "running_mean", "running_var", "use_input_stats"),
}


@dataclass(frozen=True, slots=True, eq=False)
class FunctionFacts:
    """Facts about one function, independent of a call."""

    name: str  # "conv2d", "add" for `add_`, `__iadd__` and `__radd__` alike
    in_place: bool = False  # writes its first argument
    is_random: bool = False  # may draw random numbers
    is_query: bool = False  # returns no tensor and changes none: `.shape`
    leaves_torch: bool = False  # returns values that may be processed outside torch
    inplace_at: int | None = None  # position of its `inplace` parameter
    side_writes: Callable[[Arguments], Sequence[object]] | None = None
    parameters: tuple[str, ...] = ()  # names of the positional parameters, if known
    mutates: tuple[int | str, ...] = ()  # arguments that the operator's schema marks as written
    may_write: bool = False  # the written arguments depend on the call


@lru_cache(maxsize=8192)
def facts(function: Function) -> FunctionFacts:
    """Facts about a function, cached."""
    raw = raw_name(function)
    name = plain_name(raw)
    parameters = _parameters(function, name)
    in_place = (
        raw in _IN_PLACE_OPERATORS
        or raw in ("__setitem__", "set_data")
        or (raw.endswith("_") and not raw.endswith("__"))
    )
    mutates = _mutated(function, raw)
    return FunctionFacts(
        name=name,
        in_place=in_place,
        is_random=_RANDOM.fullmatch(name) is not None,
        is_query=_QUERY.fullmatch(raw) is not None,
        leaves_torch=raw in ("numpy", "tolist", "__array__", "__dlpack__"),
        inplace_at=parameters.index("inplace") if "inplace" in parameters else None,
        side_writes=_SIDE_WRITES.get(name),
        parameters=parameters,
        mutates=mutates,
        may_write=in_place or bool(mutates) or "inplace" in parameters or name in _SIDE_WRITES,
    )


@lru_cache(maxsize=1024)
def source(name: str) -> FunctionFacts:
    """Facts of a node without a function: an input, a constant, an output, a module that is not opened."""
    return FunctionFacts(name)


def raw_name(function: Function) -> str:
    """The name of a function; for a property, its name when read, and `set_` with its name when set."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name in ("__get__", "__set__", "__delete__"):
        attribute = str(getattr(getattr(function, "__self__", None), "__name__", name))
        return attribute if name == "__get__" else f"set_{attribute}"
    return name.split(".")[0]  # an overload such as `relu.default`


def plain_name(raw: str) -> str:
    """The name without underscores and operator prefixes.

    >>> [plain_name(raw) for raw in ("__radd__", "relu_", "__getitem__", "max_pool2d", "__iadd__")]
    ['add', 'relu', 'getitem', 'max_pool2d', 'add']
    """
    if raw in _IN_PLACE_OPERATORS:
        return raw[3:-2]
    if raw.startswith("__") and raw.endswith("__"):
        inner = raw[2:-2]
        reflected = inner[1:] if inner.startswith("r") and hasattr(Tensor, f"__{inner[1:]}__") else inner
        return {"truediv": "div", "invert": "bitwise_not"}.get(reflected, reflected)
    return raw.rstrip("_") if raw.endswith("_") else raw


def random_state_of(known: FunctionFacts, args: Sequence[Any], kwargs: Arguments) -> Tensor | None:
    """The state that a call draws its random numbers from; None if its arguments say that it draws none."""
    if known.name == "scaled_dot_product_attention":
        draws = bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    else:
        at = known.parameters.index("training") if "training" in known.parameters else None
        draws = at is None or _argument(at, "training", args, kwargs) is not False
    generator: torch.Generator = kwargs.get("generator") or torch.default_generator
    return generator.get_state() if draws else None


def writes_first(known: FunctionFacts, args: Sequence[Any], kwargs: Arguments) -> bool:
    """Whether a call works in place, by its name or by its `inplace` argument."""
    asked = known.inplace_at is not None and _argument(known.inplace_at, "inplace", args, kwargs) is True
    return known.in_place or asked


def writes(known: FunctionFacts, args: Sequence[Any], kwargs: Arguments) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that the call will write: requested ones, and ones changed as a side effect."""
    written: list[object] = []
    side: list[object] = []
    if writes_first(known, args, kwargs):
        written.append(args[0] if args else next(iter(kwargs.values()), None))
    if "out" in kwargs:
        written.append(kwargs["out"])
    if known.side_writes is not None:
        side.extend(known.side_writes({**dict(zip(known.parameters, args, strict=False)), **kwargs}))
    written.extend(_argument(at, at, args, kwargs) for at in known.mutates)
    return tensors_of(written), tensors_of(side)


def _argument(at: int | str, name: int | str, args: Sequence[object], kwargs: Arguments) -> object:
    if isinstance(at, int) and at < len(args):
        return args[at]
    return kwargs.get(str(name))


def _parameters(function: Function, name: str) -> tuple[str, ...]:
    if not inspect.isfunction(function):  # builtins have no signature
        return _BUILTIN_PARAMETERS.get(name, ())
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _mutated(function: Function, raw: str) -> tuple[int | str, ...]:
    """Arguments that the operator's schema marks as written; `out` is found by name."""
    if isinstance(function, OpOverload):
        schemas = [function._schema]
    elif isinstance(function, OpOverloadPacket):
        schemas = torch._C._jit_get_schemas_for_operator(function._qualified_op_name)
    elif inspect.isfunction(function) or raw.endswith("__"):
        return ()
    else:
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{raw}")
    written = {
        argument.name if argument.kwarg_only else at: None
        for schema in schemas
        if schema.is_mutable
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        if argument.name != "out" and "out" not in schema.overload_name
    }
    return tuple(at for at in written if at != 0 or not raw.endswith("_"))  # the name shows that the first is written


_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@lru_cache(maxsize=1024)
def opened(function: Function) -> Function | None:
    """A clone whose inner calls are visible; None for a function that is not a composite."""
    if not isinstance(function, FunctionType):
        return None
    names = set(function.__code__.co_names)
    asked: dict[str, Any] = {
        name: lambda *tensors: False for name in _ASKS if name in names and name in function.__globals__
    }
    if not asked:
        return None
    clone = FunctionType(
        function.__code__,
        {**function.__globals__, **asked},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


_ATTENTION = ("query", "key", "value")


def may_take_fused_path(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the module must run untraced to compute the same result as without a tracer.

    A needless yes hides some calls and does no other harm.
    """
    if module.training:
        return False
    if isinstance(module, nn.MultiheadAttention):
        given = [*args[:3], *(kwargs[name] for name in _ATTENTION if name in kwargs)]
        wanted = len(given) == 3 and given[0] is given[1] is given[2]
    elif isinstance(module, nn.TransformerEncoder):  # packs padded sequences into nested tensors
        wanted = (kwargs.get("src_key_padding_mask") if len(args) < 3 else args[2]) is not None
    else:
        wanted = isinstance(module, nn.TransformerEncoderLayer)
    if not wanted or not torch.is_grad_enabled():
        return wanted
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return not any(tensor.requires_grad for tensor in (*tensors, *module.parameters()))
