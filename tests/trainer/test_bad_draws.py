"""Data and rewards that are bad for every way of drawing: each trains on, or is refused with a way out."""

import pytest
from datasets import Dataset

from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import weights

WAYS = {
    "resample": {"dead_groups": "resample"},
    "roulette": {"dead_groups": "roulette"},
    "replay": {"dead_groups": "replay", "objective": "grpo"},
    "contrast": {"selection": "contrast"},
    "contrast, resample": {"selection": "contrast", "dead_groups": "resample"},
    "contrast, roulette": {"selection": "contrast", "dead_groups": "roulette"},
}
UNWEIGHTED = {"selection": "contrast", "selection_kwargs": {"weighted": False}}
WAYS["contrast, replay"] = {**WAYS["replay"], **UNWEIGHTED}
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

    def batch(self, output):
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


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def everyway(test):
    return pytest.mark.sample(0, 2)(pytest.mark.parametrize("way", WAYS)(test))


@everyway
def test_prompts_that_repeat_are_one_prompt_and_train(build, way):
    trainer = train(build, way, data=asking(*[1, 2, 3] * 4))
    if "contrast" in way:
        assert len(trainer.selecting.history) == 3


@everyway
def test_all_prompts_dead_for_ever_change_nothing_end_and_are_counted(build, way, caplog):
    before = weights(build())
    trainer = train(build, way, rewards=flat)
    assert bool((before == weights(trainer)).all())
    if "dead_groups" in WAYS[way]:
        assert logged(trainer, "dead_groups/dead") == [1.0] * STEPS
        assert caplog.text.count("no group of a generation batch teaches anything") == 1
    if "contrast" in way:
        assert logged(trainer, "selection/impossible")[-1] > 0


@everyway
@pytest.mark.parametrize("rewards", [graded, patchy], ids=lambda function: function.__name__)
def test_rewards_that_are_not_0_or_1_or_missing_train(build, way, rewards):
    trainer = train(build, way, rewards=rewards)
    assert len(logged(trainer, "loss")) == STEPS
    if rewards is patchy and "dead_groups" in WAYS[way]:  # a group without a reward teaches nothing
        assert max(logged(trainer, "dead_groups/dead")) > 0


@everyway
def test_groups_of_two_train_or_are_refused_with_a_way_out(build, way):
    if "roulette" in way:
        with pytest.raises(ConfigError, match=r"num_generations is 2.*Set num_generations to 3 or more"):
            train(build, way, num_generations=2)
    else:
        train(build, way, num_generations=2)


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
def test_data_smaller_than_a_batch_is_refused(build, way):
    with pytest.raises(ConfigError, match=r"the dataset has 1 rows, but a generation batch takes 2 prompts"):
        train(build, way, data=asking(1))
