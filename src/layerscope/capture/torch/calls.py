"""Calls of modules in progress: which module, at which site, in which thread."""

from __future__ import annotations

import threading
from types import FrameType

import torch
from torch import nn

from layerscope.capture.torch.contexts import State
from layerscope.capture.torch.gradients import Consumers, Edge, Flow
from layerscope.capture.torch.intake import Place
from layerscope.capture.torch.structure import Key, TracedForward
from layerscope.records import Kind, Mode, Reading


class Call:
    """One call of a module of the model, in progress."""

    __slots__ = (
        *("again", "before", "context", "first_node", "inputs", "inside"),
        *("is_new", "module", "names", "parent", "site", "waits"),
    )

    def __init__(self, module: nn.Module, site: str, parent: str) -> None:
        self.module = module
        self.site = site
        self.context = ""  # the name that the training loop gave the forward
        self.before: State | None = None  # the context to go back to, of a call that is computed again
        self.parent = parent  # site of the call around it, "" for an outermost one
        self.is_new = False  # whether the graph of calls lacks it
        # Checkpointing computes it a second time, while backward runs: its values were read the first time.
        self.again = torch._C._current_graph_task_id() != -1
        self.first_node: int = torch._C._autograd._get_sequence_nr()  # what autograd will number the next node
        self.waits = False  # for the module's own hooks, which may replace what comes out
        self.inputs: list[tuple[Edge, Place]] = []
        self.inside: dict[Consumers, Flow] = {}
        self.names: dict[str, int] = {}

    @property
    def mode(self) -> Mode:
        """Whether the module is training."""
        return Mode.TRAIN if self.module.training else Mode.EVAL

    def place(self, port: str, kind: Kind, reading: Reading = Reading.FORWARD) -> Place:
        """The place of a tensor that the call takes or gives, or of its gradient."""
        return Place(self.site, port, kind, self.mode, reading, self.context)


class Thread(threading.local):
    """The calls in progress on one thread, and which module was called how often in the outermost of them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: dict[nn.Module, int] = {}
        self.order: list[Key] = []  # the calls inside the outermost one so far, and tensors named in them
        self.forward: TracedForward | None = None
        self.frame: FrameType | None = None  # where the outermost module was called, while it runs
        self.muted = 0  # calls in progress that are not read: a forward, and those inside it
        self.told: dict[tuple[nn.Module, str], int] = {}  # the same inside compiled regions, by port


def is_below(frame: FrameType | None, other: FrameType) -> bool:
    """Whether the other frame is on the way from the frame down to where the thread began."""
    while frame is not None and frame is not other:
        frame = frame.f_back
    return frame is not None
