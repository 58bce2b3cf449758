"""Of a sample nothing is said that only holds of all elements."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.diagnose.findings import Diagnosis
from layerscope.diagnose.rules import check
from tests.diagnose.runs import rules

WORDS = 1000


class OneHot(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, WORDS).float()


class Bag(nn.Module):
    """Words of which a batch has few, looked up and as columns of zeros with a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one_hot, self.head = nn.Embedding(WORDS, 8), OneHot(), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(tokens)) + self.one_hot(tokens)[:, :4]
        return logits


def trained(folder: Path, sample: int | None, optimizes: bool = True) -> Diagnosis:
    torch.manual_seed(0)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, to=folder, every=1, sample=sample) as run:
        for step in range(20):
            loss = model(torch.arange(16, 30 - step % 3)).square().mean()
            loss.backward()
            if optimizes:
                optimizer.step()
            run.step(loss=loss)
            optimizer.zero_grad()
    return check(folder)


def test_rules_about_all_elements_leave_sampled_tensors_alone_and_say_so(tmp_path: Path) -> None:
    diagnosis = trained(tmp_path / "run", sample=64)
    assert rules(diagnosis) == []
    reasons = {missing.rule: missing.reason for missing in diagnosis.not_checked}
    assert reasons["zero_gradients"] == "only a part of the elements of 'embed.weight' was recorded"
    assert reasons["stuck_weights"] == "only a part of the elements of 'embed.weight' was recorded"
    assert reasons["dead_units"] == "only a part of the elements of 'embed' and 1 more was recorded"
    assert diagnosis.checked == 10  # on what was recorded as a whole they were applied


def test_a_batch_that_becomes_smaller_is_no_sample(tmp_path: Path) -> None:
    missing = [each.rule for each in trained(tmp_path / "run", sample=None).not_checked]
    assert missing == ["update_too_large", "update_too_small"]


@pytest.mark.parametrize(("sample", "severity"), [(64, "warning"), (None, "error")])
def test_a_forgotten_update_is_told_of_what_was_recorded_as_a_whole(
    sample: int | None, severity: str, tmp_path: Path
) -> None:
    skipped, found = trained(tmp_path / "run", sample, optimizes=False).all_findings()
    assert skipped.rule == "skipped_updates"
    sites = {each.site for each in found.evidence}
    assert (found.rule, found.severity.value) == ("stuck_weights", severity)
    assert sites == {"head.weight", "head.bias"} | ({"embed.weight"} if sample is None else set())
