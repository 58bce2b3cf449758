"""Passes made by hand, in the form a capture gives them: no framework needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from layerscope.graph.layers import Naming, name_layers
from layerscope.model.trace_record import ModuleCallRecord, Operation, ParameterRecord, Parent, Role, TraceRecord


class Pass:
    """A pass in the making: enter modules, add operations, ask for the record."""

    def __init__(self, model: str = "Net", shape: tuple[int, ...] = (8, 64)) -> None:
        self._model, self._shape = model, shape
        self._operations: list[Operation] = []
        self._calls: list[tuple[str, int, int | None, str]] = [("", 1, None, model)]
        self._open = [0]
        self._counts: dict[str, int] = {"": 1}
        self._within = [0]  # operations so far in each open call
        self._parameters: dict[str, ParameterRecord] = {}
        self._sites: dict[object, int] = {}

    @contextmanager
    def module(self, path: str, class_name: str = "Module") -> Iterator[None]:
        """What happens in it belongs to one call of the module."""
        self._counts[path] = self._counts.get(path, 0) + 1
        self._calls.append((path, self._counts[path], self._open[-1], class_name))
        self._open.append(len(self._calls) - 1)
        self._within.append(0)
        yield
        self._open.pop()
        self._within.pop()

    def layer(self, path: str, function: str, *parents: int, class_name: str | None = None) -> int:
        """One operation with a weight, in a module of its own."""
        with self.module(path, class_name or function.capitalize()):
            return self.op(function, *parents, parameters=(f"{path}.weight",))

    def op(
        self,
        function: str,
        *parents: int,
        parameters: tuple[str, ...] = (),
        place: object = None,
        role: Role = Role.OPERATION,
    ) -> int:
        """One operation on earlier ones; equal places are the same line of a loop."""
        call = self._open[-1]
        path = self._calls[call][0]
        place = (path, self._within[-1]) if place is None else (path, "loop", place)
        self._within[-1] += 1
        for name in parameters:
            self._parameters[name] = ParameterRecord(name, (64, 64), "float32", 64 * 64 * 4, trainable=True)
        index = len(self._operations)
        self._operations.append(
            Operation(
                index=index,
                role=role,
                function=function,
                parents=tuple(Parent(str(at), parent) for at, parent in enumerate(parents)),
                arguments={},
                parameters=parameters,
                buffers=(),
                call=call,
                site=self._sites.setdefault(place, len(self._sites)),
                frames=(),
                lead=index,
                position=0,
                shape=self._shape,
                dtype="float32",
                device="cpu",
                size_bytes=2048,
                grad_fn=None,
                elapsed_s=1e-5 * (1 + index % 7),
                flops=1000 * (index % 5),
                in_place=False,
                is_random=False,
                grad_mode=True,
                autocast=None,
            )
        )
        return index

    def input(self) -> int:
        return self.op("input", role=Role.INPUT)

    def constant(self) -> int:
        return self.op("constant", role=Role.CONSTANT)

    def output(self, parent: int) -> int:
        return self.op("output", parent, role=Role.OUTPUT)

    def record(self) -> TraceRecord:
        calls = tuple(
            ModuleCallRecord(path, number, parent, class_name, True, (), (), (), 0.0)
            for path, number, parent, class_name in self._calls
        )
        modules = {path: class_name for path, _, _, class_name in self._calls}
        return TraceRecord(
            self._model,
            tuple(self._operations),
            calls,
            tuple(self._parameters.values()),
            tuple(modules.items()),
            0.1,
            0,
        )


def named(record: TraceRecord) -> Naming:
    return name_layers(record)


def chain(length: int) -> TraceRecord:
    """Operations of one function one after another, without modules."""
    net = Pass("Chain")
    x = net.input()
    for at in range(length):
        x = net.op(("relu", "mul", "tanh")[at % 3], x)
    net.output(x)
    return net.record()


def residual(blocks: int) -> TraceRecord:
    """Blocks of two layers with a skip around each."""
    net = Pass("ResNet", (1, 64, 56, 56))
    x = net.layer("stem", "conv2d", net.input())
    for at in range(blocks):
        with net.module(f"blocks.{at}", "BasicBlock"):
            y = net.layer(f"blocks.{at}.conv1", "conv2d", x)
            y = net.layer(f"blocks.{at}.bn1", "batch_norm", y)
            y = net.op("relu", y)
            y = net.layer(f"blocks.{at}.conv2", "conv2d", y)
            x = net.op("add", y, x)
            x = net.op("relu", x)
    net.output(net.layer("head", "linear", x))
    return net.record()


def two_inputs() -> TraceRecord:
    """A module with two inputs far apart."""
    net = Pass("Joint")
    a, b = net.input(), net.input()
    with net.module("joint", "JointModelWithALongName"):
        left, right = net.layer("joint.left", "linear", a), net.layer("joint.right", "linear", b)
        out = net.op("add", left, right)
    net.output(out)
    return net.record()


def flat_residual(blocks: int) -> TraceRecord:
    """The same skips with no module around them."""
    net = Pass("Flat")
    x = net.input()
    for _ in range(blocks):
        x = net.op("add", net.op("mul", net.op("relu", x)), x)
    net.output(x)
    return net.record()


def unet(depth: int) -> TraceRecord:
    """Down, across and up again, with a skip from each level."""
    net = Pass("UNet", (1, 32, 128, 128))
    x, skips = net.input(), []
    for at in range(depth):
        x = _double(net, f"down.{at}", x)
        skips.append(x)
        x = net.op("max_pool2d", x)
    x = _double(net, "middle", x)
    for at in range(depth):
        x = net.layer(f"up.{at}", "conv_transpose2d", x, class_name="ConvTranspose2d")
        x = _double(net, f"merge.{at}", net.op("cat", skips.pop(), x))
    net.output(net.layer("head", "conv2d", x))
    return net.record()


def _double(net: Pass, path: str, x: int) -> int:
    with net.module(path, "DoubleConv"):
        for at in range(2):
            x = net.op("relu", net.layer(f"{path}.{at}", "conv2d", x))
    return x


def loop(steps: int) -> TraceRecord:
    """A recurrent model: one linear layer applied again and again, as in `for r in range(4): x = fc(x) + 1`."""
    net = Pass("SimpleRecurrent", (6, 5))
    x = net.input()
    for _ in range(steps):
        x = net.layer("fc", "linear", x)
        x = net.op("add", x, place="add")
        x = net.op("mul", x, place="mul")
    net.output(x)
    return net.record()


def lstm(steps: int) -> TraceRecord:
    """A cell with two states called in a loop, its outputs stacked at the end."""
    net = Pass("Recurrent", (4, 32))
    sequence, h, c = net.input(), net.constant(), net.constant()
    outputs = []
    for _ in range(steps):
        x = net.op("select", sequence, place="select")
        with net.module("cell", "Cell"):
            gates = net.op("add", net.layer("cell.ih", "linear", x), net.layer("cell.hh", "linear", h))
            i, f, g = (net.op(name, gates) for name in ("sigmoid", "sigmoid", "tanh"))
            c = net.op("add", net.op("mul", f, c), net.op("mul", i, g))
            h = net.op("mul", net.op("sigmoid", gates), net.op("tanh", c))
        outputs.append(h)
    net.output(net.layer("head", "linear", net.op("stack", *outputs)))
    return net.record()


def transformer(blocks: int) -> TraceRecord:
    """A decoder as in GPT-2: about 45 operations in each of its equal blocks, one mask used by all of them."""
    net = Pass("GPT2LMHeadModel", (2, 64, 768))
    tokens, positions = net.input(), net.input()
    with net.module("transformer", "GPT2Model"):
        mask = net.op("tril", net.constant())
        x = net.op("add", net.layer("transformer.wte", "embedding", tokens),
                   net.layer("transformer.wpe", "embedding", positions))  # fmt: skip
        x = _single(net, "transformer.drop", "dropout", x)
        for at in range(blocks):
            x = _block(net, f"transformer.h.{at}", x, mask)
        x = net.layer("transformer.ln_f", "layer_norm", x)
    net.output(net.layer("lm_head", "linear", x))
    return net.record()


def _single(net: Pass, path: str, function: str, *parents: int) -> int:
    with net.module(path, function.capitalize()):
        return net.op(function, *parents)


def _block(net: Pass, path: str, x: int, mask: int) -> int:
    with net.module(path, "GPT2Block"):
        y = _attention(net, f"{path}.attn", net.layer(f"{path}.ln_1", "layer_norm", x), mask)
        x = net.op("add", y, x)
        y = net.layer(f"{path}.ln_2", "layer_norm", x)
        with net.module(f"{path}.mlp", "GPT2MLP"):
            y = _projection(net, f"{path}.mlp.c_fc", y)
            with net.module(f"{path}.mlp.act", "NewGELUActivation"):
                cubed = net.op("mul", net.op("pow", y), net.constant())
                y = net.op("mul", net.op("mul", y), net.op("add", net.op("tanh", net.op("add", y, cubed))))
            y = _projection(net, f"{path}.mlp.c_proj", y)
            y = _single(net, f"{path}.mlp.dropout", "dropout", y)
        return net.op("add", x, y)


def _projection(net: Pass, path: str, x: int) -> int:
    with net.module(path, "Conv1D"):
        return net.op("view", net.op("addmm", net.op("view", x), parameters=(f"{path}.weight", f"{path}.bias")))


def _attention(net: Pass, path: str, x: int, mask: int) -> int:
    with net.module(path, "GPT2Attention"):
        x = _projection(net, f"{path}.c_attn", x)
        heads = [net.op("transpose", net.op("view", net.op("split", x))) for _ in range(3)]
        scores = net.op("div", net.op("matmul", heads[0], net.op("transpose", heads[1])))
        scores = net.op("softmax", net.op("where", scores, mask, net.constant()))
        scores = _single(net, f"{path}.attn_dropout", "dropout", scores)
        x = net.op("reshape", net.op("transpose", net.op("matmul", scores, heads[2])))
        x = _projection(net, f"{path}.c_proj", x)
        return _single(net, f"{path}.resid_dropout", "dropout", x)


def swin() -> TraceRecord:
    """About 2,100 operations in stages of blocks, nested four deep."""
    net = Pass("Swinv2Model", (1, 64, 64, 128))
    x = net.layer("embeddings", "conv2d", net.input())
    with net.module("encoder", "Swinv2Encoder"):
        for stage, blocks in enumerate((2, 4, 36, 4)):
            with net.module(f"encoder.layers.{stage}", "Swinv2Stage"):
                mask = net.constant()
                for at in range(blocks):
                    x = _block(net, f"encoder.layers.{stage}.blocks.{at}", x, mask)
                if stage < 3:
                    with net.module(f"encoder.layers.{stage}.downsample", "PatchMerging"):
                        parts = [net.op("getitem", x) for _ in range(4)]
                        x = net.op("reshape", net.op("cat", *parts))
                        x = net.layer(f"encoder.layers.{stage}.downsample.reduction", "linear", x)
    net.output(net.op("mean", net.layer("layernorm", "layer_norm", x)))
    return net.record()


def skips_across(count: int) -> TraceRecord:
    """A chain in which every operation also feeds the very last one, as in a dense block."""
    net = Pass("Dense")
    x = net.input()
    seen = [x]
    for _ in range(count):
        x = net.op("relu", x)
        seen.append(x)
    net.output(net.op("cat", *seen))
    return net.record()
