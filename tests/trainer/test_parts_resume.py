"""State of every part in checkpoints: a run that resumes is the uninterrupted one, bit for bit."""

import json
import re

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, EarlyStoppingCallback

from grpo_plus.record import open_run
from grpo_plus.record.files import BYTES, ByteBudget
from grpo_plus.training.resume import state
from grpo_plus.training.resume.state import StateError
from grpo_verifiers import Step, Verdict, all_of, get_verifier, verifier
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.verifying import REGISTRY
from tests.memory.test_out_of_memory import Card
from tests.trainer.carried import Look, differences, unlike

STEPS, AT = 6, 3
RUN = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "max_completion_length": 6}
RUN |= {"optim": "adamw_torch", "learning_rate": 1e-2}
ADAPTIVE = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
REFRESHED = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0}
ENTROPY = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.003, "entropy_target": 2.8}
INSIDE = {"steps_per_generation": 2, "num_iterations": 3, "gradient_accumulation_steps": 1, "num_generations": 4}
STOP = {"objective": {"name": "target", "stop_fraction": 0.5}, "learning_rate": 1.0, **INSIDE}


RESAMPLE = {"dead_groups": "resample", "per_device_train_batch_size": 16}
ROULETTE = {"dead_groups": {"name": "roulette", "keep": 0.5}, "objective": "grpo"}


def fourth(completions, **_):
    """1 for a fourth of all completions: a third of the groups is tied."""
    return [float(sum(map(ord, text)) % 4 == 0) for text in completions]


@pytest.fixture
def resumed(build, tmp_path):
    """Trains a run to its end, and once more from a checkpoint: `resumed({"beta": 0.1}, at=3)` gives both."""

    def resumed(settings, *, at=AT, meet=lambda trainer: None, **trainer):
        runs = []
        for checkpoint in (None, str(tmp_path / "out" / f"checkpoint-{at}")):
            run = build(trainer={**trainer, "hooks": [Look(at)]}, **{**RUN, **settings})
            if checkpoint is None:
                meet(run)
            run.train(resume_from_checkpoint=checkpoint)
            run.record = record(tmp_path / "out") if run.pipeline.recorder else {}
            runs.append(run)
        return runs

    return resumed


def record(folder):
    run = open_run(folder)
    values = {(one["kind"], one["step"], name): value for one in run.entries for name, value in one["values"].items()}
    found = {key: one for key, one in values.items() if not re.search("time|latency|_per_second|train_loss", key[-1])}
    return found | {(one["mode"], one["step"], one["group"]): {**one, "time": None} for one in run.groups()}


def weights(trainer, model="model"):
    return {name: weight.detach().clone() for name, weight in getattr(trainer, model).named_parameters()}


def assert_same(one, other, model="model"):
    found, expected = weights(other, model), weights(one, model)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == [], model


def assert_nothing_lost(whole, again):
    one, other = (run.pipeline.hooks[-1].seen for run in (whole, again))
    assert not unlike(one, other)
    assert_same(whole, again)
    assert not [(key, whole.record.get(key), again.record.get(key)) for key in differences(whole.record, again.record)]


@pytest.fixture
def checks():
    """Verifiers that only running tells about: one gives steps to some completions, one fails wherever it can."""

    @verifier("some_steps", isolation="inline")
    def some_steps(completion: str, completion_text: str) -> Verdict:
        del completion
        middle = len(completion_text) // 2
        steps = (Step(0, middle, 1.0), Step(middle, len(completion_text), 0.5))
        return Verdict(0.5, steps=steps if middle % 2 == 0 else ())

    @verifier("fails", isolation="inline")
    def fails(completion: str) -> float:
        raise ValueError("never works")

    verifier("plainly", isolation="inline")(lambda completion: len(completion) / 10)
    yield
    for name in ("some_steps", "fails", "plainly"):
        REGISTRY.unregister(name)


def lora(modules=("q_proj", "v_proj"), **more):
    return LoraConfig(r=4, target_modules=modules if isinstance(modules, str) else list(modules), **more)


