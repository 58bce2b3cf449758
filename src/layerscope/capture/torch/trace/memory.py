"""The kept values, and the writes to memory they share: what was kept stays as it was when it was computed."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from layerscope.capture.torch.trace.places import (
    Place,
    copies_of,
    is_cut,
    is_wrapper,
    place_of,
    storage_id,
    storage_of,
    unwrapped,
)

NO_VERSION = -1  # of tensors made in inference mode: torch does not count their changes


class Write(NamedTuple):
    """One write to a memory: the node whose call wrote it, and where."""

    node: int
    place: Place | None  # None where only the call knows what it wrote: running statistics


def version_of(tensor: Tensor) -> int:
    """How often torch has changed the tensor's memory."""
    try:
        return tensor._version
    except RuntimeError:
        return NO_VERSION


class Memory:
    """Which tensor is which node; values kept by reference; the writes seen so far."""

    def __init__(self) -> None:
        self.values: dict[int, Tensor] = {}  # node → what it gave
        self.unproven: set[int] = set()  # kept values that something unseen has overwritten
        self.versions: list[int] = []  # of each node's tensor when it was computed
        self.writes: dict[int, list[Write]] = {}  # by memory
        self._nodes: dict[int, int] = {}  # identity of a tensor → its node
        self._refs: dict[int, weakref.ref[Tensor]] = {}  # tensors that are not held in `values`, by identity
        self._kept: dict[int, int | list[int]] = {}  # memory → the node, or nodes, kept by reference
        self._owners: dict[int, int] = {}  # memory → identity of the last tensor, where values are not kept
        self._inner: dict[int, tuple[StorageWeakRef, int]] = {}  # memory inside functorch's wrappers → node
        self._copied: dict[int, int] = {}  # node → version of the copy that was made of its value
        self._seen: dict[int, int] = {}  # node → the last write to its memory that it is known to contain

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
            keep = keep and not is_wrapper(tensor)
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
        """Let the tensor be its maker's node again, if it is still that of the borrower."""
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
        """Copy what is kept of memory that is about to be written."""
        for tensor in tensors:
            found = self._kept.pop(storage_of(tensor), None)
            if found is None:
                continue
            nodes = [found] if isinstance(found, int) else found
            originals = [self.values[node] for node in nodes]
            for node, original, copied in zip(nodes, originals, copies_of(originals), strict=True):
                self.values[node] = copied
                self._copied[node] = version_of(copied)
                if self._nodes.get(id(original)) == node:
                    self._refs[id(original)] = weakref.ref(original)

    def after_write(self, node: int, tensor: Tensor, *, quiet: bool) -> None:
        """Note that a node's call has written the tensor's memory."""
        writes = self.writes.setdefault(storage_of(tensor), [])
        place = None if quiet else place_of(tensor)
        if writes and writes[-1].place == place and place is not None:
            writes.pop()  # written over
        writes.append(Write(node, place))

    def unseen_writes(self, node: int, tensor: Tensor) -> list[Write]:
        """Writes to the tensor's memory since the tensor got its node: nodes are numbered in the order of execution."""
        writes = self.writes.get(storage_of(tensor))
        if not writes or writes[-1].node <= (seen := self._seen.get(node, node)):
            return []
        return [write for write in writes if write.node > seen]

    def refresh(self, node: int, tensor: Tensor) -> None:
        """Note that the writes so far did not touch the node's part of the memory."""
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
        """Nodes whose tensor was given other memory, or less of it, out of our sight: by `set_` or a storage's own."""
        return frozenset(
            node
            for memory, nodes in self._kept.items()
            for node in ([nodes] if isinstance(nodes, int) else nodes)
            if id(value := self.values[node]) in self._nodes and (storage_of(value) != memory or is_cut(value))
        )

    def _add_odd(self, node: int, tensor: Tensor) -> int:
        memory = storage_of(tensor)
        if is_wrapper(tensor) and memory >= 0:
            inside = StorageWeakRef(unwrapped(tensor).untyped_storage())
            self._inner[memory] = (inside, node)
        return memory
