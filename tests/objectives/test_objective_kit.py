import pytest
import torch

from grpo_plus.objectives import objectives, piece_registries, register_objective
from grpo_plus.testing import check_objective, objective_checks, parametrize_with_checks

BUILT_IN = sorted(entry.name for entry in objectives.entries() if entry.way == "built-in")
WITH_KL = [
    (name, {"beta": 0.1, **({} if name == "gmpo" else {"kl": {"unbiased": flag}})})
    for name in BUILT_IN
    if name not in ("grpo_clip", "target")
    for flag in (True, False)[: 1 if name == "gmpo" else 2]
]
COMPOSED = [
    ("grpo", {"surrogate": surrogate, "ratio": ratio, "reduce": reduce, "beta": 0.2, "kl": kl})
    for surrogate, ratio, reduce, kl in (
        ("is", "sequence", "prompt_mean", "k1"),
        ("sapo", "sequence_sum", "sequence_sum", "k2"),
        ("cispo", "sequence_token", "constant", "k3"),
    )
]
SURROGATES = [("grpo", {"surrogate": entry.name}) for entry in piece_registries["surrogate"].entries()]


def plain(batch, *, gain: float = 1.0):
    return -gain * torch.tanh(batch.log_ratio) * batch.advantages


@register_objective("kit_pair")
def pair(batch):
    return -batch.logps * batch.advantages, {"kit/logps": batch.logps.detach()}


@pytest.mark.sample(58)
@parametrize_with_checks(
    [*BUILT_IN, *WITH_KL, *COMPOSED, *SURROGATES, plain, pair, (plain, {"gain": 2.0})], kind="objective"
)
def test_objectives_keep_the_contract(check):
    check()


def masks_by_product(batch):
    return -(batch.logps - batch.old_logps) * batch.advantages * batch.mask / batch.mask.sum(-1, keepdim=True)


def raw_ratio(batch):
    return -torch.exp(batch.logps - batch.old_logps) * batch.advantages


def batch_baseline(batch):
    return -batch.log_ratio * (batch.advantages - batch.advantages.mean())


def in_place(batch):
    batch.advantages.mul_(2)
    return -batch.log_ratio * batch.advantages


def noisy(batch):
    return -batch.log_ratio * batch.advantages * torch.rand(())


def forgets_policy(batch):
    return -batch.old_logps * batch.advantages


def one_number(batch):
    return (-batch.log_ratio * batch.advantages).mean()


def flipped(batch):
    return batch.log_ratio * batch.advantages


def ignores_advantages(batch):
    return -batch.log_ratio


def only_their_size(batch):
    return -batch.log_ratio * batch.advantages.abs()


def counts_padding(batch):
    """The mean over a row, padding and all."""
    return -batch.log_ratio.mean(dim=1, keepdim=True).expand_as(batch.logps) * batch.advantages


def by_position(batch):
    """Early tokens count more."""
    return -batch.log_ratio * batch.advantages * 0.9 ** torch.arange(batch.mask.shape[1])


def imitates(batch):
    """Good completions alone, as in rejection sampling: nothing is pushed down."""
    return -batch.logps * batch.advantages.clamp(min=0)


def by_sign(batch):
    return -torch.tanh(batch.log_ratio) * batch.advantages.sign()


def ratio_of(batch):
    return batch.log_ratio.clamp(-5, 5).exp()


def turns_once_likelier(batch):
    return -torch.where(batch.log_ratio > 0, -1.0, 1.0) * ratio_of(batch) * batch.advantages


def turns_once_less_likely(batch):
    return -torch.where(batch.log_ratio < 0, -1.0, 1.0) * ratio_of(batch) * batch.advantages


def of_the_token_before(batch):
    return -ratio_of(batch) * batch.advantages.expand_as(batch.logps).roll(1, 1)


def of_the_first_token(batch):
    return -ratio_of(batch) * batch.advantages[:, :1]


def clipped(batch):
    ratio = ratio_of(batch)
    return -torch.minimum(ratio * batch.advantages, ratio.clamp(0.99, 1.01) * batch.advantages)


def towards_a_log_ratio(batch):
    """A regression, which turns round where the policy has gone further than the advantage asks."""
    return (batch.advantages - batch.log_ratio.clamp(-9, 9)).square() / 2


@register_objective("kit_liar", zero_advantage_means_zero_gradient=True)
def liar(batch):
    return -batch.log_ratio * (batch.advantages - 0.1)


BROKEN = {
    raw_ratio: {"extreme_logps"},
    batch_baseline: {"split_invariance"},
    in_place: {"leaves_batch_alone"},
    noisy: {"deterministic"},
    forgets_policy: {"shape_and_dtype"},
    one_number: {"shape_and_dtype"},
    masks_by_product: {"ignores_masked_tokens"},
    flipped: {"advantages_direct"},
    ignores_advantages: {"advantages_direct", "advantages_count"},
    turns_once_likelier: {"advantages_direct"},
    turns_once_less_likely: {"advantages_direct"},
    of_the_token_before: {"advantages_of_tokens_direct"},
    of_the_first_token: {"advantages_of_tokens_direct"},
    only_their_size: {"advantages_direct", "advantages_count"},
    counts_padding: {"split_invariance"},
    liar: {"zero_advantage_zero_gradient"},
}


@pytest.mark.sample(58)
@parametrize_with_checks([imitates, by_sign, by_position, clipped, towards_a_log_ratio], kind="objective")
def test_what_is_unusual_but_right_is_not_refused(check):
    check()


def test_every_check_about_advantages_has_a_broken_objective():
    assert {"advantages_direct", "advantages_of_tokens_direct", "advantages_count"} <= set().union(*BROKEN.values())


@pytest.mark.sample(15)
@pytest.mark.parametrize("fn", BROKEN, ids=lambda fn: fn.__name__)
def test_what_breaks_the_contract_is_found(fn):
    with pytest.raises(AssertionError) as caught:
        check_objective(fn)
    failed = {line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]}
    assert BROKEN[fn] <= failed


def test_a_function_inside_a_function_cannot_be_pickled():
    def inner(batch):
        return -batch.log_ratio * batch.advantages

    with pytest.raises(AssertionError, match="pickles: cannot be pickled"):
        check_objective(inner)


def test_pieces_of_ones_own_are_checked_in_a_composition():
    @register_objective("kit_mean_ratio", kind="ratio")
    def mean_ratio(batch):
        return torch.exp(batch.log_ratio.mean() * torch.ones_like(batch.logps))

    try:
        with pytest.raises(AssertionError, match="split_invariance"):
            check_objective("grpo", ratio="kit_mean_ratio")
    finally:
        piece_registries["ratio"].unregister("kit_mean_ratio")


def test_wrong_keywords_are_said_before_any_check():
    with pytest.raises(ValueError, match="Did you mean 'epsilon_low'"):
        check_objective("grpo", epsilon_lo=0.1)
    names = [check.name for check in objective_checks()]
    assert len(names) == len(set(names))
    assert all(check.about for check in objective_checks())
