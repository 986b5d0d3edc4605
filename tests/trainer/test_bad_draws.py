"""Configs, data, rewards and shares that are bad for ways of drawing: each trains on, or is refused with a way out."""

import pytest
import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.table import config_notes
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE
from tests.trainer.conftest import BASE, logged, weights

WAYS = {
    "resample": {"dead_groups": "resample"}, "roulette": {"dead_groups": "roulette"},
    "replay": {"dead_groups": "replay", "objective": "grpo"}, "contrast": {"selection": "contrast"},
    "contrast, resample": {"selection": "contrast", "dead_groups": "resample"},
    "contrast, roulette": {"selection": "contrast", "dead_groups": "roulette"},
}  # fmt: skip
WAYS["contrast, replay"] = {**WAYS["replay"], "selection": {"name": "contrast", "weighted": False}}
STEPS, BATCH = 4, 8
MOST = {"resample": 3 * BATCH}
"""Completions that may be drawn for a batch, where it is not those of the batch alone."""

VERIFIERS = """
import time

def often_late(completion):
    if len(completion) % 2:
        time.sleep(30)
    return float("1" in completion)

def always_late(completion):
    time.sleep(30)
"""


def odd(completions, **_):
    return [float(sum(map(str.isdigit, text)) % 2) for text in completions]


def flat(completions, **_):
    return [0.0 for _ in completions]


def graded(completions, **_):
    return [1e3 * (len(set(text)) % 5) - 3.5 for text in completions]


def patchy(prompts, completions, **_):
    return [
        None if prompt.startswith("1") or len(set(text)) % 3 == 0 else float("1" in text)
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def asking(*numbers):
    return Dataset.from_list([{"prompt": f"{number}+{number}="} for number in numbers])


class Drawn(Hook):
    def __init__(self):
        self.counts = [0]

    def prompts(self, rows):
        self.counts[-1] += len(rows)

    def batch(self, batch):
        self.counts.append(0)


def train(build, way, *, rewards=odd, data=None, **settings):
    """A run of a few steps; every batch was drawn within bounds, and the policy is finite."""
    drawn = Drawn()
    given = {"train_dataset": data or asking(*range(16)), "hooks": [drawn]}
    trainer = build(
        trainer=given | {"reward_funcs": None if rewards is None else [rewards]},
        **{"max_steps": STEPS, "temperature": 1.0, "beta": 0.0, **WAYS[way], **settings},
    )
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert bool(weights(trainer).isfinite().all())
    assert max(drawn.counts) <= MOST.get(way.rpartition(" ")[2], BATCH)
    return trainer


def everyway(test):
    return pytest.mark.sample(0, 2)(pytest.mark.parametrize("way", WAYS)(test))


@everyway
def test_all_prompts_dead_for_ever_change_nothing_end_and_are_counted(build, way):
    before = weights(build())
    trainer = train(build, way, rewards=flat)
    assert bool((before == weights(trainer)).all())
    if "dead_groups" in WAYS[way]:
        assert logged(trainer, "dead_groups/dead") == [1.0] * STEPS
    if "contrast" in way:
        assert logged(trainer, "selection/impossible")[-1] > 0


@everyway
@pytest.mark.parametrize("rewards", [graded, patchy], ids=lambda function: function.__name__)
def test_rewards_that_are_not_0_or_1_or_missing_train(build, way, rewards):
    trainer = train(build, way, rewards=rewards)
    assert len(logged(trainer, "loss")) == STEPS
    if rewards is patchy and "dead_groups" in WAYS[way]:  # a group without a reward teaches nothing
        assert max(logged(trainer, "dead_groups/dead")) > 0


def late(build, way, name, folder):
    """A run with a verifier that times out, and the share of timeouts of each step."""
    (folder / "late.py").write_text(VERIFIERS, encoding="utf-8")
    entry = {"name": f"{folder / 'late.py'}:{name}", "label": name, "timeout": 0.3}
    trainer = train(build, way, rewards=None, verifiers=[entry])
    return trainer, logged(trainer, f"verifiers/{name}/status/timeout")


@everyway
def test_a_verifier_that_times_out_at_times_costs_the_score_and_not_the_run(build, way, tmp_path):
    _, shares = late(build, way, "often_late", tmp_path)
    assert len(shares) == STEPS
    assert max(shares) > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["resample", "roulette"])
def test_a_verifier_that_always_times_out_leaves_groups_dead(build, way, tmp_path):
    trainer, shares = late(build, way, "always_late", tmp_path)
    assert shares == [1.0] * STEPS
    assert logged(trainer, "dead_groups/dead") == [1.0] * STEPS


@everyway
def test_groups_of_two_and_data_smaller_than_a_batch_train_or_are_refused_and_prompts_that_repeat_are_one(build, way):
    with pytest.raises(ConfigError, match=r"the dataset has 1 row, but a generation batch takes 2 prompts"):
        train(build, way, data=asking(1))
    if "roulette" in way:
        with pytest.raises(ConfigError, match=r"num_generations \(2\).*Set it to 3 or more"):
            train(build, way, num_generations=2)
    else:
        train(build, way, num_generations=2)
    trainer = train(build, way, data=asking(*[1, 2, 3] * 4))
    assert "contrast" not in way or len(trainer.pipeline.prompt_sampler.history) == 3


def config(**settings):
    return GRPOPlusConfig(**{**BASE, "num_generations": 4, "dead_groups": "roulette", **settings})


@pytest.mark.parametrize(("size", "after"), [(3, 2), (4, 2), (8, 2), (11, 2), (16, 4)])
def test_roulette_looks_after_a_quarter_of_the_completions(size, after):
    made = config(per_device_train_batch_size=size, num_generations=size)
    assert made.recipe.dead_groups.keywords == {"after": after, "keep": 0.25}


