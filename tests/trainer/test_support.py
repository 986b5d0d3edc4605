"""Truncated sampling: tokens are scored within what they were drawn from, on every path, and the policy's ratio is 1."""

import json
import math
from functools import partial

import pytest
import torch
from peft import LoraConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.table import config_notes
from grpo_plus.sampling.allowed_tokens import AllowedTokens, from_ids
from grpo_plus.sampling.sampler import Sampling, processors
from grpo_plus.sampling.vllm_push import LEAST, MOST, allowed_ids, from_json, logprobs_count
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import CRITIC_FEATURES, Hook
from grpo_plus.training.resume.data_position import packed, unpacked
from tests.trainer.conftest import BASE, weights

OURS = {"rollout": "auto", "learning_rate": 0.5}
CUTS = {
    "all": {"top_p": 0.9, "top_k": 20, "min_p": 0.1, "temperature": 0.7}, "top_p": {"top_p": 0.9}, "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1}, "generation_kwargs": {"generation_kwargs": {"top_k": 5}},
}  # fmt: skip
SCHEDULES = {
    "two iterations": {"num_iterations": 2, "beta": 0.1, "objective": "dapo"},
    "one update": {},
    "several updates a generation": {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
    "TRL's loss": {"advantage": None, "num_iterations": 2, "beta": 0.1},
}


class Watch(Hook):
    """Notes generation batches as they are, and of every micro-batch its inputs, log-probabilities and weights."""

    def __init__(self):
        self.batches, self.seen, self.outside = [], [], None
        self._inputs = None

    def batch(self, batch):
        output = batch.output
        brute = brute_logps(self.host, output)
        inside = (brute_logps(self.host, output, truncate=False) - brute)[output["completion_mask"].bool()].exp()
        self.outside = self.outside or 1 - float(inside.mean())
        self.batches.append({**{k: v for k, v in output.items() if k != "support"}, "brute": brute, **output})

    def loss(self, compute, model, inputs):
        self._inputs = inputs
        return compute(model, inputs)

    def logps(self, score, *arguments, **keywords):
        result = score(*arguments, **keywords)
        if torch.is_grad_enabled():
            step = self.host.state.global_step
            self.seen.append((step, self._inputs, result[0].detach().clone()))
        return result

    def watch(self, trainer):
        trainer.pipeline.hooks.append(self)
        score = trainer._get_per_token_logps_and_entropies
        trainer._get_per_token_logps_and_entropies = partial(self.logps, score)


@pytest.fixture
def watched(build):
    def watched(trainer=None, **settings):
        watch = Watch()
        made = build(trainer=trainer, **{"advantage": "zscore", **OURS, **settings})
        watch.after_loading(made)
        watch.watch(made)
        made.train()
        return made, watch

    return watched


def whole(output):
    parts = [(output[f"prompt_{name}"], output[f"completion_{name}"]) for name in ("ids", "mask")]
    return [torch.cat(part, 1) for part in parts]


@torch.no_grad()
def brute_logps(host, output, *, truncate=True):
    """Within the support, from the model's logits in float64."""
    ids, mask = whole(output)
    model = host.accelerator.unwrap_model(host.model)
    width = output["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].double() / host.temperature
    if truncate and "support" in output:
        support = AllowedTokens(output["support"], width, ids.device)
        allowed = support.mask(torch.arange(len(ids) * width, device=ids.device), logits.shape[2]).view_as(logits)
        logits = logits.masked_fill(~allowed, -torch.inf)
    chosen = logits.log_softmax(-1).gather(-1, output["completion_ids"][..., None])[..., 0]
    return torch.where(output["completion_mask"].bool(), chosen, 0.0)


@pytest.mark.sample(1, 12)
@pytest.mark.parametrize("engine", ["packed", "trimmed", "stock"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cut", CUTS)
def test_on_policy_the_ratio_is_one_and_log_probabilities_are_those_of_what_was_drawn(watched, cut, schedule, engine):
    check_run(watched, cut, schedule, engine)


def check_run(watched, cut, schedule, engine, **further):
    trainer, watch = watched(engine=engine, **CUTS[cut], **SCHEDULES[schedule], **further)
    assert len(watch.batches) >= 1
    first = {}
    for step, inputs, logps in watch.seen:
        mask = inputs["completion_mask"].bool()
        assert torch.isfinite(logps).all()
        key = tuple(inputs["completion_ids"][0].tolist())
        if key in first or (step and schedule == "several updates a generation"):
            continue
        first[key] = step
        if inputs.get("old_per_token_logps") is not None:
            ratio = (logps - inputs["old_per_token_logps"]).exp()
            assert torch.allclose(ratio[mask], torch.ones_like(ratio[mask]), atol=1e-5)
            if "ref_per_token_logps" in inputs and step == 0:
                same = inputs["ref_per_token_logps"][mask]
                assert torch.allclose(same, logps[mask], atol=1e-5)
    for output in watch.batches:
        mask = output["completion_mask"].bool()
        old = output.get("old_per_token_logps")
        if old is not None:
            assert torch.allclose(old.double()[mask], output["brute"][mask], atol=1e-5)
        everything = brute_logps(trainer, output, truncate=False)[mask]
        assert output["brute"][mask].mean() - everything.mean() > 0.01
        for row, length in zip(output["support"], mask.sum(1).tolist(), strict=True):
            assert int(row[0]) == length
    figures = [entry["rollout/outside_support"] for entry in trainer.state.log_history if "loss" in entry]
    assert all(0.01 < figure < 0.95 for figure in figures)
    assert figures[0] == pytest.approx(watch.outside, rel=0.02)


@pytest.mark.sample(1)
def test_the_support_is_what_transformers_own_warpers_leave(watched):
    trainer, watch = watched(max_steps=1, learning_rate=0.0, **CUTS["all"])
    (output,) = watch.batches
    ids, mask = whole(output)
    width = output["completion_ids"].shape[1]
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].float()
    chain = processors(Sampling((), 1, 0, temperature=0.7, top_k=20, top_p=0.9, min_p=0.1))
    present = output["completion_mask"].bool().reshape(-1)
    scores = chain(None, logits.reshape(-1, logits.shape[-1]).clone())
    support = AllowedTokens(output["support"], width, ids.device)
    allowed = support.mask(torch.arange(len(scores), device=ids.device), scores.shape[1])
    agree = ((scores > -torch.inf) == allowed).all(-1)[present]
    assert agree.float().mean() > 0.98  # a logit at the edge may fall on either side of it
    assert int(allowed[present].sum(-1).max()) <= 20


@pytest.mark.sample(0)
def test_without_truncation_nothing_is_kept_and_the_run_is_the_same_to_the_bit(build, watched):
    trainer, watch = watched(seed=3)
    assert all("support" not in output for output in watch.batches)
    other = build(advantage="zscore", seed=3, **OURS)
    other.pipeline.allowed_tokens.take = lambda *_: None
    other.pipeline.allowed_tokens.add = lambda output, **_: output
    other.train()
    assert torch.equal(weights(trainer), weights(other))
    assert not any("rollout/outside_support" in entry for entry in trainer.state.log_history)


def test_with_adapters_and_with_experts_the_ratio_is_one(watched, tmp_path):
    peft = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    for engine in ("stock", "packed"):
        check_run(watched, "top_k", "two iterations", engine, trainer={"peft_config": peft})
    make_tiny_model(tmp_path / "moe", architecture="mixtral")  # which keep their balance loss beside it
    more = {"router_aux_loss_coef": 0.01, "trainer": {"model": str(tmp_path / "moe")}}
    check_run(watched, "top_k", "two iterations", "auto", **more)


BESIDE = {
    "a bound on passes": {"engine": {"tokens_per_pass": 30}}, "checkpointed activations": {"gradient_checkpointing": True},
    "an entropy bonus": {"entropy_coef": 0.1}, "evaluations": {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4},
    "few rows a pass": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_else_a_run_does_leaves_the_ratio_at_one(watched, sums, name):
    given = {"eval_dataset": sums.select(range(4))}
    further = {"engine": "auto", **BESIDE[name]}
    check_run(watched, "top_k", "two iterations", **further, trainer=given)


def test_rounds_carry_the_supports(watched):
    def rare(completions, **_):
        return [float("a" in text) for text in completions]

    for way in (
        {"dead_groups": {"name": "resample", "rounds": 2}},
        {"dead_groups": {"name": "roulette", "after": 2, "keep": 0.5}},
    ):
        settings = {"engine": "packed", "num_iterations": 2, "objective": "dapo", "max_steps": 4, **CUTS["top_k"]}
        trainer, watch = watched({"reward_funcs": [rare]}, **settings, **way)
        assert max(entry.get("dead_groups/rounds", 0) for entry in trainer.state.log_history) > 1
        compared = 0
        for output in watch.batches:
            mask, old = output["completion_mask"].bool(), output["old_per_token_logps"].double()
            assert torch.allclose(old[mask], output["brute"][mask], atol=1e-5)
            compared += int(mask.sum())
        assert compared > 100


@pytest.mark.sample(1)
def test_supports_go_with_their_rows_through_what_trl_does_to_a_batch(watched):
    from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

    _, watch = watched(max_steps=1, **CUTS["top_p"])
    (output,) = watch.batches
    batch = {name: output[name] for name in ("completion_ids", "support")}
    told = {tuple(ids.tolist()): row for ids, row in zip(*batch.values(), strict=True)}
    parts = split_tensor_dict(shuffle_sequence_dict(batch), 4)
    tensors = {}
    kept = [packed(part, str(place), tensors) for place, part in enumerate(parts)]
    for part in unpacked({"list": json.loads(json.dumps(kept))}, tensors, "cpu"):
        for ids, row in zip(part["completion_ids"], part["support"], strict=True):
            assert torch.equal(told[tuple(ids.tolist())], row)


def test_a_batch_comes_back_on_the_device_but_for_what_waits_in_main_memory():
    tensors = {}
    part = {"completion_ids": torch.ones(2, 3), CRITIC_FEATURES: torch.ones(2, 3, 4), "support": [torch.ones(2)]}
    kept = json.loads(json.dumps(packed([part], "batch", tensors)))
    (found,) = unpacked(kept, tensors, torch.device("meta"))
    assert found["completion_ids"].is_meta
    assert torch.equal(found["support"][0], part["support"][0])
    assert torch.equal(found[CRITIC_FEATURES], part[CRITIC_FEATURES])  # those of meta have no numbers


def checksums(completions, **_):
    return [float(sum(map(ord, text)) % 7) for text in completions]


def vowels(completions, **_):
    return [float("a" in text or "e" in text) for text in completions]


@pytest.mark.parametrize(
    ("changes", "at"),
    [({"num_iterations": 4, "max_steps": 4}, 2), ({"dead_groups": "replay", "max_steps": 10, "save_steps": 4}, 4)],
    ids=["inside a generation batch", "with groups to replay"],
)
def test_a_run_resumes_with_its_supports(trained, tmp_path, changes, at):
    saving = {"save_steps": 1, "save_strategy": "steps", "learning_rate": 0.05}
    settings = {**OURS, **CUTS["top_k"], "advantage": "zscore", "objective": "dapo", **saving, **changes}
    judged = {"reward_funcs": [vowels if "dead_groups" in changes else checksums]}
    straight = trained(trainer=judged, **settings)
    if "dead_groups" in changes:
        assert any(entry.get("dead_groups/age") for entry in straight.state.log_history[at:])
    assert any(entry.get("grad_norm") for entry in straight.state.log_history[at:])
    resumed = trained(trainer=judged, **settings, resume=str(tmp_path / "out" / f"checkpoint-{at}"))
    assert torch.equal(weights(resumed), weights(straight))


def test_two_ranks_score_within_their_supports(ranks):
    found = ranks("support")
    assert [one["world"] for one in found] == [2, 2]
    for one in found:
        assert one["tokens"] > 50
        assert one["off"] < 1e-5
        assert one["ratio"] < 1e-5


@pytest.mark.sample(1)
def test_where_the_support_is_unknown_a_run_says_so_once(watched, caplog):
    trainer, watch = watched(generation_kwargs={"no_repeat_ngram_size": 2}, **CUTS["top_k"])
    (said,) = [record.getMessage() for record in caplog.records if "allowed tokens are unknown" in record.getMessage()]
    assert "top_k (5)" in said
    assert all(len(row) == 0 for output in watch.batches for row in output["support"])
    assert "rollout/outside_support" not in trainer.state.log_history[0]


def test_settings_of_the_models_own_generation_config_are_named(build, caplog):
    model, tokenizer = make_tiny_model()
    model.generation_config.suppress_tokens, model.generation_config.epsilon_cutoff = [7], 0.05
    build(
        trainer={"model": model, "processing_class": tokenizer},
        advantage="zscore",
        generation_kwargs={"epsilon_cutoff": 0.0},
    )
    assert [
        record.getMessage().count("suppress_tokens ([7])")
        for record in caplog.records
        if "changes the samples" in record.getMessage()
    ] == [1]
    assert "epsilon_cutoff" not in caplog.text


KEPT = ({"top_p": 0.9, "rollout": "auto"}, {"top_k": 5, "advantage": "zscore"}, {"top_p": 1.0, "top_k": 0})


@pytest.mark.parametrize(("settings", "words"), [
    *((kept, []) for kept in KEPT), ({"repetition_penalty": 1.2}, ["repetition_penalty (1.2)", "without it"]),
    *(({"generation_kwargs": {name: value}}, [f"{name} ({value!r})", "without it"]) for name, value in (
        ("typical_p", 0.5), ("epsilon_cutoff", 0.05), ("eta_cutoff", 0.05), ("top_h", 0.4), ("suppress_tokens", [7, 8]), ("bad_words_ids", [[7]]),
        ("begin_suppress_tokens", [7]), ("sequence_bias", [[[7], 5.0]]), ("no_repeat_ngram_size", 1), ("min_new_tokens", 6), ("forced_eos_token_id", 4),
        ("exponential_decay_length_penalty", [2, 1.5]), ("guidance_scale", 1.5), ("num_beams", 2), ("do_sample", False),
    )),
    ({"generation_kwargs": {"typical_p": 1.0, "renormalize_logits": True, "use_cache": True, "no_repeat_ngram_size": 0}}, []),
])  # fmt: skip
def test_a_config_that_draws_from_another_distribution_has_a_note(settings, words):
    notes = [note for note in config_notes(GRPOPlusConfig(**{**BASE, **settings})) if "scores" in note]
    assert len(notes) == bool(words)  # truncation that is kept needs none
    assert all(word in notes[0] for word in words)


def test_explain_says_what_is_scored_over(cli, tmp_path):
    for rollout, words in (("auto", "the allowed tokens"), ("stock", "the full vocabulary")):
        path = tmp_path / f"{rollout}.yaml"
        path.write_text(f"output_dir: out\nmodel_name_or_path: m\nadvantage: zscore\nrollout: {rollout}\ntop_p: 0.9\n")
        code, out, _ = cli("check", "--only=config", "--config", path)
        assert code == 0
        assert f"log-probabilities: over {words}; top_p (0.9) leaves out some" in out


def test_only_where_tokens_are_left_out_more_is_asked_for():
    assert logprobs_count({"top_p": 1.0, "top_k": 0, "min_p": 0.0}) == 0
    assert logprobs_count({"top_k": -1, "min_p": None}) == 0
    assert logprobs_count({"top_p": 0.9}) == logprobs_count({"min_p": 0.1}) == MOST
    assert (logprobs_count({"top_p": 0.9, "top_k": 5}), logprobs_count({"top_k": 200})) == (6, 201)
    assert logprobs_count({"top_k": 200, "min_p": 0.1}) == MOST  # which mostly leaves far fewer
    assert logprobs_count({"top_k": 10_000}) == LEAST  # more than anybody tells: nothing is gained by asking
    assert (logprobs_count({"top_k": 200}, vocabulary=101), logprobs_count({"top_p": 0.9}, vocabulary=101)) == (
        100,
        100,
    )
    assert LEAST < MOST


def test_all_are_known_once_one_that_was_left_out_is_told():
    assert (allowed_ids({7: -0.1, 3: -2.5, 9: -math.inf}), allowed_ids({7: -0.1, 3: -2.5, 9: -9999.0})) == (
        [3, 7],
        [3, 7],
    )
    assert allowed_ids({7: -0.1, 3: -2.5}) is None
    assert allowed_ids({7: math.nan}) is None


def test_a_servers_answer_is_read_and_what_cannot_be_is_unknown():
    unknown = [{"token_id:7": -0.1}, {"the": -0.1}, None, {"token_id:1": None}]
    assert from_json([{"token_id:7": -0.1, "token_id:9": -9999.0}, *unknown]) == [[7], None, None, None, None]
    assert from_json(None) == []


@pytest.mark.parametrize("width", [2, 3])
def test_a_completions_support_is_scored_within_and_one_gap_makes_it_unknown(width, device):
    support = AllowedTokens([from_ids([[1, 4], [2]]), from_ids([[1], None])], width, device)
    allowed = support.mask(torch.arange(2 * width, device=device), 5).reshape(2, width, 5)
    assert allowed[0, 0].tolist() == [False, True, False, False, True]
    assert allowed[0, 1].tolist() == [False, False, True, False, False]
    assert allowed[0, 2:].all()
    assert allowed[1].all()
