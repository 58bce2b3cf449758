"""Each rule on runs made by hand: what it must find, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from layerscope.diagnose import not_finite_rules
from layerscope.diagnose.evidence import RunEvidence
from layerscope.diagnose.findings import Finding, Severity
from layerscope.diagnose.rules import ABOUT, FINITE, ORDER, OTHERS, check
from layerscope.model.records import Kind, Metric, Phase
from tests.diagnose.runs import Key, Made, noise, rules
from tests.repo.source import ROOT

NAN, INF = float("nan"), float("inf")
OUT, GRAD, WEIGHT, WGRAD = Kind.OUTPUT, Kind.OUTPUT_GRAD, Kind.WEIGHT, Kind.WEIGHT_GRAD


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "run", {"relu": "ReLU", "linear": "Linear"})


def test_of_an_empty_run_nothing_is_said(made: Made) -> None:
    diagnosis = made.check()
    assert diagnosis.findings == ()
    assert diagnosis.verdict.startswith("not checked")


def test_a_run_that_is_still_written_can_be_checked(made: Made) -> None:
    made.steps(range(10), lambda step: {("a", OUT): [NAN] if step > 5 else noise()})
    assert made.sink.flush()
    assert rules(check(made.folder)) == ["not_finite"]
    made.sink.close()


def test_the_first_site_that_is_not_finite_is_the_earliest_executed(made: Made) -> None:
    def tensors(step: int) -> dict[Key, npt.ArrayLike]:
        broken = step >= 20
        found: dict[Key, npt.ArrayLike] = {
            (f"layers.{i}", OUT): [NAN, 1] if broken and i >= 3 else noise() for i in range(100)
        }
        return found | {(f"layers.{i}.weight", WGRAD): [NAN] if broken else noise() for i in range(100)}

    diagnosis = made.steps(range(0, 40, 5), tensors, lambda step: NAN if step >= 20 else 1.0).check()
    cause = diagnosis.findings[0]
    assert (cause.rule, cause.site, cause.kind, cause.step) == ("not_finite", "layers.3", "output", 20)
    assert len(diagnosis.findings) == 1
    assert len(cause.evidence) == 197
    assert "finite at step 15" in cause.why
    assert [found.rule for found in cause.consequences] == ["loss_not_finite"]


def test_of_weight_gradients_the_one_nearest_to_the_loss_is_named(made: Made) -> None:
    sites = ["first.weight", "second.weight", "third.weight"]
    made.steps(
        range(10), lambda step: {(s, WGRAD): [NAN] if step > 5 and s != "third.weight" else noise() for s in sites}
    )
    assert made.check().findings[0].site == "second.weight"


def test_minus_infinity_in_a_mask_is_sound(made: Made) -> None:
    made.steps(range(20), lambda step: {("scores", OUT): [-INF, 1.0], ("mask", Kind.INPUT): [0.0, -INF]})
    assert rules(made.check()) == []


def test_minus_infinity_that_comes_with_an_infinite_loss_is_named_and_the_mask_beside_it_is_not(made: Made) -> None:
    made.steps(
        range(20),
        lambda step: {("mask", OUT): [-INF, 0.0], ("log", OUT): [-INF] if step == 12 else [1.0]},
        lambda step: INF if step == 12 else 1.0,
    )
    cause = made.check().findings[0]
    assert (cause.site, cause.step) == ("log", 12)
    assert [each.site for each in cause.evidence] == ["log"]


def test_infinite_gradients_of_a_skipped_step_are_sound(made: Made) -> None:
    made.steps(range(20), lambda step: {("a.weight", WGRAD, Phase.STEP): [INF] if step == 3 else noise()})
    made.skip([3])
    assert rules(made.check()) == []


def test_nan_that_stays_in_the_inputs_is_a_warning_and_hides_nothing(made: Made) -> None:
    made.steps(range(20), lambda step: {("(model)", Kind.INPUT): [NAN, 1.0], ("a.weight", WEIGHT): [1.0]})
    diagnosis = made.check()
    assert [found.severity for found in diagnosis.findings] == [Severity.WARNING]
    assert "stuck_weights" not in [missing.rule for missing in diagnosis.not_checked]


@pytest.mark.parametrize(("inputs", "site"), [(False, "first"), (False, "second"), (True, "first")])
def test_only_what_the_first_layer_makes_of_unrecorded_inputs_is_blamed_on_the_batch(
    inputs: bool, site: str, made: Made
) -> None:
    made.steps(
        range(10),
        lambda step: {
            **({("first", Kind.INPUT): noise()} if inputs else {}),
            **{(name, OUT): [NAN] if step == 5 and name == site else noise() for name in ("first", "second")},
        },
    )
    advice = made.check().findings[0].advice
    assert advice.startswith("Look at the batch of this step") == (not inputs and site == "first")
    assert "a logarithm or square root of 0" in advice


def test_of_a_long_run_that_is_not_finite_only_the_first_step_is_listed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []

    class Counted(not_finite_rules.Broken):
        def __init__(self, *_: object) -> None:
            listed.append(self)

    monkeypatch.setattr(not_finite_rules, "Broken", Counted)
    made.steps(
        range(40),
        lambda step: {("mask", OUT): [-INF, 1.0], **{(f"{i}", OUT): [NAN if step > 9 else 1.0] for i in range(5)}},
    )
    cause = made.check().findings[0]
    assert (cause.site, cause.step, len(cause.evidence)) == ("0", 10, 5)
    assert len(listed) <= 6


def test_gradients_that_shrink_from_layer_to_layer_vanish_and_odd_layers_do_not(tmp_path: Path) -> None:
    def fall(folder: str, exponents: list[float], name: str = "") -> list[str]:
        run = Made(tmp_path / folder)
        run.steps(range(10), lambda step: {(f"{name}{i}", GRAD): noise(scale=10**e) for i, e in enumerate(exponents)})
        return rules(run.check())

    assert fall("vanishing", [-8, -7, -6, -5, -4, -3, -2, -1]) == ["vanishing_gradients"]
    assert fall("mark of calls", [-8, -7, -6, -5, -4, -3, -2, -1], "a#b") == ["vanishing_gradients"]
    assert fall("exploding", [8, 7, 6, 5, 4, 3, 2, 1]) == ["exploding_gradients"]
    assert fall("alternating", [-9, -2, -9, -2, -9, -2, -1]) == []  # biases before BatchNorm
    assert fall("sound", [-3, -2, -3, -2, -3, -2, -1]) == []


def gradient_rules(made: Made, norms: list[float], broken_after: bool = False) -> list[str]:
    sizes = [*norms, NAN] if broken_after else norms
    made.steps(range(len(sizes)), lambda step: {("a.weight", WGRAD): np.full(4, sizes[step])})
    return rules(made.check())


def test_one_step_of_large_gradients_is_a_spike(made: Made) -> None:
    assert gradient_rules(made, [1.0] * 20 + [500.0] + [1.0] * 20) == ["gradient_spike"]


def test_gradients_that_grow_for_good_explode(made: Made) -> None:
    assert gradient_rules(made, [1.0] * 20 + [1.5**i for i in range(40)]) == ["exploding_gradients"]


def test_gradients_that_exploded_and_end_small_are_told_with_where_they_were_large(made: Made) -> None:
    sizes = [1.0] * 10 + [1e4] * 29 + [0.5]
    made.steps(range(40), lambda step: {("a.weight", WGRAD): np.full(4, sizes[step])})
    (found,) = made.check().findings
    assert (found.rule, found.step) == ("exploding_gradients", 10)
    assert (found.evidence[0].step, found.evidence[0].value) == (38, 2e4)


def test_a_growth_of_a_few_steps_that_ends_in_nan_explodes_and_is_its_cause(made: Made) -> None:
    assert gradient_rules(made, [1.0, 1e3, 1e6, 1e9], broken_after=True) == ["exploding_gradients", "not_finite"]


def test_gradients_that_fall_and_then_tremble_are_sound(made: Made) -> None:
    assert gradient_rules(made, [10.0 ** -(i / 10) for i in range(60)] + [1e-4, 1e-3] * 5) == []


@pytest.mark.parametrize("site", ["re#lu", "relu#1", "re#lu#2"])
def test_the_class_is_known_of_a_module_with_the_mark_of_calls_in_its_name(site: str, tmp_path: Path) -> None:
    run = Made(tmp_path / "run", {site.removesuffix("#2"): "ReLU"})
    run.steps(range(40), lambda step: {(site, OUT): noise() if step < 10 else np.zeros(16)})
    assert f"{site!r} (ReLU)" in run.check().findings[0].title


def test_a_rectified_layer_of_zeros_is_dead_since_it_was(made: Made) -> None:
    made.steps(range(40), lambda step: {("relu", OUT): noise() if step < 10 else np.zeros(16)})
    cause = made.check().findings[0]
    assert (cause.rule, cause.site, cause.step, cause.severity) == ("dead_units", "relu", 10, Severity.ERROR)


@pytest.mark.parametrize(
    ("left", "title"),
    [
        (np.zeros(1000), "Nothing comes out of 'relu' (ReLU)"),
        (np.eye(1000)[3], "Next to nothing comes out of 'relu' (ReLU)"),
        (np.ones(1000), "One constant comes out of 'relu' (ReLU)"),
    ],
)
def test_the_title_says_how_much_comes_out(left: npt.ArrayLike, title: str, made: Made) -> None:
    made.steps(range(20), lambda step: {("relu", OUT): left})
    assert made.check().findings[0].title == title


def test_what_goes_into_a_dead_layer_is_told_and_what_else_is_constant(made: Made) -> None:
    low, zero = -1.0 - np.abs(noise()), np.zeros(16)
    made.steps(range(20), lambda step: {("linear", OUT): low - step, ("relu", OUT): zero, ("head", OUT): zero + 2})
    found = made.check().findings[0]
    assert "What 'linear' (Linear) gives it is below 0" in found.why
    assert found.why.endswith("1 more outputs are 0 or constant: 'head'.")


@pytest.mark.parametrize(("idle", "expected"), [(8, []), (12, ["dead_units"]), (16, ["zero_gradients"])])
def test_units_without_gradient_are_counted_by_the_zeros_of_a_bias(idle: int, expected: list[str], made: Made) -> None:
    bias = np.where(np.arange(16) < idle, 0.0, 1.0)
    made.steps(range(20), lambda step: {("a", OUT): noise(), ("a.bias", WGRAD): bias, ("b.weight", WGRAD): noise()})
    found = made.check().all_findings()
    assert [each.rule for each in found] == expected
    if expected == ["dead_units"]:
        assert found[0].title == "12 of 16 units get no gradient: 'a.bias'"
        assert [each.value for each in found[0].evidence] == [0.75]


def test_sparse_outputs_of_other_layers_and_outputs_of_one_element_are_not_dead(made: Made) -> None:
    one_hot = np.zeros(1000)
    one_hot[3] = 1.0
    made.steps(range(40), lambda step: {("one_hot", OUT): one_hot, ("loss", OUT): [2.0], ("gate", OUT): np.zeros(0)})
    assert rules(made.check()) == []


def test_an_output_that_is_constant_at_the_first_step_only_is_sound(made: Made) -> None:
    made.steps(range(40), lambda step: {("head", OUT): np.zeros(16) if step == 0 else noise()})
    assert rules(made.check()) == []


def test_weights_that_stay_while_others_move_are_told_by_their_gradients(tmp_path: Path) -> None:
    def stuck(folder: str, gradient: dict[Key, npt.ArrayLike]) -> list[tuple[str, str]]:
        run = Made(tmp_path / folder)
        run.steps(
            range(10),
            lambda step: {
                ("still.weight", WEIGHT): np.ones((4, 4)),
                ("moves.weight", WEIGHT): noise(4, 4),
                ("moves.weight", WGRAD): noise(4, 4),
                **gradient,
            },
        )
        return [(found.rule, found.severity.value) for found in run.check().findings]

    assert stuck("frozen", {}) == [("stuck_weights", "note")]
    assert stuck("forgotten", {("still.weight", WGRAD, Phase.STEP): noise(4, 4)}) == [("stuck_weights", "warning")]
    assert stuck("lost", {("still.weight", WGRAD): noise(4, 4)}) == [("update_too_small", "warning")]
    assert stuck("zero", {("still.weight", WGRAD): np.zeros((4, 4))}) == [("zero_gradients", "warning")]


def test_a_training_in_which_no_weight_moves_is_an_error(made: Made) -> None:
    made.steps(range(10), lambda step: {("a.weight", WEIGHT): [1.0], ("a.weight", WGRAD): noise()})
    found = made.check().findings
    assert [(each.rule, each.severity) for each in found] == [("stuck_weights", Severity.ERROR)]


def test_a_model_that_is_only_evaluated_has_no_stuck_weights(made: Made) -> None:
    made.steps(range(10), lambda step: {("a.weight", WEIGHT): [1.0, 2.0]})
    assert rules(made.check()) == []


@pytest.mark.parametrize(("ratio", "expected"), [(1e-3, []), (0.5, ["update_too_large"]), (1e-8, ["update_too_small"])])
def test_the_ratio_of_updates_has_a_range(ratio: float, expected: list[str], made: Made) -> None:
    made.steps(range(20), lambda step: {("a.weight", Kind.UPDATE): noise(4, 4), ("a.bias", Kind.UPDATE): noise(4)})
    for step in range(20):
        made.ratio(step, "a.weight", INF if step == 0 else ratio)
    assert rules(made.check()) == expected


def test_without_updates_their_ratio_is_not_checked(made: Made) -> None:
    made.steps(range(20), lambda step: {("a.weight", WEIGHT): noise()})
    reasons = {missing.rule: missing.reason for missing in made.check().not_checked}
    assert reasons["update_too_large"] == "needs kind update, which was not recorded"
    assert reasons["update_too_small"] == reasons["update_too_large"]
    assert "loss" in reasons["loss_growing"]


def test_gradients_of_outputs_are_enough_to_check_their_explosion_over_depth_but_not_for_spikes(made: Made) -> None:
    diagnosis = made.steps(range(20), lambda step: {("a", GRAD): noise()}).check()
    missing = [each.rule for each in diagnosis.not_checked]
    assert "exploding_gradients" not in missing
    assert "gradient_spike" in missing
    assert len(missing) == len(set(missing))


def test_the_rules_are_those_of_the_documentation_and_each_is_checked_or_not(made: Made) -> None:
    page = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = {name.strip(" `") for cell in cells for name in cell.split(",")}
    assert {name for rule in (*FINITE, *OTHERS) for name in rule.names} == names
    diagnosis = made.check()
    assert {missing.rule for missing in diagnosis.not_checked} == names
    assert diagnosis.checked == 0


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda step: 1.0 / (step + 1), []),
        (lambda step: 1.0 + step, ["loss_growing"]),
        (lambda step: -1.0 - step, []),  # has no floor: a policy's, or a likelihood's
        (lambda step: 100.0 if step == 30 else 1.0, []),
    ],
)
def test_a_loss_that_ends_far_above_its_start_grows(loss, expected: list[str], made: Made) -> None:  # type: ignore[no-untyped-def]
    assert rules(made.steps(range(60), lambda step: {}, loss).check()) == expected


def metrics(made: Made, losses: dict[str, Callable[[int], float]]) -> list[Finding]:
    for step in range(60):
        for name, loss in losses.items():
            made.sink.put(Metric(step, name, loss(step), float(step)))
    return made.check().all_findings()


def test_a_term_of_a_loss_may_grow_while_their_sum_does_not(made: Made) -> None:
    falls, grows = (lambda step: 100.0 / (step + 1)), (lambda step: 0.01 + step / 60)
    assert metrics(made, {"loss": falls, "kl_loss": grows, "loss_scale": lambda step: 2.0**step}) == []


def test_a_held_out_loss_that_grows_alone_is_overfitting(made: Made) -> None:
    (found,) = metrics(made, {"loss": lambda step: 1.0 / (step + 1), "val/loss": lambda step: 1.0 + step})
    assert (found.title, found.severity) == ("The metric val/loss grows", Severity.WARNING)
    assert "by heart" in found.why
    assert "Stop near step 0" in found.advice


def test_an_explosion_is_named_by_the_first_output_that_grew_and_not_by_the_largest_gradient(made: Made) -> None:
    def tensors(step: int) -> dict[Key, npt.ArrayLike]:
        grown = 3.0 ** max(step - 20, 0)
        found: dict[Key, npt.ArrayLike] = {(f"layers.{i}", OUT): noise() * (grown if i > 1 else 1.0) for i in range(4)}
        return found | {(f"layers.{i}.weight", WGRAD): noise() * grown * (10.0 if i == 3 else 1.0) for i in range(4)}

    (found,) = made.steps(range(40), tensors).check().findings
    assert (found.rule, found.site, found.kind, found.step) == ("exploding_gradients", "layers.2", "output", 21)
    assert "of 2 outputs that grew it is the first" in found.why


def test_an_explosion_without_outputs_says_that_its_cause_may_be_a_neighbor(made: Made) -> None:
    (found,) = made.steps(
        range(40), lambda step: {("a.weight", WGRAD): noise(), ("b.weight", WGRAD): noise() * 3.0**step}
    ).check().findings  # fmt: skip
    assert (found.rule, found.site) == ("exploding_gradients", "b.weight")
    assert "neighbor" in found.why


def test_what_comes_after_something_not_finite_is_not_looked_at(made: Made) -> None:
    made.steps(
        range(60), lambda step: {("a", OUT): [NAN] if step == 20 else noise()}, lambda step: 1.0 if step < 20 else 1e4
    )
    made.skip(range(20, 60))
    assert rules(made.check()) == ["not_finite"]


def test_a_loss_that_grew_before_something_was_not_finite_is_told(made: Made) -> None:
    made.steps(range(60), lambda step: {("a", OUT): [NAN] if step == 50 else noise()}, lambda step: 1.0 + step)
    assert rules(made.check()) == ["loss_growing", "not_finite"]


def test_a_loss_of_too_few_steps_is_not_checked_for_growth(made: Made) -> None:
    made.steps(range(60), lambda step: {("a", OUT): [NAN] if step == 10 else noise()}, lambda step: 1.0 + step)
    reasons = {missing.rule: missing.reason for missing in made.check().not_checked}
    assert (
        reasons["loss_growing"]
        == "needs 16 steps of a loss, there are 10 before step 10, where something is not finite"
    )


@pytest.mark.parametrize(("skipped", "expected"), [(range(10), []), (range(20), ["skipped_updates"])])
def test_many_steps_in_a_row_without_update_are_told(skipped: range, expected: list[str], made: Made) -> None:
    made.steps(range(60), lambda step: {("a", OUT): noise()})
    made.skip(skipped)
    assert rules(made.check()) == expected


def test_dead_units_bring_about_zero_gradients_but_not_weights_that_no_optimizer_has(made: Made) -> None:
    made.steps(
        range(20),
        lambda step: {
            ("relu", OUT): np.zeros(16),
            ("a.weight", WGRAD): np.zeros(16),
            ("b.weight", WGRAD): noise(),
            ("b.weight", WEIGHT): noise(),
            ("c.weight", WGRAD, Phase.STEP): noise(),
            ("c.weight", WEIGHT): np.ones(16),
        },
    )
    diagnosis = made.check()
    assert [found.rule for found in diagnosis.findings] == ["dead_units", "stuck_weights"]
    assert [found.rule for found in diagnosis.findings[0].consequences] == ["zero_gradients"]


def test_ranks_that_number_their_series_differently_are_not_mixed_up(tmp_path: Path) -> None:
    first = Made(tmp_path / "run")
    first.steps(range(10), lambda step: {("a.weight", WEIGHT): [1.0], ("a", OUT): noise()})
    second, third = (Made(tmp_path / "run", rank=rank) for rank in (1, 2))
    second.steps(range(10), lambda step: {("a", OUT): noise(), ("a.weight", WEIGHT): [2.0]})
    third.steps(range(10), lambda step: {("a", OUT): noise()})
    for made in (first, second, third):
        made.sink.close()
    weights = RunEvidence(tmp_path / "run").histories(WEIGHT)
    assert [place.site for place in weights.series] == ["a.weight", "a.weight"]
    assert weights.moments["sum"].tolist() == [[1.0] * 10, [2.0] * 10]


def test_every_rule_has_a_description_and_a_place_among_causes() -> None:
    names = {name for rule in (*FINITE, *OTHERS) for name in rule.names}
    assert set(ABOUT) == set(ORDER) == names