def test_the_estimator_that_equals_the_hosts_fields_judges():
    assert config().recipe.advantage.estimator.name == "zscore"
    assert config(dead_groups="resample", scale_rewards="none").recipe.advantage.estimator.name == "center"
    assert config(dead_groups={"name": "resample", "rounds": 3}).recipe.dead_groups.keywords == {"rounds": 3}
    for keep in (1, 1.0, 0.01):
        assert config(dead_groups={"name": "roulette", "keep": keep}).recipe.dead_groups.keywords["keep"] == keep


PASSK = {"parts": {"center": 1.0, "passk": 1.0}, "passk": {"k": 2}}
IN_REWARD = {"objective": {"name": "grpo", "kl": {"placement": "reward", "estimator": "k1"}}}
PROBLEMS = {
    "another way": ({"dead_groups": "drop"}, "unknown name 'drop'. There is: keep, replay, resample, roulette"),
    "keywords of nothing": ({"dead_groups": {"name": "keep", "rounds": 2}}, "unknown keyword 'rounds'"),
    "keywords of the other": ({"dead_groups": {"name": "roulette", "rounds": 2}}, "unknown keyword 'rounds'"),
    "no round": ({"dead_groups": {"name": "resample", "rounds": 0}}, "'rounds' is 0, expected an"),
    "a coin that never falls": ({"dead_groups": {"name": "roulette", "keep": 0.0}}, "'keep' is 0.0, expected a number of more"),
    "after one": ({"dead_groups": {"name": "roulette", "after": 1}}, "'after' is 1, expected an integer of at least 2"),
    "after all": ({"dead_groups": {"name": "roulette", "after": 4}}, "after (4) of 4 completions there is no rest to save"),
    "pairs": ({"num_generations": 2}, "num_generations (2): contrast takes two completions"),
    "one completion": ({"num_generations": 1, "advantage": "raw", "dead_groups": "resample"}, "needs num_generations of 2 or more"),
    "too few for the estimator": ({"advantage": {"name": "passk", "k": 3}}, "needs a larger after: after 2 completions all"),
    "too few for a part of a mix": ({"advantage": {"name": "mix", **PASSK}}, "'passk': its k is 2"),
    "the KL term in the rewards": ({"beta": 0.1, **IN_REWARD}, "does not go with kl placement 'reward'"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_work_is_refused_with_the_way_out(name):
    settings, words = PROBLEMS[name]
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert [problem for problem in caught.value.problems if words in str(problem)], caught.value.problems


@pytest.mark.parametrize(("settings", "noted"), [
    ({"advantage": "batch_whiten"}, 1), ({"advantage": {"name": "zscore", "scale": "batch"}}, 1),
    ({"multi_objective_aggregation": "normalize_then_sum"}, 1), ({"advantage": "zscore"}, 0),
    ({"advantage": "batch_whiten", "dead_groups": "keep"}, 0),
])  # fmt: skip
def test_a_scale_of_the_batch_is_said_to_be_that_of_what_was_drawn(settings, noted):
    notes = config_notes(config(**settings))
    assert sum("the scale of the advantages is that of the entire batch" in note for note in notes) == noted


class Shared(Hook):
    def __init__(self, *shares):
        self.shares = torch.tensor(shares, device=DEVICE)

    def sampled(self, batch):
        return batch.adding(share=self.shares)


QUARTERS = [row / 4 for row in range(8)]
UNWEIGHED = {
    "beta (0.04): TRL's own loss counts every row alike in the KL term": {"beta": 0.04},
    "loss_type ('bnpo'): TRL's own loss counts every row alike in its count of tokens": {"loss_type": "bnpo"},
    "entropy_coef (0.01): TRL's own loss counts every row alike in its entropy bonus": {"entropy_coef": 0.01},
}


@pytest.mark.parametrize("said", UNWEIGHED)
def test_what_trls_own_loss_cannot_weigh_is_refused_beside_rows_with_shares_in_a_config_and_at_work(said, trained):
    for giver in ({"dead_groups": "roulette"}, {"selection": "contrast"}):
        with pytest.raises(ConfigError) as caught:
            GRPOPlusConfig(**BASE, **giver, **UNWEIGHED[said])
        assert said in str(caught.value)
        assert "Set objective, which weighs rows" in str(caught.value)
    with pytest.raises(ConfigError, match="A batch with weights of rows does not go with"):
        trained(trainer={"hooks": [Shared(*QUARTERS)]}, **UNWEIGHED[said])


def test_the_shares_multiply_the_advantages_that_the_hosts_loss_reads(trained):
    trainer = trained(trainer={"hooks": [Shared(*QUARTERS)]}, max_steps=1, advantage="raw")
    (batch,), share = trainer.generated, torch.tensor(QUARTERS)
    raw = torch.tensor(list(trainer._logs["rewards"]["digits"]))
    assert batch["advantages"].tolist() == pytest.approx((raw * share).tolist())
    assert batch["num_items_in_batch"] == (batch["completion_mask"].sum(1) * share).sum()


def test_rows_of_share_0_need_no_pass_whatever_else_pulls_on_every_row(trained):
    settings = {"objective": "dapo", "beta": 0.1, "entropy_coef": 0.1, "engine": "trimmed", "max_steps": 1}
    trainer = trained(trainer={"hooks": [Shared(*[0.0] * 4, *[1.0] * 4)]}, **settings)
    assert logged(trainer, "engine/rows_skipped") == [0.5]
