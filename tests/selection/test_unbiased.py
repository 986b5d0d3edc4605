"""Roulette and weighted selection against plain sampling: the exact expectation of the gradient, over every outcome.

A policy that writes one of two tokens, or up to two of them, draws groups of four; another has drawn them, so that
ratios are not 1. Under weighted selection a token divisor is as unbiased by itself as its numerator is; all else equals.
"""

import itertools
import math
from functools import partial

import pytest
import torch

from grpo_plus.advantages import RewardTable, advantages, compute_advantages, get_advantage
from grpo_plus.objectives import build_objective, objectives
from grpo_plus.selection.dead_groups.assemble import live_groups
from grpo_plus.selection.dead_groups.roulette import shares
from grpo_plus.training.update import minibatch
from tests.device import DEVICE

SIZE, AFTER, KEEP = 4, 2, 0.3
tensor = partial(torch.tensor, device=DEVICE)
WORDS = {"one token": [(0,), (1,)], "up to two": [(0,), (1, 0), (1, 1)]}
REWARDS = {"one token": [(1.0, 0.3), (0.0, 0.8)], "up to two": [(1.0, 0.5), (0.0, 0.5), (1.0, 0.0)]}
NO_KL = {"grpo_clip", "target"}
KEYWORDS = {"passk": {"k": 1}, "mix": {"parts": {"rloo": 1.0, "process": 0.5}}}
PRESETS = sorted(entry.name for entry in objectives.entries() if entry.way == "built-in")
ESTIMATORS = sorted(entry.name for entry in advantages.entries() if entry.way == "built-in")
OVER_THE_BATCH = {"batch_whiten", "gdpo", "gpg", "reinforce_pp"}
OF_GROUPS = [name for name in ESTIMATORS if name not in OVER_THE_BATCH and not get_advantage(name).reads_values]
"""Beside a critic no group is dead, and roulette is refused."""


