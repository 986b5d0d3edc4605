import pytest
import torch

from grpo_plus.objectives import objectives, piece_registries, register_objective
from grpo_plus.testing import check_objective, parametrize_with_checks
from grpo_plus.testing.objectives import KIT

BUILT_IN = sorted(entry.name for entry in objectives.entries() if entry.way == "built-in")
WITH_KL = [
    (name, {"beta": 0.1, **({} if name == "gmpo" else {"kl": {"unbiased": flag}})})
    for name in BUILT_IN
    if name not in ("grpo_clip", "target")
    for flag in (True, False)[: 1 if name == "gmpo" else 2]
]
PIECES = [("is", "sequence", "prompt_mean", "k1"), ("sapo", "sequence_sum", "sequence_sum", "k2")]
PIECES += [("cispo", "sequence_token", "constant", "k3")]
NAMES = ("surrogate", "ratio", "reduce", "kl")
COMPOSED = [("grpo", {"beta": 0.2, **dict(zip(NAMES, chosen, strict=True))}) for chosen in PIECES]
SURROGATES = [("grpo", {"surrogate": entry.name}) for entry in piece_registries["surrogate"].entries()]


def plain(batch, *, gain: float = 1.0):
    return -gain * torch.tanh(batch.log_ratio) * batch.advantages


@register_objective("kit_pair")
def pair(batch):
    return -batch.logps * batch.advantages, {"kit/logps": batch.logps.detach()}


@pytest.mark.sample(58)
@parametrize_with_checks([*BUILT_IN, *WITH_KL, *COMPOSED, *SURROGATES, plain, pair, (plain, {"gain": 2.0})], kind="objective")  # fmt: skip
def test_objectives_keep_the_contract(check):
    check()


def imitates(batch):
    """Good completions alone, as in rejection sampling: nothing is pushed down."""
    return -batch.logps * batch.advantages.clamp(min=0)


def by_position(batch):
    """Early tokens count more."""
    return -batch.log_ratio * batch.advantages * 0.9 ** torch.arange(batch.mask.shape[1])


def by_sign(batch):
    return -torch.tanh(batch.log_ratio) * batch.advantages.sign()


def ratio_of(batch):
    return batch.log_ratio.clamp(-5, 5).exp()


def clipped(batch):
    ratio = ratio_of(batch)
    return -torch.minimum(ratio * batch.advantages, ratio.clamp(0.99, 1.01) * batch.advantages)


def towards_a_log_ratio(batch):
    """A regression, which turns round where the policy has gone further than the advantage asks."""
    return (batch.advantages - batch.log_ratio.clamp(-9, 9)).square() / 2


def by_a_product(batch):
    return -(batch.logps - batch.old_logps) * batch.advantages * batch.mask / batch.mask.sum(-1, keepdim=True)


def in_place(batch):
    batch.advantages.mul_(2)
    return -batch.log_ratio * batch.advantages


@register_objective("kit_liar", zero_advantage_means_zero_gradient=True)
def liar(batch):
    return -batch.log_ratio * (batch.advantages - 0.1)


DIRECT, OF_TOKENS = {"advantages_direct"}, {"advantages_of_tokens_direct"}
MASKED, SPLIT = {"ignores_masked_tokens"}, {"split_invariance"}
BROKEN = {
    "the ratio as it is": (lambda b: -torch.exp(b.logps - b.old_logps) * b.advantages, {"extreme_logps"}),
    "a baseline of the batch": (lambda b: -b.log_ratio * (b.advantages - b.advantages.mean()), {"split_invariance"}),
    "in place": (in_place, {"leaves_batch_alone"}),
    "noisy": (lambda b: -b.log_ratio * b.advantages * torch.rand(()), {"deterministic"}),
    "forgets the policy": (lambda b: -b.old_logps * b.advantages, {"shape_and_dtype"}),
    "one number": (lambda b: (-b.log_ratio * b.advantages).mean(), {"shape_and_dtype"}),
    "masks by a product": (by_a_product, MASKED),
    "flipped": (lambda b: b.log_ratio * b.advantages, {"advantages_direct"}),
    "ignores advantages": (lambda b: -b.log_ratio, DIRECT),
    "only their size": (lambda b: -b.log_ratio * b.advantages.abs(), DIRECT),
    "looks at the reference alone": (lambda b: (b.logps - b.ref_logps).square(), DIRECT),
    "divides by a row's tokens": (lambda b: by_a_product(b).sum(1, keepdim=True).expand_as(b.logps), SPLIT),
    "turns once likelier": (lambda b: -torch.where(b.log_ratio > 0, -1, 1) * ratio_of(b) * b.advantages, DIRECT),
    "turns once less likely": (lambda b: -torch.where(b.log_ratio < 0, -1, 1) * ratio_of(b) * b.advantages, DIRECT),
    "of the token before": (lambda b: -ratio_of(b) * b.advantages.expand_as(b.logps).roll(1, 1), OF_TOKENS),
    "of the first token": (lambda b: -ratio_of(b) * b.advantages[:, :1], {"advantages_of_tokens_direct"}),
    "counts padding": (lambda b: -b.log_ratio.mean(1, keepdim=True).expand_as(b.logps) * b.advantages, SPLIT),
    "says that nothing is at zero": (liar, {"zero_advantage_zero_gradient"}),
}


@pytest.mark.sample(20)
@parametrize_with_checks([imitates, by_sign, by_position, clipped, towards_a_log_ratio], kind="objective")
def test_what_is_unusual_but_right_is_not_refused(check):
    check()


@pytest.mark.sample(15)
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_contract_is_found(name):
    fn, checks = BROKEN[name]
    with pytest.raises(AssertionError) as caught:
        check_objective(fn)
    failed = {line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]}
    assert checks <= failed


def test_an_inner_function_a_piece_in_a_composition_and_wrong_keywords_are_found():
    def inner(batch):
        return -batch.log_ratio * batch.advantages

    with pytest.raises(AssertionError, match="cannot be pickled"):
        check_objective(inner)

    @register_objective("kit_mean_ratio", kind="ratio")
    def mean_ratio(batch):
        return torch.exp(batch.log_ratio.mean() * torch.ones_like(batch.logps))

    with pytest.raises(AssertionError, match="split_invariance"):
        check_objective("grpo", ratio="kit_mean_ratio")
    with pytest.raises(ValueError, match="Did you mean 'epsilon_low'"):
        check_objective("grpo", epsilon_lo=0.1)
    names = [check.name for check in KIT.checks]
    assert len(names) == len(set(names))
    assert all(check.about for check in KIT.checks)
