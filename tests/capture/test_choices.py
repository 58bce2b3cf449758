"""What the user's words choose, and what the user adds: names for tensors, statistics."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.errors import ArgumentError, SelectError
from layerscope.stats.torch import thinned
from tests.capture.models import InPlaceCnn, Mlp


def recorded(folder: Path, **words: object) -> ls.Run:
    model = Mlp()
    with ls.watch(model, to=folder, every=1, **words) as run:  # type: ignore[arg-type]  # passed through as given
        model(torch.randn(4, 6)).square().mean().backward()
        run.step()
    return ls.open(folder)


@pytest.mark.feature("E1")
@pytest.mark.parametrize(
    ("words", "sites"),
    [
        ({"sites": nn.Linear, "kinds": "output"}, {"layers.0", "layers.3"}),
        ({"sites": re.compile(r"\.[03]$"), "kinds": "output"}, {"layers.0", "layers.3"}),
        ({"sites": [nn.ReLU, "layers.3"], "kinds": "output"}, {"layers.1", "layers.3"}),
        ({"exclude": [nn.Linear, "(model)"], "kinds": "output"}, {"layers", "layers.1", "layers.2"}),
        ({"exclude": "*.bias", "kinds": "weight"}, {"layers.0.weight", "layers.3.weight"}),
        (
            {"sites": nn.Linear, "exclude": "layers.0", "kinds": re.compile("^weight$")},
            {"layers.3.weight", "layers.3.bias"},
        ),
    ],
)
def test_sites_are_chosen_by_name_expression_or_class(
    words: dict[str, object], sites: set[str], tmp_path: Path
) -> None:
    assert set(recorded(tmp_path / "run", **words).stats(stat="rms")["site"]) == sites


@pytest.mark.feature("T2")
def test_kinds_are_chosen_by_expression(tmp_path: Path) -> None:
    kinds = recorded(tmp_path / "run", kinds=re.compile("_grad$")).series()["kind"]
    assert set(kinds) == {"input_grad", "output_grad", "weight_grad"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"sites": nn.LSTM}, "No module is a LSTM. There are: Dropout, Linear, Mlp, ReLU, Sequential"),
        ({"sites": re.compile("conv")}, "No site matches 'conv'"),
        ({"exclude": "nowhere"}, "No site matches 'nowhere'"),
        ({"sites": 3.5}, "got 3.5"),
        ({"kinds": nn.Linear}, "No kind matches"),
        ({"exclude": "*"}, "Nothing would be recorded"),
    ],
)
def test_what_matches_nothing_is_an_error_that_helps(words: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises((ArgumentError, SelectError), match=re.escape(says)):
        ls.watch(Mlp(), to=tmp_path / "run", **words)  # type: ignore[arg-type]  # on purpose
    assert not (tmp_path / "run").exists()


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = ls.attach("state", self.inner(x).tanh())
            self.kept.append(x)
        x.retain_grad()
        return x.sum()


@pytest.mark.feature("E5")
def test_a_named_tensor_is_recorded_with_its_gradient_under_its_module(tmp_path: Path) -> None:
    model = nn.Sequential(Named(), nn.Identity())
    named = model[0]
    assert isinstance(named, Named)
    with ls.watch(model, to=tmp_path / "run", every=1) as run:
        model(torch.randn(3, 4)).backward()
        run.step()
    stats = ls.open(tmp_path / "run").stats("0.state*", stat="rms").pandas().set_index(["site", "kind"])["rms"]
    for number, (site, tensor) in enumerate(zip(("0.state", "0.state#2"), named.kept, strict=True)):
        assert stats[site, "tensor"] == pytest.approx(float(tensor.detach().double().square().mean().sqrt()))
        assert (site, "tensor_grad") in stats.index
        if number == 1:
            assert tensor.grad is not None
            assert stats[site, "tensor_grad"] == pytest.approx(float(tensor.grad.double().square().mean().sqrt()))


def test_naming_a_tensor_is_nothing_when_nobody_watches() -> None:
    tensor = torch.randn(3)
    assert ls.attach("anything", tensor) is tensor
    assert ls.attach("not even a tensor", 7) == 7


def test_a_tensor_that_is_given_before_its_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"attach\(name, tensor\) takes the name first, got Tensor"):
        ls.attach(torch.ones(2), "scores")  # type: ignore[arg-type]  # on purpose


@pytest.mark.feature("T1")
def test_statistics_of_ones_own_stand_beside_the_others(tmp_path: Path) -> None:
    run = recorded(
        tmp_path / "run", statistics=lambda tensor: {"top": float(tensor.abs().max()), "size": tensor.numel()}
    )
    stats = run.stats(stat=["abs_max", "count", "top", "size"]).pandas()
    assert len(stats) > 8
    assert np.array_equal(stats["top"], stats["abs_max"])
    assert np.array_equal(stats["size"], stats["count"])


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (lambda tensor: 1 / 0, "ZeroDivisionError"),
        (lambda tensor: {"rms": 1.0}, "'rms' exists"),
        (lambda t: 3, "items"),
    ],
)
def test_a_statistic_that_fails_is_told_once_and_the_rest_is_recorded(own: object, says: str, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", statistics=own)
    (text,) = [t for t in run.events()["text"] if "custom statistics" in t]
    assert says in text
    assert len(run.stats(stat="rms")["rms"]) > 8


@pytest.mark.feature("E2")
def test_of_a_large_tensor_only_a_sample_is_counted_and_no_random_number_drawn(tmp_path: Path) -> None:
    model = InPlaceCnn()
    state = torch.get_rng_state()
    with ls.watch(model, to=tmp_path / "run", every=1, sample=20, kinds="weight") as run:
        run.step()
    assert torch.equal(torch.get_rng_state(), state)
    counts = dict(
        zip(*(ls.open(tmp_path / "run").stats(stat="count")[name] for name in ("site", "count")), strict=True)
    )
    assert counts["conv2.weight"] <= 20 < model.conv2.weight.numel()
    assert counts["conv1.bias"] == 4


def test_a_sample_is_spread_over_every_dimension() -> None:
    tensor = torch.arange(60.0).reshape(3, 4, 5).permute(2, 0, 1)
    sample = thinned(tensor, 12)
    assert 6 <= len(sample) <= 12
    assert len({int(x) // 20 for x in sample}) == 3
    assert len({int(x) % 5 for x in sample}) >= 3
    assert thinned(tensor, 60) is tensor
