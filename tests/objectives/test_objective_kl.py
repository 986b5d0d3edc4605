"""KL terms by exact expectation: which of them have the gradient of the divergence, and which are refused."""

import itertools
from dataclasses import replace

import pytest
import torch

from grpo_plus.objectives import Counts, TokenBatch, build_objective, objectives, register_objective
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.training.update.minibatch import kl_penalties
from grpo_verifiers.errors import ConfigError, PluginError
from tests.device import DEVICE

ESTIMATORS, PLACEMENTS = ("k1", "k2", "k3"), ("loss", "reward")
BUILT_IN = {entry.name for entry in objectives.entries() if entry.way == "built-in"}
WITH_KL = sorted(BUILT_IN - {"grpo_clip", "target"})
CASES = list(itertools.product(WITH_KL, ESTIMATORS, PLACEMENTS, (None, True, False), (True, False)))


def categorical(seed, tokens=6):
    """Log-probabilities of a policy with gradient, of its reference, and the logits behind the first."""
    generator = torch.Generator().manual_seed(seed)
    logits, ref = (torch.randn(tokens, generator=generator, dtype=torch.float64).to(DEVICE) for _ in range(2))
    return logits.requires_grad_(), logits.log_softmax(0), ref.log_softmax(0)


def batch_of(logps, ref_logps):
    zeros = torch.zeros_like(logps[:, 0])
    counts = Counts(float(len(logps)), float(logps.numel()), 1.0)
    batch = TokenBatch(logps, logps.detach(), zeros[:, None], torch.ones_like(logps) > 0, counts, ref_logps, 1.0)
    return replace(batch, pull=zeros, group_loss=zeros, max_completion_length=logps.shape[1])


def expected_gradient(objective, logps, ref_logps, parameters):
    """Of the KL term, over completions that are all there are, each with its probability."""
    chances = logps.detach().sum(-1).exp()
    if objective.kl_in_reward:
        seen = {"old_per_token_logps": logps.detach(), "ref_per_token_logps": ref_logps}
        seen |= {"completion_mask": torch.ones_like(logps, dtype=torch.long)}
        terms = kl_penalties(objective, seen).sum(-1) * logps.sum(-1)  # what REINFORCE makes of the penalty
    else:
        terms = objective.values(batch_of(logps, ref_logps)).values.sum(-1)
    return torch.autograd.grad((chances * terms).sum(), parameters, retain_graph=True)[0]


def times_ratio(name, unbiased, field):
    return name != "gmpo" and field and unbiased is not False


def is_right(name, estimator, placement, unbiased, field):
    """The rules, told once more than in the product."""
    if unbiased is True and (placement == "reward" or not field or name == "gmpo" or estimator == "k2"):
        return False
    if placement == "reward":
        return estimator == "k1"
    return estimator != "k1" or times_ratio(name, unbiased, field)


@pytest.mark.sample(48, 150)
@pytest.mark.parametrize(
    ("name", "estimator", "placement", "unbiased", "field"), CASES, ids=["-".join(map(str, each)) for each in CASES]
)
def test_every_kl_term_has_the_gradient_of_the_divergence_or_is_refused(name, estimator, placement, unbiased, field):
    kl = {"estimator": estimator, "placement": placement} | ({} if unbiased is None else {"unbiased": unbiased})
    if not is_right(name, estimator, placement, unbiased, field):
        with pytest.raises(ConfigError):
            build_objective(name, {"kl": kl}, beta=1.0, use_bias_correction_kl=field)
        return
    objective = build_objective(name, {"kl": kl}, beta=1.0, use_bias_correction_kl=field)
    assert objective.kl.placement == placement
    biased = estimator == "k3" and not times_ratio(name, unbiased, field)
    assert ("has the gradient of KL(π_ref‖π)" in objective.formula()) == biased
    for seed in range(3):
        logits, logps, ref = categorical(seed)
        forward = (ref.exp() * (ref - logps)).sum()
        reverse = (logps.exp() * (logps - ref)).sum()
        (true,) = torch.autograd.grad(forward if biased else reverse, logits, retain_graph=True)
        found = expected_gradient(objective, logps[:, None], ref[:, None], logits)
        assert torch.allclose(found, true, atol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "gspo", "gmpo"])
