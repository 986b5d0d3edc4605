"""What a user's objective or piece returns that cannot be trained on is named; built-in parts are not looked at."""

import pytest
import torch

from grpo_plus.objectives import build_objective, register_objective
from grpo_plus.objectives.objective import ObjectiveOutputError
from tests.device import DEVICE

SOUND = {
    "loss": lambda batch: -batch.logps * batch.advantages,
    "ratio": lambda batch: (batch.logps - batch.old_logps).exp(),
    "surrogate": lambda batch, ratio: ratio * batch.advantages,
    "reduce": lambda values, batch: values.sum() / batch.counts.tokens,
}
KINDS = tuple(SOUND)
BROKEN = {
    "NaN": (lambda given: given * float("nan"), "returned nan"),
    "infinity": (lambda given: given + float("inf"), "returned inf"),
    "minus infinity": (lambda given: given - float("inf"), "returned -inf"),
    "integers": (lambda given: given.detach().long(), "torch.int64"),
    "truth values": (lambda given: given.detach() > 0, "torch.bool"),
    "no gradient": (lambda given: given.detach(), "without a gradient"),
}


def built(kind, spoil=lambda given: given):
    def mine(*arguments):
        return spoil(SOUND[kind](*arguments))

    parameters = {"loss": "batch", "ratio": "batch", "surrogate": "batch, ratio", "reduce": "values, batch"}[kind]
    mine = eval(f"lambda {parameters}: mine({parameters})", {"mine": mine})
    if kind == "loss":
        return build_objective(mine, beta=0.0)
    register_objective("mine", kind=kind)(mine)
    return build_objective("grpo", {kind: "mine"}, beta=0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", BROKEN)
def test_a_result_that_cannot_be_trained_on_names_the_part(make_batch, kind, case):
    spoil, expected = BROKEN[case]
    if kind == "ratio" and case == "no gradient":
        pytest.skip("a ratio may be a constant")
    with pytest.raises(ObjectiveOutputError) as caught:
        built(kind, spoil).loss(make_batch())
    assert expected in str(caught.value)
    assert {"loss": "objective", "reduce": "reduction"}.get(kind, kind) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_part_and_what_stands_outside_the_mask_are_left_alone(make_batch, kind):
    batch = make_batch()
    spoil = (lambda given: given) if kind == "reduce" else lambda given: torch.where(batch.mask, given, float("nan"))
    loss, _ = built(kind, spoil).loss(batch)
    assert loss.isfinite()
    with torch.no_grad():
        assert built(kind).loss(batch)[0].isfinite()


def test_a_model_that_has_diverged_is_not_blamed_on_a_part(make_batch):
    batch = make_batch(logps=torch.full((5, 6), float("nan"), dtype=torch.float64, device=DEVICE, requires_grad=True))
    assert build_objective(SOUND["loss"], beta=0.0).loss(batch)[0].isnan()