FAILING = {"verifiers": [{"name": "fails", "on_error": "zero"}], "advantage": "center"}
PROCESS = {"verifiers": ["some_steps"], "advantage": {"name": "process", "outcome_weight": 1.0}}
PLAINLY = {"advantage": {"name": "process", "outcome_weight": 1.0}}
PARTS = {
    "TRL's own loss": ({}, {}), "the KL coefficient": ({"objective": {"name": "grpo", **ADAPTIVE}, "beta": 0.05}, {}),
    "the entropy bonus": ({"objective": "grpo", **ENTROPY}, {}),
    "both": ({"objective": {"name": "grpo", **ADAPTIVE}, "beta": 0.05, **ENTROPY}, {}), "TRL's entropy bonus": (ENTROPY, {}),
    "the reference of a full model": ({**REFRESHED, "ref_model_mixup_alpha": 0.6}, {}),
    "the reference of an adapter": ({**REFRESHED, "objective": "grpo"}, {"peft_config": lora()}),
    "the source of steps": (PROCESS, {"reward_funcs": None}), "inner iterations": (STOP, {}),
    "inner iterations that are over": ({**STOP, "objective": {"name": "target", "stop_fraction": 0.01}}, {}),
    "the reference of a full model, inside a batch": ({**REFRESHED, **INSIDE, "objective": "grpo"}, {}),
    "the source of steps, inside a batch": ({**PROCESS, **INSIDE}, {"reward_funcs": None}), "failures of a verifier": (FAILING, {}),
    "fresh prompts": (RESAMPLE, {"reward_funcs": fourth}),
    "fresh prompts, inside a batch": ({**RESAMPLE, **INSIDE}, {"reward_funcs": fourth}), "coins": (ROULETTE, {"reward_funcs": fourth}),
    "coins, inside a batch": ({**ROULETTE, **INSIDE}, {"reward_funcs": fourth}),
}  # fmt: skip


@pytest.mark.sample(0, 7)
@pytest.mark.parametrize("name", PARTS)
def test_nothing_that_is_carried_over_a_step_is_lost(resumed, checks, name):
    settings, trainer = PARTS[name]
    whole, again = resumed(settings, **trainer)
    assert_nothing_lost(whole, again)


@pytest.mark.sample(0)
def test_the_reference_of_a_full_model_is_kept_once_it_has_moved(resumed, tiny_model, tmp_path):
    whole, again = resumed(REFRESHED, at=3)
    assert_same(whole, again, "ref_model")
    assert_same(whole, again)
    start = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    moved = tmp_path / "out" / "checkpoint-2" / "grpo_plus_reference_model.safetensors"
    kept = load_file(moved)
    assert kept.keys() == start.keys()
    assert all(kept[name].dtype == weight.dtype for name, weight in weights(whole, "ref_model").items())
    assert any(not torch.equal(kept[name], start[name]) for name in start)
    assert not moved.parent.with_name("checkpoint-1").joinpath(moved.name).exists()


def test_a_checkpoint_without_the_reference_says_so(trained, tmp_path, caplog):
    settings = {**RUN, **REFRESHED, "max_steps": 3, "save_only_model": True}
    trained(**settings)
    folder = tmp_path / "out" / "checkpoint-3"
    assert not (folder / "grpo_plus_reference_model.safetensors").exists()
    trained(**{**settings, "max_steps": 4}, resume=str(folder))
    assert "the checkpoint does not contain the reference of step 2, so the run continues with the" in caplog.text


def test_the_reference_of_another_dtype_is_refused(build, trained, tmp_path):
    trained(**{**RUN, **REFRESHED, "max_steps": 2})
    path = tmp_path / "out" / "checkpoint-2" / "grpo_plus_reference_model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(path).items()}, path)
    path.with_name("grpo_plus_manifest.json").unlink()
    again = build(**RUN, **REFRESHED)
    with pytest.raises(StateError, match=r"of torch\.bfloat16, expected \(.*\) of torch\.float32"):
        state.load(again.pipeline.stages, path.parent, rank=0, processes=1)