def test_what_is_refused_says_why_and_what_to_do(name):
    def said(kl, field=True):
        (problem,) = compose_objective(name, {"kl": kl}, beta=0.1, use_bias_correction_kl=field)[1]
        return problem

    problem = said({"placement": "reward", "estimator": "k2"})
    assert all(word in problem for word in ("'k2'", "'reward'", "k1", "placement 'loss'"))
    assert "does not go with kl.unbiased" in said({"estimator": "k2", "unbiased": True})
    refused = [said({"estimator": "k1", "unbiased": False}), said("k1", field=False)]
    for problem, remedy in zip(refused, ("remove kl.unbiased", "use_bias_correction_kl to true"), strict=True):
        assert all(word in problem for word in ("'k1'", "expected gradient 0", "k2 or k3"))
        assert (remedy in problem) == (name != "gmpo")


@pytest.mark.parametrize("name", WITH_KL)
def test_placement_reward_alone_means_k1(name):
    for kl in ({"placement": "reward"}, {"placement": "reward", "schedule": {"name": "warmup", "steps": 3}}):
        assert build_objective(name, {"kl": kl}, beta=0.1).kl.estimator.piece.name == "k1"
    assert build_objective(name, {"kl": {"placement": "loss"}}, beta=0.1).kl.estimator.piece.name == "k3"


def reverse(policy, reference):
    return (policy.exp() * (policy - reference)).sum(-1)


def forward(policy, reference):
    return (reference.exp() * (reference - policy)).sum(-1)


class Tabular:
    """A policy with logits of its own after every prefix, and all completions of one length."""

    def __init__(self, length, tokens=3):
        generator = torch.Generator().manual_seed(length)
        self.completions = list(itertools.product(range(tokens), repeat=length))
        prefixes = [prefix for n in range(length) for prefix in itertools.product(range(tokens), repeat=n)]
        self.place = {prefix: number for number, prefix in enumerate(prefixes)}
        self.logits, ref = (
            torch.randn(len(prefixes), tokens, generator=generator, dtype=torch.float64).to(DEVICE) for _ in range(2)
        )
        self.logits.requires_grad_()
        self.policy, self.reference = self.logits.log_softmax(-1), ref.log_softmax(-1)

    def logps(self, table):
        rows = [[table[self.place[c[:t]], c[t]] for t in range(len(c))] for c in self.completions]
        return torch.stack([torch.stack(row) for row in rows])

    def gradient(self, value):
        return torch.autograd.grad(value, self.logits, retain_graph=True)[0]

    def after_prefixes(self, divergence):
        """The gradient of the mean over sampled prefixes, which stay as they are."""
        own = divergence(self.policy, self.reference)
        chances = self.logps(self.policy).detach().sum(-1).exp()
        at = [[self.place[c[:t]] for t in range(len(c))] for c in self.completions]
        return self.gradient((chances * own[torch.tensor(at)].sum(-1)).sum())

    def of_kl(self, name):
        """Gives the gradient of an objective's KL term of these options."""
        logps, ref = self.logps(self.policy), self.logps(self.reference)
        return lambda **kl: expected_gradient(build_objective(name, {"kl": kl}, beta=1.0), logps, ref, self.logits)

    def whole(self):
        """The gradient of the divergence of whole completions."""
        logps, ref = self.logps(self.policy), self.logps(self.reference)
        return self.gradient((logps.sum(-1).exp() * (logps - ref).sum(-1)).sum())


