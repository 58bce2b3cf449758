"""Memory of tensors: which bytes a tensor covers, overlapping views, kept values and writes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

ALIGNED = 64  # alignment of copies, so that vector kernels split them like the original

#: Identity of a tensor's memory. Unlike `untyped_storage()` it creates no Python object.
storage_id: Callable[[Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]  # missing from torch's stubs


class MemorySpan(NamedTuple):
    """The region of memory that a strided tensor covers."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements

    @property
    def extent(self) -> tuple[int, int]:
        """First byte and the byte after the last."""
        if 0 in self.shape:
            return 0, 0
        first = self.offset * self.dtype.itemsize
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return first, first + (reach + 1) * self.dtype.itemsize


def storage_of(tensor: Tensor) -> int:
    """Identity of the tensor's memory; for a tensor without its own memory (sparse, nested …) its own identity."""
    try:
        return storage_id(tensor)
    except (NotImplementedError, RuntimeError):
        inner = unwrapped(tensor)
        return -id(tensor) if inner is tensor else storage_of(inner)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside functorch's wrappers, such as those of vmap; the tensor itself if it has none."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is a plain strided tensor."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg())
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not is_functorch_wrapped_tensor(tensor)
    )


def span_of(tensor: Tensor) -> MemorySpan | None:
    """The span of the tensor; None if unknown."""
    if not is_plain(tensor):
        return None
    return MemorySpan(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def is_cut(tensor: Tensor) -> bool:
    """Whether the tensor's memory was made too small for it: reading it would be out of bounds."""
    span = span_of(tensor)
    return span is not None and span.extent[1] > tensor.untyped_storage().nbytes()


def overlap(one: MemorySpan, other: MemorySpan) -> bool:
    """Whether the two may overlap."""
    (start, end), (other_start, other_end) = one.extent, other.extent
    return start < other_end and other_start < end


def covers(one: MemorySpan, other: MemorySpan) -> bool:
    """Whether the first certainly covers every byte of the other."""
    (start, end), (other_start, other_end) = one.extent, other.extent
    dense = math.prod(one.shape) * one.dtype.itemsize == end - start
    return dense and start <= other_start and other_end <= end


@torch.no_grad()
def update(
    old: Tensor | None, written: tuple[Tensor, ...], at: tuple[Any, ...], written_at: tuple[tuple[Any, ...], ...]
) -> Tensor:
    """A tensor after other views of its memory were written; spans are plain tuples.

    `old` is None if the first of the writes covers the tensor.
    """
    span, spans = MemorySpan(*at), [MemorySpan(*other) for other in written_at]
    extents = [each.extent for each in (span, *spans)]
    start = min(first for first, _ in extents) // ALIGNED * ALIGNED
    size = max(max(last for _, last in extents) - start, 0)
    memory = torch.zeros(size, dtype=torch.uint8, device=written[0].device)
    if old is not None:
        _write(memory, start, span, old)
    for values, other in zip(written, spans, strict=True):
        _write(memory, start, other, values)
    return view_at(memory, span, start)


def alias(tensor: Tensor, at: tuple[Any, ...], other_at: tuple[Any, ...]) -> Tensor:
    """Another view of a tensor's memory; both spans are plain tuples."""
    return update(None, (tensor,), other_at, (at,))


def view_at(memory: Tensor, span: MemorySpan, start: int) -> Tensor:
    """A tensor at its offset in a copy of its memory that begins at byte `start`."""
    offset = span.offset - start // span.dtype.itemsize if 0 not in span.shape else 0
    empty = torch.empty(0, dtype=span.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), offset, span.shape, span.stride)


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same layout and `requires_grad`."""
    return copies_of([tensor])[0]


def copies_of(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of tensors that share memory; the copies share memory in the same way."""
    # The user's modes must not see our copies.
    outside = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
    with outside, torch.no_grad(), torch._C.DisableTorchFunction():
        spans = [span_of(tensor) for tensor in tensors]
        known = [span.extent for span in spans if span is not None and 0 not in span.shape]
        if not known:
            return [_marked(tensor.detach().clone(), tensor) for tensor in tensors]
        start = min(first for first, _ in known) // ALIGNED * ALIGNED
        end = max(last for _, last in known)
        sample = next(t for t, span in zip(tensors, spans, strict=True) if span and 0 not in span.shape)
        whole = torch.empty(0, dtype=torch.uint8, device=sample.device)
        memory = whole.set_(sample.untyped_storage(), start, (end - start,), (1,)).clone()
        return [
            _marked(tensor.detach().clone() if span is None else view_at(memory, span, start), tensor)
            for tensor, span in zip(tensors, spans, strict=True)
        ]


def _marked(copied: Tensor, original: Tensor) -> Tensor:
    kind = type(original)
    if kind not in (Tensor, torch.nn.Parameter) and type(copied) is Tensor and issubclass(kind, Tensor):
        copied = copied.as_subclass(kind)
    if original.requires_grad and not copied.is_inference():
        copied.requires_grad_()
    return copied


def _write(memory: Tensor, start: int, span: MemorySpan, values: Tensor) -> None:
    """Copy values to their position; for an expanded dimension only the first element."""
    single = tuple(1 if stride == 0 else size for size, stride in zip(span.shape, span.stride, strict=True))
    for dimension, size in enumerate(single):
        values = values.narrow(dimension, 0, min(size, values.shape[dimension]))
    view_at(memory, span._replace(shape=single), start).copy_(values)


NO_VERSION = -1  # version of tensors made in inference mode: torch does not count their changes


class Write(NamedTuple):
    """One write to memory: the node whose call wrote it, and the region."""

    node: int
    span: MemorySpan | None  # None if only the call knows what it wrote: running statistics