TWICE = {"objective": "target", "num_iterations": 2}
BOUNDS = {
    "the update": ("backward", {}, lambda run: run.engine.tokens_per_pass),
    "passes without gradient": ("scoring", TWICE, lambda run: run.pipeline.retry.most_rows),
    "completions in flight": ("drawing", {"rollout": "auto"}, lambda run: run.pipeline.lean.most_rows),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_that_memory_has_set_are_kept(resumed, name):
    where, settings, bound = BOUNDS[name]
    cards = []
    settings = {**settings, "engine": "trimmed"}
    whole, again = resumed(settings, at=4, meet=lambda run: cards.append(Card(run, where, 10, times=1)))
    assert [card.failures for card in cards] == [1]
    assert bound(whole) is not None
    assert bound(again) == bound(whole)
    assert_same(whole, again)


@pytest.mark.slow
def test_a_bound_that_the_config_sets_anew_wins(build, tmp_path):
    first = build(**RUN, rollout="auto")
    Card(first, "drawing", 10, times=1)
    Card(first, "backward", 40, times=1)
    first.train()
    assert None not in (first.pipeline.lean.most_rows, first.engine.tokens_per_pass)
    again = build(**RUN, rollout={"how": "auto", "rows": 7}, engine={"tokens_per_pass": 1000})
    state.load(again.pipeline.stages, tmp_path / "out" / "checkpoint-6", rank=0, processes=1)
    assert (again.pipeline.lean.most_rows, again.engine.tokens_per_pass) == (7, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error", "settings"),
    [("fails", VerifierFailedError, {"advantage": "center", "save_total_limit": 1}), ("plainly", ValueError, PLAINLY)],
)
def test_patience_with_a_verifier_ends_a_resumed_run_where_it_ends_the_whole_one(build, checks, name, error, settings):
    def ends(checkpoint):
        run = build(trainer={"reward_funcs": None}, verifiers=[name], **RUN, **settings)
        with pytest.raises(error, match=r"failed on all of the last 32 completions|gave no step with a score"):
            run.train(resume_from_checkpoint=checkpoint)
        return run.state.global_step

    whole = ends(None)
    assert whole > 1
    assert ends(True) == whole


def test_counts_of_a_composed_verifier_are_those_of_its_parts():
    one, other = (all_of(get_verifier("exact"), get_verifier("numeric")) for _ in range(2))
    assert one.state_dict() == {}
    one.parts[1]._policy.failures = 3
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [part.state_dict() for part in other.parts] == [{}, {"failures": 3, "late": 0}]


@pytest.mark.parametrize(("given", "steps"), [(BYTES, [False, False, True]), (3 * BYTES, [True])])
def test_the_bytes_of_a_resumed_record_are_those_of_the_run(given, steps):
    budget = ByteBudget()
    budget.counted = 1000
    budget.begin(given)  # of which the run takes back all but 1000
    for used_up in steps:
        assert budget.used_up(0.5 if given == BYTES else 1.0) is used_up
        budget.wrote(BYTES // 2)


EVALUATING = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward"}


def scheduled(kind, **options):
    return {"lr_scheduler_type": kind, "lr_scheduler_kwargs": options}


DORA = {"use_dora": True, "use_rslora": True}
HOSTS = {
    **{name: ({"optim": name}, {}) for name in ("adamw_8bit", "paged_adamw_8bit", "adafactor", "rmsprop", "adagrad")},
    "sgd with momentum": ({"optim": "sgd", "optim_args": "momentum=0.9"}, {}),
    "cosine with restarts": (scheduled("cosine_with_restarts", num_cycles=3) | {"warmup_steps": 2}, {}),
    "warmup, stable, decay": (scheduled("warmup_stable_decay", num_decay_steps=2) | {"warmup_steps": 2}, {}),
    "reduced on a plateau": (scheduled("reduce_lr_on_plateau", patience=0, mode="max") | EVALUATING, {}),
    "dropout": ({"beta": 0.1}, {"peft_config": lora("all-linear", lora_dropout=0.3)}),
    "weights in bf16": ({"model_init_kwargs": {"dtype": "bfloat16"}, "optim": "adamw_torch_fused"}, {}),
    "weights of other modules": ({}, {"peft_config": lora(["q_proj"], modules_to_save=["lm_head"], use_dora=True)}),
    "DoRA, rank-stabilised": ({"optim": "paged_adamw_8bit"}, {"peft_config": lora("all-linear", **DORA)}),
    "a base changed by PiSSA": ({}, {"peft_config": lora(["q_proj"], init_lora_weights="pissa_niter_4")}),
}


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("name", HOSTS)
def test_what_the_host_carries_over_a_step_is_kept(resumed, sums, name):
    settings, trainer = HOSTS[name]
    whole, again = resumed(settings, **trainer, eval_dataset=sums.select(range(2)))
    assert_nothing_lost(whole, again)


def test_an_early_stop_comes_where_it_came(trained, sums, tmp_path):
    def ends(checkpoint):
        callbacks = [EarlyStoppingCallback(patience, threshold) for patience, threshold in ((4, 10.0), (7, 10.0))]
        trainer = {"eval_dataset": sums.select(range(2)), "callbacks": callbacks}
        run = trained(trainer=trainer, **RUN | EVALUATING | {"max_steps": 8}, resume=checkpoint)
        return run.state.global_step, [callback.early_stopping_patience_counter for callback in callbacks]

    whole = ends(None)
    assert whole == (5, [4, 4])  # the first evaluation is the best one
    assert ends(str(tmp_path / "out" / "checkpoint-3")) == whole


def test_two_ranks_go_on_inside_a_generation_batch(ranks):
    found = ranks("parts")
    for rank in found:
        assert [run["unlike"] + run["weights"] for run in rank.values()] == [[]] * 3
    (first, together), (second, none) = (rank["inner iterations"]["counts"] for rank in found)
    assert together == [one + other for one, other in zip(first, second, strict=True)]  # each counted its own tokens
    assert none == [0.0, 0.0] != first


@pytest.mark.parametrize("at", [3, 4, 5])
def test_the_steps_that_are_skipped_are_those_of_the_whole_run(resumed, sums, at):
    settings = {**STOP, "objective": {"name": "target", "stop_fraction": 0.01}}
    settings |= {"eval_strategy": "steps", "eval_steps": 3}
    whole, again = resumed(settings, at=at, eval_dataset=sums.select(range(2)))
    skipped = [step for kind, step, name in whole.record if (kind, name) == ("train", "inner/skipped")]
    assert skipped == [3, 4, 5, 6]
    assert not any("inner/" in str(name) for kind, _, name in whole.record if kind == "eval")
    assert whole.pipeline.inner.passed == again.pipeline.inner.passed == len(skipped)
    assert_nothing_lost(whole, again)
