"""Rounds: what ends after so many steps, at the end of a generation batch, resumed and on two ranks."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig
from grpo_plus.record import open_run
from grpo_plus.training.rounds import Rounds
from grpo_verifiers.errors import ConfigError
from tests.trainer import conftest
from tests.trainer.carried import Look, unlike
from tests.trainer.conftest import logged

BASE = {**conftest.BASE, "per_device_train_batch_size": 8}
FRESH = {"every": 2, "reference": "refresh"}
RUN = {"beta": 0.1, "objective": "grpo", "max_completion_length": 6, "learning_rate": 0.05, "rounds": FRESH}
RESELECT = {"every": 2, "prompts": "reselect"}
SAVED = {"save_strategy": "steps", "save_steps": 1}


def lora():
    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])


PROBLEMS = {
    "no length": ({"reference": "refresh"}, "rounds: option 'every' is required"),
    "no steps": ({"every": 0, "reference": "refresh"}, "rounds: every is 0, expected an integer of at least 1"),
    "a word": ({"every": "ten", "reference": "refresh"}, "'every' is 'ten', expected an integer of at least 1"),
    "another word": ({"every": 2, "reference": "renew"}, "'reference' is 'renew', expected"),
    "an option that is not there": ({"every": 2, "referense": "refresh"}, "Did you mean 'reference'"),
    "no mapping": ([2], "rounds is [2], expected a mapping"),
    "nothing to do": ({"every": 2}, "rounds every is 2, but nothing is done in a round"),
    "no reward model": ({"every": 2, "reward_model": "train"}, "reward_model is 'train', but no reward_model is set"),
    "no selection": ({"every": 2, "prompts": "reselect"}, "but no selection is set, so all prompts are drawn alike"),
}


BESIDE = {
    **{name: ({"rounds": rounds}, message) for name, (rounds, message) in PROBLEMS.items()},
    "no reference": ({"beta": 0.0}, "rounds reference is 'refresh', but beta is 0"),
    "two that refresh": ({"sync_ref_model": True}, "both refresh the reference policy"),
    "replayed log-probabilities": ({"dead_groups": "replay", "objective": "grpo"}, "dead_groups is 'replay', but"),
    "one round": ({"max_steps": 2}, "rounds every is 2, but max_steps is 2, so no second round would begin"),
    "inside a batch": ({"num_iterations": 3}, "a generation batch is trained on for 3 optimizer steps ("),
    "selection without weights": ({"selection": "uniform", "rounds": RESELECT}, "'uniform' draws by no weights"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_every_problem_of_the_field_and_what_cannot_stand_beside_it_is_refused(name):
    settings, message = BESIDE[name]
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE, **{"beta": 0.1, "rounds": FRESH, **settings})
    assert [message in problem for problem in map(str, caught.value.problems)] == [True]


@pytest.mark.parametrize(("sizes", "every", "choices"), [
    ((2, 3, 1), 7, "6 or 12"), ((2, 3, 2), 4, "3 or 6"),
    ((2, 2, 3), 6, "4 or 8"),  # four micro-batches and windows of three meet after four steps
    *(((1, 1, 4), 3, None), ((2, 3, 4), 6, None)),
])  # fmt: skip
def test_a_round_is_so_many_generation_batches(sizes, every, choices):
    names = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
    settings = {**dict(zip(names, sizes, strict=True)), "rounds": {**FRESH, "every": every}, "beta": 0.1}
    if choices is None:
        assert GRPOPlusConfig(**BASE, **settings).recipe.rounds.every == every
        return
    with pytest.raises(ConfigError, match=f"set every to {choices}"):
        GRPOPlusConfig(**BASE, **settings)


def test_text_and_nothing_mean_the_same_as_a_mapping():
    made = [GRPOPlusConfig(**BASE, beta=0.1, rounds=given) for given in (FRESH, json.dumps(FRESH))]
    assert (made[0].recipe.rounds, made[0].recipe.rounds.does) == (made[1].recipe.rounds, ("reference",))
    assert made[0].recipe.records
    for given in (None, "none", ""):
        assert GRPOPlusConfig(**BASE, rounds=given).recipe.rounds is None
    assert not GRPOPlusConfig(**BASE).recipe.records


class Watch(TrainerCallback):
    def __init__(self):
        self.apart = []

    def on_step_end(self, args, state, control, model=None, **_):
        named = dict(self.trainer.model.named_parameters())
        if self.trainer.ref_model is not None:
            pairs = zip(named.values(), self.trainer.ref_model.parameters(), strict=True)
        else:
            own = [name for name in named if ".default." in name]
            pairs = [(named[name], named[name.replace(".default.", ".ref.")]) for name in own]
        self.apart.append(max(float((one - other).abs().max().detach()) for one, other in pairs))


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_the_reference_becomes_the_policy_at_the_end_of_each_round(build, tmp_path, adapter):
    watch = Watch()
    further = {"peft_config": lora()} if adapter else {}
    trainer = build(trainer={"callbacks": [], **further}, max_steps=5, **RUN)
    trainer.add_callback(watch)  # after the hooks
    watch.trainer = trainer
    trainer.train()
    assert [apart == 0 for apart in watch.apart] == [False, True, False, True, False]
    assert [value == pytest.approx(0, abs=1e-7) for value in logged(trainer, "kl")] == [True, False, True, False, True]
    assert logged(trainer, "rounds/number") == [1, 1, 2, 2, 3]
    lines = open_run(tmp_path / "out").rounds()
    told = [(line["number"], line["first"], line["step"], *line["did"]) for line in lines]
    assert told == [(1, 1, 2, "reference"), (2, 3, 4, "reference")]
    assert all(line["seconds"] >= 0 for line in lines)


def test_a_refreshed_second_model_is_what_the_host_makes_of_it(trained):
    """Two optimizer steps a round are `ref_model_sync_steps: 2` with all of the policy taken over."""
    same = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0, "rounds": None}
    ends = []
    for settings in ({}, same):
        trainer = trained(max_steps=4, **{**RUN, **settings})
        ends.append([*trainer.model.parameters(), *trainer.ref_model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


SELECTED = {"selection": "contrast", "rounds": RESELECT, "max_completion_length": 6}
LEARNED = {
    "reward_model": {"every": 0, "on": "adapter", "lora_r": 2}, "max_completion_length": 6,
    "rounds": {"every": 2, "reward_model": "train"},
}  # fmt: skip
PARTS = {
    "a second model": (RUN, {}, 2), "an adapter": (RUN, {"peft_config": lora()}, 2), "prompts": (SELECTED, {}, 3),
    "prompts and a reference": ({**RUN, **SELECTED, "rounds": {**FRESH, "prompts": "reselect"}}, {}, 2),
    "a reward model": (LEARNED, {"peft_config": lora()}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_run_that_resumes_goes_on_in_its_round_bit_for_bit(trained, tmp_path, name):
    settings, further, at = PARTS[name]
    runs, records = [], []
    for checkpoint in (None, str(tmp_path / "out" / f"checkpoint-{at}")):
        run = trained(trainer={**further, "hooks": [Look(at)]}, max_steps=6, **{**settings, **SAVED}, resume=checkpoint)
        runs.append(run)
        lines = open_run(tmp_path / "out").rounds()
        records.append([{key: line[key] for key in ("number", "first", "step", "did")} for line in lines])
    whole, again = runs
    if name != "a reward model":  # whose passes hold caches
        assert not unlike(whole.hooks[-1].seen, again.hooks[-1].seen)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (records[0], [line["step"] for line in records[0]]) == (records[1], [2, 4, 6])
    if name == "a reward model":
        assert [run.reward_model.trainings for run in runs] == [3, 3]


@pytest.mark.slow
def test_weights_of_prompts_stand_still_within_a_round(build):
    trainer = build(max_steps=6, **SELECTED)
    held = []

    class Keep(TrainerCallback):
        def on_step_end(self, *_, **__):
            held.append((trainer.selecting._chances().clone(), trainer.selecting._present().clone()))

    trainer.add_callback(Keep())
    trainer.train()
    chances, present = zip(*held, strict=True)
    assert torch.equal(chances[0], torch.full_like(chances[0], 1 / 16))  # of an empty history
    assert not torch.equal(present[0], chances[0])
    for border in (1, 3, 5):
        assert torch.equal(chances[border], present[border])
    assert torch.equal(chances[1], chances[2])
    assert torch.equal(chances[3], chances[4])
    assert not torch.equal(chances[2], present[2])
    assert not torch.equal(chances[1], chances[3])


def test_a_round_waits_for_the_end_of_its_batch():
    """A shorter accumulation window at the end of a pass shifts steps against batches."""
    ended = []
    recipe_rounds = GRPOPlusConfig(**BASE, beta=0.1, rounds=FRESH).recipe.rounds
    hook = Rounds(recipe_rounds, {"reference": lambda: ended.append(host.state.global_step)}, None)

    state, args = SimpleNamespace(global_step=0), SimpleNamespace(steps_per_generation=2)
    host = hook.host = SimpleNamespace(state=state, args=args, num_iterations=1, _step=0, _buffered_inputs=[])
    for host._step, host.state.global_step in ((1, 1), (3, 2), (4, 3), (6, 4), (8, 5)):
        hook.on_step_end()
    assert ended == [3, 5]
    assert hook.number == 2