def version_of(tensor: Tensor) -> int:
    """How often torch has changed the tensor's memory."""
    try:
        return tensor._version
    except RuntimeError:
        return NO_VERSION


class SavedValues:
    """Which tensor is which node; values kept by reference; the writes seen so far."""

    def __init__(self) -> None:
        self.values: dict[int, Tensor] = {}  # node → its value
        self.unproven: set[int] = set()  # kept values overwritten by an unobserved writer
        self.versions: list[int] = []  # version of each node's tensor when it was computed
        self.writes: dict[int, list[Write]] = {}  # by memory
        self._nodes: dict[int, int] = {}  # identity of a tensor → its node
        self._refs: dict[int, weakref.ref[Tensor]] = {}  # tensors not in `values`, by identity
        self._kept: dict[int, int | list[int]] = {}  # memory → the node, or nodes, kept by reference
        self._owners: dict[int, int] = {}  # memory → identity of the last tensor, if values are not kept
        self._inner: dict[int, tuple[StorageWeakRef, int]] = {}  # memory inside functorch's wrappers → node
        self._copied: dict[int, int] = {}  # node → version of the copy of its value
        self._seen: dict[int, int] = {}  # node → the last write to its memory that its value contains

    def add(self, node: int, tensor: Tensor, *, keep: bool, track: bool = True) -> None:
        """Remember a new node's tensor."""
        try:
            self.versions.append(tensor._version)
        except RuntimeError:
            self.versions.append(NO_VERSION)
        try:
            memory = storage_id(tensor)
        except (NotImplementedError, RuntimeError):
            memory = self._add_odd(node, tensor)
            keep = keep and not is_functorch_wrapped_tensor(tensor)
        identity = id(tensor)
        if track:
            self._nodes[identity] = node
        if keep:
            self.values[node] = tensor
            others = self._kept.get(memory)
            if others is None:
                self._kept[memory] = node
            elif isinstance(others, int):
                self._kept[memory] = [others, node]
            else:
                others.append(node)
        elif track:
            self._refs[identity] = weakref.ref(tensor)
            self._owners[memory] = identity

    def node_of(self, tensor: Tensor) -> int | None:
        """The tensor's node."""
        identity = id(tensor)
        node = self._nodes.get(identity)
        if node is None or self.values.get(node) is tensor:
            return node
        ref = self._refs.get(identity)
        return node if ref is not None and ref() is tensor else None

    def give_back(self, tensor: Tensor, borrower: int, maker: int) -> None:
        """Map the tensor to its creator's node again, if it still maps to the borrower."""
        if self._nodes.get(id(tensor)) == borrower:
            self._nodes[id(tensor)] = maker

    def neighbor_of(self, tensor: Tensor) -> int | None:
        """The last node whose memory the tensor shares."""
        memory = storage_of(tensor)
        if (nodes := self._kept.get(memory)) is not None:
            return nodes if isinstance(nodes, int) else nodes[-1]
        if (identity := self._owners.get(memory)) is not None:
            owner = self._refs[identity]()
            if owner is not None and storage_of(owner) == memory:
                return self._nodes[identity]
        inner = self._inner.get(memory)
        if inner is not None and not inner[0].expired():
            return inner[1]
        return None

    def before_write(self, tensors: list[Tensor]) -> None:
        """Copy kept values in memory that is about to be written."""
        for tensor in tensors:
            kept = self._kept.pop(storage_of(tensor), None)
            if kept is None:
                continue
            nodes = [kept] if isinstance(kept, int) else kept
            originals = [self.values[node] for node in nodes]
            for node, original, copied in zip(nodes, originals, copies_of(originals), strict=True):
                self.values[node] = copied
                self._copied[node] = version_of(copied)
                if self._nodes.get(id(original)) == node:
                    self._refs[id(original)] = weakref.ref(original)

    def after_write(self, node: int, tensor: Tensor, *, known: bool = True) -> None:
        """Record that a node's call wrote the tensor's memory; `known`: that the whole tensor was written."""
        writes = self.writes.setdefault(storage_of(tensor), [])
        span = span_of(tensor) if known else None
        if writes and writes[-1].span == span and span is not None:
            writes.pop()  # overwritten
        writes.append(Write(node, span))

    def unseen_writes(self, node: int, tensor: Tensor) -> list[Write]:
        """Writes to the tensor's memory after its node; nodes are numbered in the order of execution."""
        writes = self.writes.get(storage_of(tensor))
        if not writes or writes[-1].node <= (seen := self._seen.get(node, node)):
            return []
        return [write for write in writes if write.node > seen]

    def refresh(self, node: int, tensor: Tensor) -> None:
        """Record that the writes so far did not touch the node's region."""
        self.versions[node] = version_of(tensor)
        self._seen[node] = len(self.versions)

    def stale(self) -> frozenset[int]:
        """Nodes whose kept value has changed since it was computed."""
        moved = {
            node
            for node, value in self.values.items()
            if version_of(value) != self._copied.get(node, self.versions[node])
        }
        return frozenset(moved | self.unproven)

    def lost(self) -> frozenset[int]:
        """Nodes whose tensor got other or less memory unobserved, by `set_` or a storage method."""
        return frozenset(
            node
            for memory, nodes in self._kept.items()
            for node in ([nodes] if isinstance(nodes, int) else nodes)
            if id(value := self.values[node]) in self._nodes and (storage_of(value) != memory or is_cut(value))
        )

    def _add_odd(self, node: int, tensor: Tensor) -> int:
        memory = storage_of(tensor)
        if is_functorch_wrapped_tensor(tensor) and memory >= 0:
            inside = StorageWeakRef(unwrapped(tensor).untyped_storage())
            self._inner[memory] = (inside, node)
        return memory
