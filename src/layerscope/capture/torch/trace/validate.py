"""Validation: every recorded call is executed again and compared with its saved value."""

from __future__ import annotations

import re
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from layerscope.capture.torch.trace.arguments import holes
from layerscope.capture.torch.trace.execute import (
    ValueNotKept,
    can_perturb,
    difference,
    execute,
    has_values,
    perturbed,
    same,
    undisturbed,
)
from layerscope.capture.torch.trace.gaps import Repeat, find_gaps
from layerscope.capture.torch.trace.op_graph import OpNode, pairs
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.model.trace_record import Operation, TraceRecord

_UNINITIALIZED = re.compile(r"(new_)?empty(_like|_strided|_permuted)?|new|resize(_as)?")
_SOURCES = ("input", "constant")
_DUAL = ("_make_dual", "_unpack_dual")  # functions of forward-mode automatic differentiation
#: Threads of a parallel kernel add in the order in which they arrive; nothing else may differ at all.
TOLERANCE = 1e-6
UNORDERED = frozenset(("index_add", "index_put", "scatter_add", "scatter_reduce", "bincount", "histc", "embedding_bag"))


@dataclass(frozen=True, slots=True)
class ValidationRemark:
    """A remark about one operation."""

    operation: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"operation {self.operation} ({self.function}): {self.text}"


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Result of `validate`; true if nothing was wrong and something could be checked."""

    checked: int  # operations that returned the same values again
    perturbed: int  # parents shown to matter
    without_values: int  # operations on meta or fake tensors: only their structure and shapes could be checked
    resumed: bool  # executing the whole graph from the inputs returned the same outputs
    faults: tuple[ValidationRemark, ...] = ()
    unchecked: tuple[ValidationRemark, ...] = ()  # operations that could not be executed again, with the reason
    ignored: tuple[ValidationRemark, ...] = ()  # parents that made no difference, such as those of `zeros_like`
    tolerated: tuple[
        ValidationRemark, ...
    ] = ()  # differences by rounding: the kernel's order of summation is undefined
    gaps: tuple[ValidationRemark, ...] = ()  # tensors that entered from outside and depend on the inputs, or may
    outside: tuple[ValidationRemark, ...] = ()  # tensors that entered from outside, for which that is unknown

    def __bool__(self) -> bool:
        return not (self.faults or self.without_values or self.gaps) and (self.checked > 0 or not self.unchecked)

    @property
    def complete(self) -> bool:
        """Whether no tensor that depends on the inputs can have entered unobserved."""
        return not (self.gaps or self.outside)

    @property
    def verdict(self) -> str:
        """The result as text."""
        if self.faults:
            return f"WRONG in {len(self.faults)} operations"
        if self.gaps:
            return f"NOT COMPLETE, for {len(self.gaps)} tensors that come from the inputs, or may, entered unseen"
        if not self:
            return "not validated: no saved values (nothing is wrong)"
        return "right" if self.complete else "right, and not complete"

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {self.checked} operations executed again, {self.perturbed} parents shown to matter, "
            f"{len(self.ignored)} that made no difference, {len(self.unchecked)} operations not checked",
            *(f"  {fault}" for fault in (*self.faults, *self.gaps)),
            *(f"  {text}" for text in _together(self.outside)),
            *(f"  not checked: {text}" for text in _together(self.unchecked)),
        ]
        return "\n".join(lines)


def _together(remarks: Sequence[ValidationRemark]) -> Iterator[str]:
    """The remarks as text; equal ones are one line."""
    by_text: dict[str, list[ValidationRemark]] = {}
    for remark in remarks:
        by_text.setdefault(remark.text, []).append(remark)
    for text, same_text in by_text.items():
        first = same_text[0]
        more = f" and {len(same_text) - 1} more" if len(same_text) > 1 else ""
        yield f"operation {first.operation} ({first.function}){more}: {text}"


def validate(
    tracer: Tracer, record: TraceRecord, repeat: Repeat | None = None, *, rerun: bool | None = None
) -> ValidationReport:
    """Execute every operation again, and the whole graph from its inputs; change each parent to check that it matters.

    `repeat` runs the forward again with other inputs, to check which tensors from outside depend on them; `rerun`
    allows it: None allows it for models and methods, which are copied.
    """
    with undisturbed():
        checker = _Checker(tracer, record)
        checker.check_structure()
        for index, node in enumerate(tracer.graph.nodes):
            if node.lead == index:
                checker.check_call(index, node)
        checker.check_stale()
        resumed = checker.check_outputs()
        checker.check_outside(*find_gaps(tracer, repeat, asked=rerun))
    remarks = {name: tuple(remarks) for name, remarks in checker.remarks.items()}
    return ValidationReport(len(checker.right), checker.perturbed, checker.without_values, resumed, **remarks)


class _Checker:
    def __init__(self, tracer: Tracer, record: TraceRecord) -> None:
        self._graph = tracer.graph
        kept, self._lost = tracer.graph.memory.values, tracer.graph.memory.lost()
        self._values = {index: value for index, value in kept.items() if index not in self._lost}
        self._nodes = list(tracer.graph.nodes)
        self._record = record
        self._edited = tracer.ops.editor.edited if tracer.ops.editor is not None else frozenset()
        self._stale = (tracer.graph.memory.stale() | record.stale) - self._lost
        self.right: set[int] = set()  # first nodes of calls that returned the same again
        self.perturbed = 0
        self.without_values = 0
        self.remarks: defaultdict[str, list[ValidationRemark]] = defaultdict(list)  # by the field of the report

    def check_structure(self) -> None:
        """The record matches the graph; every tensor argument is a node, a parameter or a buffer."""
        operations = self._record.operations
        if len(operations) != len(self._nodes):
            self._add("faults", 0, f"the record has {len(operations)} operations, and {len(self._nodes)} were seen")
        for index, (node, operation) in enumerate(zip(self._nodes, operations, strict=False)):
            for text in _structure(index, node, operation):
                self._add("faults", index, text)
            value = self._values.get(index)
            if value is not None and not value.is_nested and tuple(value.shape) != node.shape:
                self._add("faults", index, f"its value has shape {tuple(value.shape)}, and it returned {node.shape}")

    def check_call(self, lead: int, node: OpNode) -> None:
        """One call returns the same again, and something else if a parent changes."""
        if node.function is None:
            if node.facts.name not in (*_SOURCES, "output"):
                self._add("unchecked", lead, "how it came about was not seen")
            return
        if (reason := self._hindrance(lead, node)) is not None:
            self._add("unchecked", lead, reason)
            return
        results = self._again(lead, node)
        if results is None:
            return
        for index, result in enumerate(results, lead):
            if index in self._values and not same(self._values[index], result):
                self._judge(index, node, result)
                return
        if any(has_values(self._values[index]) for index in self._results(lead) if index in self._values):
            self.right.add(lead)
            self._check_parents(lead, node, results)
        else:
            self.without_values += 1
            self._add("unchecked", lead, "its shape is right, and values are not there: it ran on meta or fake tensors")

    def check_stale(self) -> None:
        """A value that torch counts as changed is right only if executing its call again returns it."""
        for index in sorted(self._stale):
            if self._nodes[index].lead not in self.right and has_values(self._values[index]):
                self._add("faults", index, "its value was overwritten after it was kept")

    def check_outputs(self) -> bool:
        """An output equals the value of its parent; returns whether it does, too, when computed from the inputs."""
        again: dict[int, Tensor] = {}
        for lead in sorted(self.right):
            results = execute(self._graph, self._nodes[lead], ChainMap(again, self._values).__getitem__)
            again.update(enumerate(results, lead))
        resumed = True
        for index, node in enumerate(self._nodes):
            if (
                node.facts.name != "output"
                or node.function is not None
                or not node.parents
                or index not in self._values
            ):
                continue
            value, parent = self._values[index], node.parents[1]
            if parent in self._values and not same(value, self._values[parent]):
                self._add("faults", index, f"it differs from operation {parent}, which returned it")
            if not has_values(value):
                resumed = False
            elif parent in again and not same(again[parent], value):
                self._add("faults", index, "it does not come out again when the pass is computed from its inputs")
                resumed = False
        return resumed

    def check_outside(self, dependent: list[int], unknown: dict[int, str]) -> None:
        """Tensors from outside that depend on the inputs, or may, and those without evidence for it."""
        for index in dependent:
            self._entered("gaps", index, "it changes with the inputs of the pass")
        left = self._graph.left_torch
        for index, why in unknown.items():
            if left is not None and left <= index:
                self._entered("gaps", index, f"values had left torch before, by numpy() or the like; {why}")
            else:
                self._entered("outside", index, f"it was not checked whether it depends on the inputs: {why}")

    def _entered(self, field: str, index: int, text: str) -> None:
        where = ""
        user = next((user for user, node in enumerate(self._nodes) if index in node.parents[1::2]), None)
        if user is not None:
            operation = self._record.operations[user]
            path = self._record.calls[operation.call].path
            where = f", as argument of operation {user} ({operation.function}){f' in {path}' if path else ''}"
            where += f" at {operation.frames[0].file}:{operation.frames[0].line}" if operation.frames else ""
        self._add(field, index, f"a tensor entered from outside{where}; {text}")

    def _hindrance(self, lead: int, node: OpNode) -> str | None:
        """Why a call cannot be executed again."""
        if _UNINITIALIZED.fullmatch(node.facts.name):
            return "uninitialized memory holds anything"
        if node.facts.name in _DUAL:
            return "tangents of forward-mode differentiation are gone when its block has ended"
        if not self._lost.isdisjoint(self._results(lead)):
            return "its tensor was given other memory later, and its value is gone"
        if node.facts.name == "grad":
            return "a gradient depends on the backward pass, not on values"
        if not self._edited.isdisjoint(self._results(lead)):
            return "its result was replaced by an edit"
        lost = [parent for parent in dict(pairs(node.parents)).values() if parent not in self._values]
        if lost:
            return f"the value of its parent, operation {lost[0]}, was not kept"
        if not any(index in self._values for index in self._results(lead)):
            return "its own value was not kept"
        return None

    def _again(self, lead: int, node: OpNode) -> list[Tensor] | None:
        try:
            results = execute(self._graph, node, self._values.__getitem__)
        except ValueNotKept as error:
            self._add("unchecked", lead, str(error))
        except Exception as error:  # noqa: BLE001  whatever it raises now, it did not the first time
            self._add("faults", lead, f"executed again it raised {type(error).__name__}: {error}")
        else:
            if len(results) == len(self._results(lead)):
                return results
            self._add(
                "faults",
                lead,
                f"it returned {len(self._results(lead))} tensors, and {len(results)} when executed again",
            )
        return None

    def _judge(self, wrong: int, node: OpNode, result: Tensor) -> None:
        """A result that differs: rounding of the kernel, or an error."""
        lead = node.lead
        again = execute(self._graph, node, self._values.__getitem__)
        if not same(again[wrong - lead], result):
            self._add("unchecked", lead, "it returns something else each time it is executed")
            return
        gap = difference(self._values[wrong], result)
        if node.facts.name in UNORDERED and gap <= TOLERANCE:
            self._add("tolerated", wrong, f"differs by {gap:.1e} in the order of adding")
            self.right.add(lead)
        else:
            self._add(
                "faults",
                wrong,
                f"executed again from its parents it returns other values (relative difference {gap:.1e})",
            )

    def _check_parents(self, lead: int, node: OpNode, results: list[Tensor]) -> None:
        parents = dict(pairs(node.parents))
        for parent in dict.fromkeys(parents.values()):
            at = ", ".join(argument for argument, other in parents.items() if other == parent)
            if not can_perturb(self._values[parent], node.facts.name):
                self._add("ignored", lead, f"argument {at} was not changed: it has no plain values")
            elif any(self._changes(node, parent, other, results) for other in perturbed(self._values[parent])):
                self.perturbed += 1
            else:
                self._add("ignored", lead, f"argument {at} made no difference")

    def _changes(self, node: OpNode, parent: int, other: Tensor, results: list[Tensor]) -> bool:
        def value_of(index: int) -> Tensor:
            return other if index == parent else self._values[index]

        try:
            changed = execute(self._graph, node, value_of)
        except Exception:  # noqa: BLE001  a value that the call refuses does matter to it
            return True
        return len(changed) != len(results) or not all(map(same, changed, results))

    def _results(self, lead: int) -> list[int]:
        end = lead
        while end < len(self._nodes) and self._nodes[end].lead == lead:
            end += 1
        return list(range(lead, end))

    def _add(self, field: str, index: int, text: str) -> None:
        self.remarks[field].append(ValidationRemark(index, self._name(index), text))

    def _name(self, index: int) -> str:
        return self._nodes[index].facts.name if index < len(self._nodes) else "?"


def _structure(index: int, node: OpNode, operation: Operation) -> Iterator[str]:
    parents, externals = dict(pairs(node.parents)), dict(pairs(node.externals))
    given, tensors = holes(node.args, node.kwargs)
    if tensors:
        yield f"{len(tensors)} of its arguments are tensors without a node"
    if set(given) != parents.keys() | externals.keys():
        yield f"its tensor arguments are {given}, and its parents and parameters are those of {[*parents, *externals]}"
    if any(parent >= index for parent in parents.values()):
        yield "it comes before one of its parents"
    if [(parent.argument, parent.operation) for parent in operation.parents] != [*parents.items()]:
        yield "the record names other parents than were seen"