class World:
    """A policy, the one that drew, a reference, and the completions that there are.

    `expected` gives the expectation of the gradient, of the loss times its token divisor, and of that divisor.
    """

    def __init__(self, words, objective, estimator="zscore", **keywords):
        self.words, self.length = WORDS[words], max(map(len, WORDS[words]))
        self.rewards = torch.tensor(REWARDS[words], dtype=torch.float64)
        self.objective = build_objective(objective, keywords, beta=0.0 if objective in NO_KL else 0.2)
        self.estimator = estimator
        logits = ([[0.2, -0.1], [0.1, 0.3]], [[0.1, 0.0], [0.3, 0.0]], [[-0.5, 0.1], [0.2, 0.2]])
        self.policy, self.drew, self.reference = (tensor(rows, dtype=torch.float64) for rows in logits)
        self.policy.requires_grad_()
        self.chances = [math.exp(sum(self.drew.log_softmax(1)[i, t] for i, t in enumerate(w))) for w in self.words]
        assert sum(self.chances) == pytest.approx(1, abs=1e-15)

    def outcomes(self, count):
        for members in itertools.product(range(len(self.words)), repeat=count):
            yield math.prod(self.chances[member] for member in members), members

    def table(self, members, flipped=False):
        rewards = self.rewards[list(members)]
        # The state of a step is how far a completion is.
        steps = [[(float(token), at, at + 1, at) for at, token in enumerate(self.words[m])] for m in members]
        lengths, weights = [len(self.words[m]) for m in members], [1.0, 0.5] if flipped else [1.0, 0.0]
        rewards = 1 - rewards if flipped else rewards
        return RewardTable.of(rewards, weights=weights, lengths=lengths, steps=steps).to(device=DEVICE)

    def advantages(self, members, flipped=False):
        found = compute_advantages(self.estimator, self.table(members, flipped), **KEYWORDS.get(self.estimator, {}))
        spread = found if found.dim() == 2 else found[:, None].expand(-1, self.length)
        return torch.nn.functional.pad(spread, (0, self.length - spread.shape[1]))

    def scores(self, weights, members):
        logps = weights.log_softmax(1)
        rows = [[logps[at, token] for at, token in enumerate(self.words[member])] for member in members]
        zero = tensor(0.0, dtype=torch.float64)
        return torch.stack([torch.stack([*row, *[zero] * (self.length - len(row))]) for row in rows])

    def value(self, *groups):
        """Of a batch of groups: (prompt, members, share, guess of tokens); one that lacks members has share 0."""
        guesses = [group[3] if len(group) > 3 else 0.0 for group in groups]
        groups = [group[:3] for group in groups]
        rows = [member for _, members, _ in groups for member in (*members, *[0] * (SIZE - len(members)))]
        there = [[m < len(members)] for _, members, _ in groups for m in range(SIZE)]
        wide = [[at < len(self.words[row]) for at in range(self.length)] for row in rows]
        advantages_NT = [
            self.advantages(members, flipped=prompt == 1)
            if len(members) == SIZE
            else torch.zeros(SIZE, self.length, dtype=torch.float64, device=DEVICE)
            for prompt, members, _ in groups
        ]
        mask = tensor(wide) & tensor(there)
        output = {
            "prompt_ids": tensor([[prompt] for prompt, _, _ in groups for _ in range(SIZE)]),
            "prompt_mask": tensor([[1]] * len(rows)),
            "completion_ids": tensor([[*self.words[row], *[0] * self.length][: self.length] for row in rows]),
            "completion_mask": mask.long(),
            "advantages": torch.cat(advantages_NT),
            "old_per_token_logps": self.scores(self.drew, rows),
            "ref_per_token_logps": self.scores(self.reference, rows),
            minibatch.TOKENS: mask.sum(),
        }
        if any(share != 1 for _, _, share in groups):
            output["share"] = tensor([share for _, _, share in groups for _ in range(SIZE)], dtype=torch.float64)

            output["coin"] = tensor(guesses, dtype=torch.float64).repeat_interleave(SIZE)
            output["coin_keep"] = tensor(KEEP, dtype=torch.float64)

        def gather(tensor):
            return tensor

        places = torch.arange(len(groups), device=DEVICE).repeat_interleave(SIZE)
        prompts_N = minibatch.add_counts(output, places, rank=0, gather=gather)
        if self.objective.makes_targets:
            minibatch.add_targets(output, prompts_N, rank=0, gather=gather, keywords={})
        divides = self.objective.reduce.piece.name == "token_mean"
        minibatch.settle_coins(output, places, gather=gather, divides=divides)
        if self.objective.pulls_groups:
            logps = self.scores(self.policy, rows).detach()
            output |= {minibatch.GROUPS: places, **dict.fromkeys((minibatch.PULL, minibatch.GROUP_LOSS))}
            minibatch.add_pulls([output], [logps], self.objective, rank=0, gather=gather)
        numbers = {"rows": len(rows), "processes": 1, "training": True, "accumulation": 1, "steps_per_generation": 1}
        counts = minibatch.window_counts(output, **numbers)
        beta = self.objective.beta
        batch = minibatch.token_batch(
            output, self.scores(self.policy, rows), counts, beta=beta, max_completion_length=2
        )
        loss, _ = self.objective.loss(batch)
        (gradient,) = torch.autograd.grad(loss, self.policy)
        divisor = output.get(minibatch.TARGET_TOTAL, output[minibatch.TOKENS]).double()
        return torch.cat([gradient.flatten(), gradient.flatten() * counts.tokens, divisor[None]])

    def plain(self, prompt=0):
        return sum(chance * self.value((prompt, members, 1.0)) for chance, members in self.outcomes(SIZE))

    def roulette(self, prompt=0, weight=1.0):
        """Every outcome of the first completions, of the coin, and of the rest; gives the share of ties, too."""
        drawn = list(self.drawn(prompt, weight))
        ties = sum(chance for chance, group in drawn if group[3])
        return sum(chance * self.value(group) for chance, group in drawn), ties

    def drawn(self, prompt=0, weight=1.0, begins=None, rests=None):
        """The outcomes of a group under roulette, with their chances."""
        for chance, begun in self.outcomes(AFTER) if begins is None else begins:
            live = live_groups(self.advantages(begun, flipped=prompt == 1), AFTER)
            guess = 0.0 if live[0] else sum(len(self.words[member]) for member in begun) * SIZE / AFTER * weight
            for coin, side in ((0.0, KEEP), (KEEP, 1 - KEEP)):
                (share,) = shares(live, Coin(coin), KEEP)
                for further, rest in (rests or self.outcomes(SIZE - AFTER)) if share else [(1.0, ())]:
                    yield chance * side * further, (prompt, (*begun, *rest), share * weight, guess)


