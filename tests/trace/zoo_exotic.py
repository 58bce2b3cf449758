"""Cases of torch's less trodden parts: transforms, custom operators, subclasses, unusual tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trace.zoo import Calls, Case, numbers, specimen


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Any:
        ctx.save_for_backward(x)
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 2 * ctx.saved_tensors[0], None


class StraightThrough(torch.autograd.Function):
    """Gives its own input back, changed in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.round_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class Marked(Tensor):
    """A subclass that gives its own kind."""


@torch.library.custom_op("layerscope_zoo::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("layerscope_zoo::bump", mutates_args=("x",))
def bump(x: Tensor, by: float) -> None:
    x.add_(by)


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


@specimen
def autograd_function() -> Case:
    return Case(Calls(lambda m, x: Squared.apply(m.f(x), 0.5) + 1, f=nn.Linear(4, 4)), (numbers(3, 4),))  # type: ignore[no-untyped-call]


@specimen
def autograd_function_in_place() -> Case:
    model = Calls(lambda m, x: StraightThrough.apply(m.f(x) * 1) + 1, f=nn.Linear(4, 4))  # type: ignore[no-untyped-call]
    return Case(model, (numbers(3, 4),), unproven=True)


@specimen
def autograd_function_that_gives_its_input() -> Case:
    return Case(Calls(lambda m, x: Same.apply(m.f(x)) * 2, f=nn.Linear(4, 4)), (numbers(3, 4),))  # type: ignore[no-untyped-call]


@specimen
def vmapped() -> Case:
    return Case(lambda x: torch.vmap(lambda row: (row * 2).softmax(0))(x) + 1, (numbers(3, 4),))


@specimen
def vmapped_twice() -> Case:
    return Case(lambda x: torch.vmap(torch.vmap(lambda a: a.sin() * a))(x).sum(), (numbers(3, 4),))


@specimen
def gradient_function() -> Case:
    return Case(lambda x: torch.func.grad(lambda a: a.sin().sum())(x) * 2, (numbers(3, 4),))


@specimen
def gradients_per_sample() -> Case:
    def forward(x: Tensor) -> Any:
        weight = torch.ones(4)
        loss = torch.func.grad(lambda w, row: (w * row).pow(2).sum())
        return torch.vmap(loss, in_dims=(None, 0))(weight, x)

    return Case(forward, (numbers(3, 4),))


@specimen
def jacobian() -> Case:
    return Case(lambda x: torch.func.jacrev(lambda a: a.exp().sum(0))(x), (numbers(3, 4),))


@specimen
def forward_derivative() -> Case:
    return Case(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)), (numbers(3, 4),))


@specimen
def conditional() -> Case:
    return Case(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1, (numbers(3, 4),))


@specimen
def scripted_module() -> Case:
    traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), numbers(3, 4))
    return Case(Calls(lambda m, x: m.inner(x) + 1, inner=traced), (numbers(3, 4),))


@specimen
def dynamically_quantized() -> Case:
    from torch.ao.quantization import quantize_dynamic

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    return Case(quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8), (numbers(3, 8),))


@specimen
def quantized_tensors() -> Case:
    def forward(x: Tensor) -> Any:
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        return (q.dequantize() + q.int_repr()).relu()

    return Case(forward, (numbers(3, 4),))


@specimen
def fake_quantized() -> Case:
    return Case(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), (numbers(3, 4),))


@specimen
def nested_jagged() -> Case:
    def forward(x: Tensor, y: Tensor) -> Any:
        nested = torch.nested.nested_tensor([x, y], layout=torch.jagged)
        return (nested * 2 + 1).to_padded_tensor(0.0)

    return Case(forward, (numbers(3, 4), numbers(2, 4)), unseen=True)


@specimen
def nested_strided() -> Case:
    def forward(x: Tensor, y: Tensor) -> Any:
        nested = torch.nested.as_nested_tensor([x, y], layout=torch.strided)
        return torch.nested.to_padded_tensor(nested * 2, 0.0)

    return Case(forward, (numbers(3, 4), numbers(2, 4)))


@specimen
def sparse_matrix() -> Case:
    def forward(x: Tensor) -> Any:
        adjacency = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.ones(3), (3, 3)).coalesce()
        return torch.sparse.mm(adjacency, x) + (adjacency @ x).relu()

    return Case(forward, (numbers(3, 4),))


@specimen
def sparse_from_dense() -> Case:
    def forward(x: Tensor) -> Any:
        sparse = x.relu().to_sparse()
        return torch.sparse.sum(sparse, 0).to_dense() + sparse.coalesce().values().sum()

    return Case(forward, (numbers(3, 4),))


