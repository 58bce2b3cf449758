"""Models that compute with nested tensors, or have names that cannot be encoded: the rest of the run is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls


class Ragged(nn.Module):
    """Gives its input as a nested tensor of three rows of different lengths."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        if self.layout is torch.jagged:
            return torch.nested.nested_tensor_from_jagged(x, offsets=torch.tensor([0, 2, 5, 8]))
        return torch.nested.as_nested_tensor([x[:2], x[2:5], x[5:]])


class Regular(nn.Module):
    """The rows of a nested tensor, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return x.values() if x.layout is torch.jagged else torch.cat(list(x.unbind()))


def train(model: nn.Module, folder: Path, kinds: str | None = None) -> ls.Run:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    chosen = {"kinds": kinds} if kinds else {}
    with ls.watch(model, optimizer, to=folder, every=1, **chosen) as run:  # type: ignore[arg-type]
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    return ls.open(folder)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kinds", [None, "all"])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_output_is_left_out_with_an_event_and_all_else_is_recorded(
    tmp_path: Path, layout: torch.layout, kinds: str | None
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Ragged(layout), nn.Linear(4, 4), Regular(), nn.Linear(4, 2))
    run = train(model, tmp_path / "run", kinds)
    assert len(run.metrics()) == 30
    assert len(run.stats("4", kind="output", stat="mean").arrow()) == 30
    assert len(run.stats("4.weight", kind="weight_grad", stat="mean").arrow()) == 30
    texts = run.events().arrow()["text"].to_pylist()
    assert any("output of '1' is not recorded: A nested tensor" in text for text in texts), texts
    graph = run.graph()
    assert graph is not None
    (ragged,) = (call for call in graph.calls if call.site == "1")
    assert ragged.outputs == (("output.0", (3, -1, 4)),)


def test_a_module_name_with_a_lone_surrogate_is_recorded_under_its_escape(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("a\udc80b", nn.Linear(4, 4))
    model.add_module("plain", nn.Linear(4, 2))
    run = train(model, tmp_path / "run")
    assert len(run.metrics()) == 30
    assert len(run.stats("a\\udc80b.weight", kind="weight", stat="mean").arrow()) == 30
    graph = run.graph()
    assert graph is not None
    assert [module.path for module in graph.modules] == ["(model)", "a\\udc80b", "plain"]