class Coin:
    """A coin that falls as it is told, in the place of the stream of coins."""

    def __init__(self, number):
        self.number = number

    def next(self):
        return self.number


def assert_equal(world, found, expected, *, apart=False):
    """The gradient; ``apart``: its numerator and divisor where it counts tokens."""
    size = 4
    counts = apart and world.objective.reduce.piece.name == "token_mean"
    compared = slice(size, None) if counts else slice(0, size)
    assert expected[compared].abs().max() > 1e-3
    pulled = world.objective.pulls_groups  # made in float64, kept in float32
    assert (found - expected)[compared].abs().max() < (1e-7 if pulled else 1e-12)


@pytest.mark.sample(2, 10)
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", PRESETS)
def test_roulette_expects_the_gradient_of_plain_sampling_under_every_objective(name, words):
    world = World(words, name)
    found, ties = world.roulette()
    assert 0.2 < ties < 0.8
    assert_equal(world, found, world.plain())


@pytest.mark.sample(1)
@pytest.mark.parametrize("reduce", ["sequence_mean", "token_mean", "constant", "sequence_sum", "prompt_mean"])
def test_roulette_is_unbiased_under_every_reduction(reduce):
    world = World("up to two", "grpo", reduce=reduce)
    assert_equal(world, world.roulette()[0], world.plain())


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.6, 1.7)])
@pytest.mark.parametrize("name", ["dapo", "target"])
def test_coins_of_two_groups_leave_a_quotient_by_tokens_unbiased(name, weights):
    """Tokens of one group divide the other's part too, whether or not they were drawn."""
    world = World("up to two", name)
    begins = [(0.4, (0, 0)), (0.25, (2, 2)), (0.35, (0, 1))]
    rests = [(0.3, (0, 2)), (0.7, (1, 1))]
    plain = [
        [
            (one * two, (prompt, (*begun, *rest), weight))
            for (one, begun), (two, rest) in itertools.product(begins, rests)
        ]
        for prompt, weight in enumerate(weights)
    ]
    coins = [list(world.drawn(prompt, weight, begins, rests)) for prompt, weight in enumerate(weights)]
    found, expected = (
        sum(one * two * world.value(first, second) for (one, first), (two, second) in itertools.product(*laws))
        for laws in (coins, plain)
    )
    assert_equal(world, found, expected)


@pytest.mark.sample(4, 6)
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", OF_GROUPS)
def test_roulette_expects_the_gradient_of_plain_sampling_under_every_estimator_of_groups(name, words):
    world = World(words, "grpo", name)
    found, ties = world.roulette()
    assert ties < 0.8
    assert_equal(world, found, world.plain())


def test_the_other_estimators_look_at_the_whole_batch():
    assert {name for name in ESTIMATORS if get_advantage(name).scope == "batch"} == OVER_THE_BATCH


CHANCES = (0.2, 0.5, 0.3)
GROUPS = [(0.4, (0, 1, 1, 1)), (0.3, (0, 0, 1, 0)), (0.2, (1, 1, 1, 1)), (0.1, (1, 0, 0, 1))]
"""A law of groups with few outcomes, for batches of two prompts."""


@pytest.mark.sample(1, 8)
@pytest.mark.parametrize("name", PRESETS)
def test_weighted_selection_expects_the_gradient_of_drawing_all_prompts_alike(name):
    world = World("one token", name)
    uniform = sum(chance * world.value((p, members, 1.0)) / 3 for p in range(3) for chance, members in GROUPS)
    found = torch.zeros(())
    for (one, other), (first, second) in itertools.product(pairs(enumerate(CHANCES)), pairs(GROUPS)):
        slots = [
            (prompt, members, 1 / 3 / chance) for (prompt, chance), (_, members) in ((one, first), (other, second))
        ]
        found = found + one[1] * other[1] * first[0] * second[0] * world.value(*slots)
    twice = tensor([1.0] * 4 + [2.0] * 5)  # a batch of two prompts has the tokens of two
    assert_equal(world, found, uniform * twice, apart=True)


def pairs(items):
    return itertools.product(list(items), repeat=2)


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "luspo"])
def test_selection_and_roulette_together_are_unbiased(name):
    world = World("up to two", name)
    uniform = sum(world.plain(prompt) for prompt in range(3)) / 3
    found = sum(chance * world.roulette(prompt, 1 / 3 / chance)[0] for prompt, chance in enumerate(CHANCES))
    assert_equal(world, found, uniform)
