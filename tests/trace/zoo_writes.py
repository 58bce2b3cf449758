"""Cases of writing: in place, through views, quietly."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trace.zoo import Calls, Case, numbers, specimen


@specimen
def relu_in_place() -> Case:
    return Case(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), (numbers(3, 4),))


@specimen
def write_through_a_row() -> Case:
    def forward(x: Tensor) -> Any:
        y = x.clone()
        y[0].add_(1)
        y[1].mul_(2)
        return y * 3

    return Case(forward, (numbers(3, 4),))


@specimen
def write_to_the_base_of_a_view() -> Case:
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        row, column = y[1], y[:, 2]
        before = row + 1
        y.sub_(5)
        return before, row + column.sum()

    return Case(forward, (numbers(3, 4),))


@specimen
def overlapping_views() -> Case:
    def forward(x: Tensor) -> Any:
        y = x + 0
        left, right = y[:, :3], y[:, 1:]
        left.mul_(2)
        right.add_(left.clone())
        return left + right + y[:, :3]

    return Case(forward, (numbers(3, 4),))


@specimen
def write_through_data() -> Case:
    def forward(x: Tensor) -> Any:
        y = x * 1
        y.data.add_(1)
        y.data = y.data * 2
        return y + 1

    return Case(forward, (numbers(3, 4),))


@specimen
def set_items() -> Case:
    def forward(x: Tensor) -> Any:
        y = torch.zeros(4, 4)
        y[0] = x[0]
        y[1, 2:] = 7
        y[x[:, 0] > 0] = 2.0
        y[..., 1] += 1
        return y.sum(0)

    return Case(forward, (numbers(4, 4),))


@specimen
def out_arguments() -> Case:
    @torch.no_grad()
    def forward(x: Tensor) -> Any:
        target = torch.empty(3, 4)
        torch.add(x, 1, out=target)
        values, where = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.max(target, dim=1, out=(values, where))
        return values + where + torch.mul(target, 2, out=target).sum(1)

    return Case(forward, (numbers(3, 4),))


@specimen
def foreach_in_place() -> Case:
    @torch.no_grad()
    def forward(x: Tensor) -> Any:
        many = [x + 1, x * 2, x - 3]
        torch._foreach_add_(many, 2.0)
        torch._foreach_mul_(many, [1.0, 2.0, 3.0])
        return torch.stack(torch._foreach_neg(many)).sum(0)

    return Case(forward, (numbers(3, 4),))


@specimen
def running_statistics() -> Case:
    norm = nn.BatchNorm1d(4)
    return Case(Calls(lambda m, x: m.norm(m.norm(x) * 2) + m.norm.running_mean, norm=norm), (numbers(6, 4),))


@specimen
def running_statistics_of_a_function() -> Case:
    def forward(x: Tensor) -> Any:
        mean, variance = torch.zeros(4), torch.ones(4)
        y = F.batch_norm(x, mean, variance, training=True)
        return F.batch_norm(y + 1, mean, variance, training=False)

    return Case(forward, (numbers(6, 4),))


@specimen
def embedding_with_max_norm() -> Case:
    return Case(nn.Embedding(10, 4, max_norm=0.5), (torch.tensor([[1, 2], [2, 3]]),))


@specimen
def cache_in_a_buffer() -> Case:
    class Cache(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(5, 4))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            for step in range(3):
                with torch.no_grad():
                    self.seen[step].copy_(x[step])
                x = self.linear(x) + self.seen.sum(0)
            return x

    return Case(Cache(), (numbers(3, 4),))


@specimen
def buffer_counted_up() -> Case:
    class Counter(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Any:
            self.count += 1
            y = x * self.count
            self.count.add_(2)
            return y + self.count

    return Case(Counter(), (numbers(3, 4),))


@specimen
def shape_changed_in_place() -> Case:
    def forward(x: Tensor) -> Any:
        y = x * 2
        z = y + 1
        y.unsqueeze_(0).transpose_(1, 2)
        y.squeeze_()
        return y @ z

    return Case(forward, (numbers(3, 4),))


@specimen
def bits_seen_as_another_type() -> Case:
    @torch.no_grad()
    def forward(x: Tensor) -> Any:
        y = x.clone()
        y.view(torch.int32).bitwise_and_(0x7FFFFFFF)
        z = torch.view_as_complex(y.reshape(3, 2, 2))
        z.mul_(2j)
        return y + torch.view_as_real(z).reshape(3, 4)

    return Case(forward, (numbers(3, 4),))


@specimen
def expanded_and_written() -> Case:
    def forward(x: Tensor) -> Any:
        column = x[:, :1].clone()
        wide = column.expand(3, 4)
        column.add_(1)
        return wide * 2

    return Case(forward, (numbers(3, 4),))


@specimen
def input_written() -> Case:
    def forward(x: Tensor) -> Any:
        x.add_(1)
        return x * 2

    return Case(forward, (numbers(3, 4),))


@specimen
def output_written_by_setitem_loop() -> Case:
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            out = x.new_zeros(5, 4)
            for step in range(5):
                out[step] = torch.tanh(self.cell(x[step] + out[step - 1].clone()))
            return out

    return Case(Scan(), (numbers(5, 4),))


@specimen
def optimizer_inside() -> Case:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        @torch.enable_grad()
        def forward(self, x: Tensor) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                self.linear(x).pow(2).mean().backward()
                optimizer.step()
            return self.linear(x)

    return Case(Trains(), (numbers(6, 4),))


@specimen
def initialized_inside() -> Case:
    def forward(x: Tensor) -> Any:
        weight = torch.empty(4, 4)
        nn.init.normal_(weight)
        nn.init.kaiming_uniform_(bias := torch.empty(1, 4))
        return x @ weight + bias

    return Case(forward, (numbers(3, 4),))


@specimen
def masked_in_place() -> Case:
    def forward(x: Tensor) -> Any:
        scores = x @ x.T
        scores.masked_fill_(torch.triu(torch.ones(3, 3, dtype=torch.bool), 1), float("-inf"))
        return scores.softmax(-1) @ x

    return Case(forward, (numbers(3, 4),))


@specimen
def sum_into_slices() -> Case:
    def forward(x: Tensor, index: Tensor) -> Any:
        total = torch.zeros(4, 4)
        total.index_add_(0, index, x)
        total.scatter_(1, index[:, None], 9.0)
        total.index_put_((index,), x, accumulate=True)
        return total, total.index_copy(0, index, x)

    return Case(forward, (numbers(3, 4), torch.tensor([0, 2, 1])))