@pytest.mark.sample(2, 3)
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", ["grpo", "dapo", "sequence_grpo", "gspo_token", "reinforce"])
def test_over_several_tokens_the_loss_holds_each_token_and_the_reward_the_completion(name, length):
    policy, found = Tabular(length), Tabular(length).of_kl(name)
    for estimator in ESTIMATORS:
        assert torch.allclose(found(estimator=estimator), policy.after_prefixes(reverse), atol=1e-12)
    assert torch.allclose(found(unbiased=False), policy.after_prefixes(forward), atol=1e-12)
    assert torch.allclose(found(placement="reward"), policy.whole(), atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", ["gspo", "luspo"])
def test_the_ratio_of_a_sequence_leaves_one_part_in_its_length_of_the_correction(name, length):
    policy, found = Tabular(length), Tabular(length).of_kl(name)
    uncorrected, whole = policy.after_prefixes(forward), policy.whole()
    assert torch.allclose(found(estimator="k1"), whole / length, atol=1e-12)
    assert torch.allclose(found(estimator="k2"), policy.after_prefixes(reverse), atol=1e-12)
    assert torch.allclose(found(estimator="k3"), uncorrected + (whole - uncorrected) / length, atol=1e-12)
    assert "one T-th of its correction" in build_objective(name, beta=1.0).formula()
    assert "one T-th" not in build_objective(name, {"kl": "k2"}, beta=1.0).formula()


def estimator_of(name, fn):
    register_objective(name, kind="kl")(fn)
    return name


def test_a_schedule_says_what_it_does():
    kl = {"schedule": {"name": "adaptive", "target": 0.25, "rate": 0.5}}
    assert "β·(1 + 0.5·clip(KL/0.25 − 1, ±0.2))" in build_objective("grpo", {"kl": kl}, beta=0.1).formula()


def test_an_estimator_of_ones_own_must_approach_the_reference():
    for name, fn, accepted in (  # in the loss, in the reward, without the ratio
        ("half", lambda logps, ref_logps: 0.5 * (logps - ref_logps), [True, True, False]),
        ("distance", lambda logps, ref_logps: (logps - ref_logps).abs(), [True, False, True]),
        ("backwards", lambda logps, ref_logps: ref_logps - logps, [False, False]),
        ("detached", lambda logps, ref_logps: (logps - ref_logps).detach(), [True, True, False]),
    ):
        kl = {"estimator": estimator_of(name, fn)}
        terms = [kl, kl | {"placement": "reward"}, kl | {"unbiased": False}][: len(accepted)]
        assert [not compose_objective("grpo", {"kl": kl}, beta=0.1)[1] for kl in terms] == accepted, name
    assert "times the ratio pushes away" in compose_objective("grpo", {"kl": "backwards"}, beta=0.1)[1][0]


def test_an_estimator_of_ones_own_has_the_gradient_of_what_it_estimates():
    name = estimator_of("squared", lambda logps, ref_logps: (logps - ref_logps) ** 2)
    logits, logps, ref = categorical(0)
    (true,) = torch.autograd.grad((logps.exp() * (logps - ref) ** 2).sum(), logits, retain_graph=True)
    objective = build_objective("grpo", {"kl": name}, beta=1.0)
    assert torch.allclose(expected_gradient(objective, logps[:, None], ref[:, None], logits), true, atol=1e-12)


@pytest.mark.parametrize("broken", [
    lambda logps, ref_logps: 1 / 0,
    lambda logps, ref_logps: logps.sum(),
    lambda logps, ref_logps: logps * float("nan"),
    lambda logps, ref_logps: 3.0,
], ids=["raises", "scalar", "nan", "number"])  # fmt: skip
def test_an_estimator_that_fails_is_named_before_anything_runs(broken):
    name = estimator_of("broken", broken)
    with pytest.raises(PluginError, match="the KL estimator 'broken' raised") as caught:
        build_objective("grpo", {"kl": name}, beta=0.1)
    assert caught.value.__cause__ is not None