@specimen
def sparse_rows() -> Case:
    @torch.no_grad()
    def forward(x: Tensor) -> Any:
        return (x @ x.T).relu().to_sparse_csr() @ x

    return Case(forward, (numbers(3, 4),))


@specimen
def subclass() -> Case:
    return Case(lambda x: x.as_subclass(Marked).mul(2)[0].relu_() + 1, (numbers(3, 4),))


@specimen
def custom_operator() -> Case:
    return Case(lambda x: torch.ops.layerscope_zoo.twice(x) + 1, (numbers(3, 4),))


@specimen
def custom_operator_that_writes() -> Case:
    def forward(x: Tensor) -> Any:
        y = x.detach() * 1
        torch.ops.layerscope_zoo.bump(y, 2.0)
        return y * x

    return Case(forward, (numbers(3, 4),))


@specimen
def aten_overloads() -> Case:
    return Case(lambda x: torch.ops.aten.relu.default(torch.ops.aten.add.Tensor(x, x)), (numbers(3, 4),))


@specimen
def complex_numbers() -> Case:
    def forward(x: Tensor) -> Any:
        f = torch.fft.fft(x)
        return torch.fft.ifft(f * f.conj() + 1j).real + f.angle() + torch.view_as_real(f).sum(-1) + f.abs()

    return Case(forward, (numbers(3, 4),))


@specimen
def integers_and_bits() -> Case:
    def forward(x: Tensor) -> Any:
        y = (x << 2) ^ (x // 3) | (x % 5) & ~x
        return torch.bincount(y.flatten().clamp(0, 9), minlength=10) + torch.cumsum(y, 0)[0, 0]

    return Case(forward, (torch.arange(12).reshape(3, 4),))


@specimen
def half_precision() -> Case:
    return Case(lambda x: (x.half() @ x.half().T).float() + x.bfloat16().sum().double(), (numbers(3, 4),))


@specimen
def sorting_and_choosing() -> Case:
    def forward(x: Tensor) -> Any:
        values, where = x.sort(dim=1)
        top = torch.topk(x, 2)
        unique, counts = torch.unique(x.round(), return_counts=True)
        return values.gather(1, where) + top.values.sum() + top.indices.sum() + unique.sum() + counts.max()

    return Case(forward, (numbers(3, 4),))


@specimen
def linear_algebra() -> Case:
    def forward(x: Tensor) -> Any:
        square = x @ x.T + 3 * torch.eye(3)
        s = torch.linalg.svdvals(square)
        return (
            torch.linalg.solve(square, x)
            + torch.linalg.cholesky(square).sum()
            + s.sum()
            + torch.linalg.inv(square)[0, 0]
        )

    return Case(forward, (numbers(3, 4),))


@specimen
def einsum_and_tensordot() -> Case:
    return Case(lambda x: torch.einsum("ij,kj->ik", x, x) + torch.tensordot(x, x, dims=([1], [1])), (numbers(3, 4),))


@specimen
def composites_opened() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        attended, _ = m.attention(x, x, x)
        loss = F.cross_entropy(attended.flatten(0, 1), torch.zeros(6, dtype=torch.long))
        return torch.einsum("bij,bkj->bik", attended, x) + loss

    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Case(Calls(forward, attention=attention), (numbers(2, 3, 4),), open_composites=True)


@specimen
def views_of_every_kind() -> Case:
    def forward(x: Tensor) -> Any:
        y = x.T.contiguous().view(2, 6).unfold(1, 2, 2).permute(2, 0, 1).flatten()
        z = x.as_strided((2, 2), (1, 2)).diagonal().unsqueeze(0).expand(3, 2).movedim(0, 1)
        return y.narrow(0, 1, 6).reshape(2, 3) + z + x.unbind(0)[0].split(2)[1].mean() + x.mT[0, 0] + x.real[0, 0]

    return Case(forward, (numbers(3, 4),))


@specimen
def compiled_module() -> Case:
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    return Case(Calls(lambda m, x: m.inner(x) + 1, inner=compiled), (numbers(3, 4),))  # type: ignore[arg-type]


@specimen
def flexible_graph_network() -> Case:
    def forward(m: Any, x: Tensor, edges: Tensor) -> Any:
        source, target = edges
        messages = m.message(torch.cat([x[source], x[target]], -1))
        gathered = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(messages), messages)
        return m.update(torch.cat([x, gathered], -1))

    model = Calls(forward, message=nn.Linear(8, 4), update=nn.Linear(8, 4))
    return Case(model, (numbers(5, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])))
