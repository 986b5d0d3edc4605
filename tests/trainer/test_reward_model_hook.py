"""A reward model that trains along: its gradient, what it learns, what it counts, and what it leaves alone."""

import copy
import json
import math
import random
import resource
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer
from transformers.models.granite import GraniteConfig, GraniteForCausalLM

from grpo_plus.heads.reward_pairs import Comparison, is_held_out, replayed
from grpo_plus.heads.reward_scores import wins
from grpo_plus.recipe.settings import RewardModelOptions
from grpo_plus.training.scoring.reward_model import RewardPairs
from grpo_verifiers import Step, Verdict, verifier
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.verifying import REGISTRY
from tests.trainer.conftest import capture

TARGETS = ["q_proj", "v_proj", "up_proj"]
PROMPTS = [f"{number}+{number}=" for number in range(24)]


def lora(dropout=0.0):
    return {"peft_config": LoraConfig(r=4, target_modules=TARGETS, lora_dropout=dropout, task_type="CAUSAL_LM")}


KINDS = {"model": {}, "adapter": lora()}


def share_of_digits(completions, **_):
    return [sum(character.isdigit() for character in text) / 12 for text in completions]


def noise(completions, **_):
    return [zlib.crc32(text.encode()) % 97 / 97 for text in completions]


@pytest.fixture
def sums():
    return Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])


@pytest.fixture
def texts(say):
    draws = random.Random(7)
    say(lambda *_: "".join(draws.choice("0a") for _ in range(8)) + "<|im_end|>")


def rows(count, seed=0):
    draws = random.Random(seed)

    def ids(most):
        return tuple(draws.choices(range(5, 60), k=draws.randint(1, most)))

    return [(ids(5), ids(9)) for _ in range(count)]


def comparisons(count, seed=0):
    sides = rows(2 * count, seed)
    return [Comparison(sides[at][0], sides[at][1], sides[at + count][1]) for at in range(count)]


def stirred(trainer):
    """Random weights where a new model has zeros."""
    scorer, draws = trainer.pipeline.reward_model.scorer, torch.Generator().manual_seed(3)
    with torch.no_grad():
        head = scorer.passes.head.weight
        head.copy_(0.5 * torch.randn(head.shape, generator=draws))
        for name, weight in scorer.passes.trunk.named_parameters().items():
            if "lora_B" in name:
                weight.copy_(0.2 * torch.randn(weight.shape, generator=draws))
    return scorer


def scores_of(folder, texts):
    """What Transformers makes of a reward model's files."""
    plain = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    return [plain(input_ids=torch.tensor([[*prompt, *text]])).logits[0, 0].item() for prompt, text in texts]


def saved(trainer):
    trainer.pipeline.reward_model.on_train_end()
    folder = Path(trainer.args.output_dir) / "reward_model"
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()


def weights(trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: one.detach().clone() for name, one in model.named_parameters() if ".reward." not in name}


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_pairs_is_that_of_a_plain_loop_in_float64(build, kind):
    trainer = build(trainer=KINDS[kind], reward_model={"on": kind})
    scorer, pairs = stirred(trainer), comparisons(9)
    pairs += [Comparison(pairs[0].prompt, pairs[0].chosen, pairs[1].rejected)]  # a text of two pairs is read once
    with scorer.passes.trunk.active():
        scorer.loss(pairs).backward()
        found = {**scorer.passes.trunk.named_parameters(), "score": scorer.passes.head.weight}
        found = {name: one.grad.cpu() for name, one in found.items() if one.grad is not None}
    plain = saved(trainer).double().requires_grad_(requires_grad=True)
    for prompt, chosen, rejected in pairs:
        right, wrong = (plain(input_ids=torch.tensor([[*prompt, *text]])).logits[0, 0] for text in (chosen, rejected))
        torch.log1p(torch.exp(wrong - right)).backward()
    expected = {}
    for name, weight in plain.named_parameters():
        own = f"base_model.model.{name.replace('default', 'reward')}" if kind == "adapter" else name[len("model.") :]
        if weight.grad is not None and (kind == "model" or "lora_" in name):
            expected[own] = weight.grad
    expected.pop("weight", None)
    expected["score"] = plain.score.weight.grad[0]
    assert found.keys() == expected.keys()
    assert len(found) > 8
    for name, gradient in expected.items():
        assert torch.allclose(found[name].double(), gradient, rtol=1e-3, atol=2e-5), name
    assert all(one.grad is None for name, one in trainer.model.named_parameters() if ".reward." not in name)


LEARNS = {"every": 2, "held_out": 0.3, "learning_rate": 1e-2, "epochs": 4, "batch_size": 8}
STILL = {"num_generations": 8, "per_device_train_batch_size": 24, "learning_rate": 0.0}


def run(trained, reward, steps=12, **options):
    options = {**LEARNS, "weight": 0, "pairs": 12, **options}
    trainer = trained(trainer={"reward_funcs": [reward]}, reward_model=options, max_steps=steps, **STILL)
    return trainer, [entry for entry in trainer.state.log_history if "reward_model/accuracy" in entry]


def test_held_out_accuracy_rises_where_rules_give_the_labels_and_is_chance_where_they_are_shuffled(trained, texts):
    trainer, logged = run(trained, share_of_digits)
    assert logged[-1]["reward_model/accuracy"] > 0.9
    assert logged[-1]["reward_model/fresh_accuracy"] > 0.9
    assert trainer.state.log_history[0]["reward_model/fresh_accuracy"] == 0.5
    assert logged[0]["reward_model/loss"] > 2 * logged[-1]["reward_model/loss"]
    prompts = {trainer.processing_class.decode(one.prompt) for one in trainer.pipeline.reward_model.pairs.held_out}
    assert prompts
    assert all(is_held_out(prompt, 0.3) for prompt in prompts)
    kept = {trainer.processing_class.decode(one.prompt) for one in trainer.pipeline.reward_model.pairs.history.items}
    assert not any(is_held_out(prompt, 0.3) for prompt in kept)
    _, shuffled = run(trained, noise)
    assert len(shuffled) >= 4
    assert 0.35 < sum(entry["reward_model/accuracy"] for entry in shuffled[1:]) / len(shuffled[1:]) < 0.65


def test_a_quarter_of_each_training_are_pairs_of_earlier_ones(trained, texts):
    trainer, logged = run(trained, share_of_digits, replay=0.25, history=40)
    seen = 0
    for entry in logged:
        fresh, again = entry["reward_model/pairs"], entry["reward_model/replayed"]
        assert fresh > 0
        assert again == min(replayed(fresh, 0.25), seen, 40)
        seen += fresh
    assert len(trainer.pipeline.reward_model.pairs.history) == 40
    assert sum(entry["reward_model/replayed"] for entry in logged) > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_reward_is_the_chance_to_beat_its_group_with_its_weight_in_the_advantages(build, texts, kind):
    given = {"reward_funcs": [share_of_digits], **KINDS[kind]}
    trainer = build(trainer=given, reward_model={"on": kind, "weight": 2.0, "every": 100}, advantage="raw", max_steps=1)
    scorer = stirred(trainer)
    plain, kept = saved(trainer), capture(trainer)
    trainer.train()
    output = kept[0]
    scores, rules = [], []
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    for prompt, mask, text, there in zip(*(output[name] for name in names), strict=True):
        ids = torch.cat([prompt[mask.bool()], text[there.bool()]])
        scores.append(plain(input_ids=ids[None]).logits[0, 0].item())
        rules += share_of_digits([trainer.processing_class.decode(text[there.bool()], skip_special_tokens=True)])
    won = wins(torch.tensor(scores), torch.arange(8) // 4)
    assert torch.allclose(output["advantages"], torch.tensor(rules) + 2.0 * won, atol=1e-4)
    assert won.std() > 0.05
    assert trainer.reward_func_names == ["share_of_digits", "reward_model"]
    assert scorer is trainer.pipeline.reward_model.scorer


CRITIC = {"beta": 0.1, "advantage": "gae", "critic": {"on": "adapter"}, "sync_ref_model": True}
CRITIC |= {"ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}


@pytest.mark.parametrize("kind", [*KINDS, "beside a critic and a reference"])
def test_with_weight_0_the_policy_is_trained_bit_for_bit_as_without(trained, tmp_path, kind):
    given = {"model": {}, "adapter": lora(dropout=0.2)}.get(kind, lora())
    settings = {"max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-2, "report": True, "rollout": "auto"}
    settings |= {} if kind in KINDS else CRITIC
    without = trained(trainer=copy.deepcopy(given), output_dir=str(tmp_path / "without"), **settings)
    on = "model" if kind == "model" else "adapter"
    beside = trained(trainer=given, reward_model={"on": on, "every": 1, "weight": 0, "learning_rate": 1e-2}, **settings)
    assert beside.pipeline.reward_model.trainings >= 2
    assert same(weights(without), weights(beside))
    if kind not in KINDS:  # all four adapters keep apart
        assert {"critic", "ref"} <= {piece for name in weights(beside) for piece in name.split(".")}
        return
    for entries in zip(without.state.log_history[:-1], beside.state.log_history[:-1], strict=True):
        own = ("reward_model/", "time/", "step_")
        one, other = ({name: kept for name, kept in entry.items() if not name.startswith(own)} for entry in entries)
        assert one == other


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_leaves_weights_gradients_optimizer_and_generators_of_the_policy_alone(trained, kind):
    options = {"on": kind, "every": 100, "held_out": 0.0}
    trainer = trained(trainer=KINDS[kind], reward_model=options, max_steps=2, optim="adamw_torch")
    assert len(trainer.pipeline.reward_model.pairs.fresh) > 0
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.5)
    before, head = weights(trainer), trainer.pipeline.reward_model.scorer.passes.head.weight.detach().clone()
    moments = copy.deepcopy(trainer.optimizer.state_dict()["state"])
    states = torch.get_rng_state(), random.getstate()
    flags = {name: one.requires_grad for name, one in trainer.model.named_parameters()}
    assert trainer.pipeline.reward_model.train_now()["reward_model/loss"] > 0
    assert not torch.equal(head, trainer.pipeline.reward_model.scorer.passes.head.weight)
    assert same(before, weights(trainer))
    assert all((one.grad == 0.5).all() for one in trainer.model.parameters() if one.requires_grad)
    assert flags == {name: one.requires_grad for name, one in trainer.model.named_parameters()}
    after = trainer.optimizer.state_dict()["state"]
    assert all(torch.equal(moments[place][name], after[place][name]) for place in moments for name in moments[place])
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert trainer.pipeline.reward_model.train_now()["reward_model/pairs"] == 0  # nothing is left to train on


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_resumes_is_the_one_that_was_not_interrupted(trained, tmp_path, kind):
    options = {"on": kind, "every": 2, "learning_rate": 1e-2, "held_out": 0.3, "replay": 0.5}
    saving = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 16}
    whole, again = (
        trained(trainer=copy.deepcopy(KINDS[kind]), reward_model=options, **saving, resume=checkpoint)
        for checkpoint in (None, str(tmp_path / "out" / "checkpoint-3"))
    )
    one, other = whole.pipeline.reward_model, again.pipeline.reward_model
    assert one.trainings == other.trainings >= 2
    assert same(one.scorer.tensors(), other.scorer.tensors())
    assert any("adam" in name for name in one.scorer.tensors())
    assert same(one.pairs.tensors(), other.pairs.tensors())
    assert list(one.pairs.held_out) == list(other.pairs.held_out)
    assert one.pairs.history.items == other.pairs.history.items != []
    assert same(weights(whole), weights(again))
    for step in (3, 5):
        assert whole.state.log_history[step]["reward"] == again.state.log_history[step]["reward"]


def test_a_checkpoint_of_another_kind_or_without_a_reward_model_is_refused(trained, tmp_path):
    settings = {"output_dir": str(tmp_path / "run"), "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trained(reward_model={"every": 1}, **settings)
    checkpoint = str(tmp_path / "run" / "checkpoint-1")
    with pytest.raises(ConfigError, match=r"  reward_model\.every +\| "):
        trained(report=True, rollout="auto", **settings, resume=checkpoint)
    with pytest.raises(ConfigError, match=r"  adapters\.default\.r +\| unset"):
        trained(trainer=lora(), reward_model={"every": 1}, **settings, resume=checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves_scores_the_same_in_transformers_and_as_a_start(build, trained, tmp_path, kind):
    trainer = trained(trainer=copy.deepcopy(KINDS[kind]), reward_model={"on": kind, "every": 1, "learning_rate": 1e-2})
    texts = rows(5)
    folder = Path(trainer.args.output_dir) / "reward_model"
    mine = trainer.pipeline.reward_model.scorer.outcomes(texts)
    assert mine.tolist() == pytest.approx(scores_of(folder, texts), abs=1e-4)
    assert mine.std() > 1e-3
    given, further = copy.deepcopy(KINDS[kind]), str(tmp_path / "further")
    further = build(trainer=given, output_dir=further, reward_model={"start": str(folder), "every": 0})
    assert further.pipeline.reward_model.scorer.outcomes(texts).tolist() == pytest.approx(mine.tolist(), abs=1e-5)
    further.train()
    assert not any("reward_model/loss" in entry for entry in further.state.log_history)
    if kind == "model":
        beside = trained(trainer={"reward_funcs": [share_of_digits, str(folder)]}, output_dir=str(tmp_path / "beside"))
        assert "rewards/reward_model/mean" in beside.state.log_history[0]


@pytest.fixture
def digit_steps():
    """A verifier of two steps: a half is good where most of it are digits."""

    @verifier("digit_steps", isolation="inline")
    def digit_steps(completion: str, completion_text: str) -> Verdict:
        text = completion_text.removesuffix("<|im_end|>")
        middle = len(text) // 2
        good = [sum(map(str.isdigit, part)) * 2 > len(part) for part in (text[:middle], text[middle:])]
        steps = Step(0, middle, float(good[0])), Step(middle, len(text), float(good[1]))
        return Verdict(float(all(good)), steps=steps, detail=completion[:1])

    yield
    REGISTRY.unregister("digit_steps")


def process_run(trained, tmp_path, **options):
    given = {"output_dir": str(tmp_path / "process"), "reward_model": {"head": "process", **LEARNS, **options}}
    return trained(trainer={"reward_funcs": None}, verifiers=["digit_steps"], max_steps=12, **given, **STILL)


def test_a_process_head_learns_the_labels_of_steps_and_rewards_the_worst_one(trained, texts, digit_steps, tmp_path):
    trainer = process_run(trained, tmp_path)
    logged = [entry for entry in trainer.state.log_history if "reward_model/accuracy" in entry]
    assert logged[-1]["reward_model/accuracy"] > 0.85
    assert logged[-1]["reward_model/loss"] < logged[0]["reward_model/loss"]
    scorer, tokenizer = trainer.pipeline.reward_model.scorer, trainer.processing_class
    prompt = tuple(tokenizer("2+2=")["input_ids"])
    good, bad = (tuple(tokenizer(text)["input_ids"]) for text in ("00000000", "0000aaaa"))
    (right, wrong) = scorer.steps([(prompt, good), (prompt, bad)], [(3, 7), (3, 7)])
    assert right[1] > wrong[1]
    assert torch.allclose(right[0], wrong[0], atol=1e-5)  # a step does not know what follows
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "process" / "reward_model", num_labels=1).eval()
    logits = plain(input_ids=torch.tensor([[*prompt, *bad]])).logits[0, :, 0]
    assert wrong.tolist() == pytest.approx(logits[[len(prompt) + 3, len(prompt) + 7]].tolist(), abs=1e-4)


def test_what_only_the_trainer_knows_is_refused_before_anything_loads(build, sums, tmp_path, tiny_model):
    def reward_model(completions, **_):
        return [0.0] * len(completions)

    def refuses(words, options, verifiers=None, **given):
        with pytest.raises(ConfigError, match=words) as caught:
            build(trainer=given, reward_model=options, verifiers=verifiers)
        assert len(caught.value.problems) == 1

    refuses("there is no other reward", {}, reward_funcs=None)
    answered = {"train_dataset": sums.add_column("answer", ["1"] * len(sums)), "reward_funcs": None}
    refuses(r"every other reward \(exact\) has weight 0", {}, [{"name": "exact", "weight": 0}], **answered)
    refuses("the run trains no LoRA adapter", {"on": "adapter"})
    for rewards in ([reward_model], [reward_model, share_of_digits], [share_of_digits, "somewhere/reward_model"]):
        for weight in (0.5, 0):
            named = "is named 'reward_model', which is the name of the column"
            refuses(named, {"weight": weight}, reward_funcs=rewards)
    shutil.copytree(tiny_model, tmp_path / "other")
    file = tmp_path / "other/tokenizer.json"
    told = json.loads(file.read_text())
    words = told["model"]["vocab"]
    told["model"]["vocab"] = dict(zip(words, reversed(words.values()), strict=True))
    file.write_text(json.dumps(told))
    another = r"reward_model: model is .* another tokenizer than the policy: the token"
    refuses(another, {"on": "model", "model": str(tmp_path / "other")})
    (tmp_path / "out/reward_model").mkdir(parents=True)
    (tmp_path / "out/reward_model/thesis.txt").write_text("years")
    refuses(r"out/reward_model holds other files and no reward model of grpo_plus", {})


@pytest.mark.slow
def test_a_reward_model_that_cannot_be_written_costs_neither_the_run_nor_the_files_of_others(build, tmp_path, caplog):
    trainer = build(trainer=lora(), reward_model={"every": 1}, save_strategy="no")
    folder = tmp_path / "out/reward_model"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years")
    trainer.train()
    assert (folder / "thesis.txt").read_text() == "years"
    assert all(words in caplog.text for words in ("was not written to", "holds other files"))
    caplog.clear()
    (folder / "thesis.txt").unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # weights are written by a library of its own errors
    try:
        trainer.pipeline.reward_model.on_train_end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "no space left on the disk" in caplog.text
    assert [path.name for path in (tmp_path / "out").iterdir() if "reward_model" in path.name] == ["reward_model"]
    trainer.pipeline.reward_model.on_train_end()
    assert (folder / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_policy_without_a_model_for_classification_trains_and_says_what_will_not_be_written(
    build, tmp_path, caplog, tiny_model
):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    known = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = GraniteConfig(**sizes, **known, num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id)
    GraniteForCausalLM(config).save_pretrained(tmp_path / "granite")
    tokenizer.save_pretrained(tmp_path / "granite")
    trainer = build(trainer={"model": str(tmp_path / "granite")}, reward_model={"every": 1}, max_steps=1)
    trainer.train()
    assert "the reward model was not written to" in caplog.text
    trainer.save_model()
    assert (tmp_path / "out/model.safetensors").is_file()


@pytest.mark.slow
def test_an_adapter_that_another_one_starts_from_keeps_its_scale_and_another_base_is_said(build, tmp_path, caplog):
    scores, texts = [], rows(5)
    trainer = build(trainer=lora(), reward_model={"lora_r": 4})
    stirred(trainer)
    trainer.pipeline.reward_model.on_train_end()
    config = tmp_path / "out/reward_model/adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 2.5}))
    for number, rooted in enumerate((False, True, True, False)):
        adapter = LoraConfig(r=4, target_modules=TARGETS, use_rslora=rooted, task_type="CAUSAL_LM")
        start = tmp_path / ("out" if number == 0 else f"out{number}") / "reward_model"
        scores.append(scores_of(start, texts))
        further = str(tmp_path / f"out{number + 1}")
        started = {"start": str(start), "every": 0}
        trainer = build(trainer={"peft_config": adapter}, output_dir=further, reward_model=started)
        scores.append(trainer.pipeline.reward_model.scorer.outcomes(texts).tolist())
        trainer.pipeline.reward_model.on_train_end()
    for others in scores[1:]:
        assert others == pytest.approx(scores[0], abs=1e-5)
    assert torch.tensor(scores[0]).std() > 1e-2
    assert "was trained on" not in caplog.text
    config.write_text(config.read_text().replace(json.loads(config.read_text())["base_model_name_or_path"], "/other"))
    build(trainer=lora(), reward_model={"start": str(config.parent), "every": 0})
    assert "was trained on /other, and the base is" in caplog.text


def test_a_checkpoint_names_tensors_as_it_always_did_and_updates_without_numbers_are_said(build, caplog):
    made, other = (build(reward_model={"every": 100, "held_out": 0.0}).pipeline.reward_model for _ in range(2))
    for parameter in made.scorer.optimizer.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    made.scorer.optimizer.step()
    saved = made.tensors()
    assert {name.partition("/")[0] for name in saved} == {"adam", "head", "trunk"}
    assert {"head/weight", "head/bias", "adam/head.weight/exp_avg", "trunk/norm.weight"} <= saved.keys()
    assert "adam/norm.weight/exp_avg_sq" in saved
    other.load_tensors(saved)
    assert same(other.tensors(), saved)
    made.pairs.add(comparisons(3), held_out=False)
    with torch.no_grad():
        made.scorer.passes.head.weight.fill_(float("nan"))
    made.train_now()
    assert "the loss of a training was nan" in caplog.text


def test_a_checkpoint_of_models_alone_has_the_reward_models_weights_without_its_moments(trained, texts, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2, "save_only_model": True}
    trainer = trained(trainer={"reward_funcs": [noise]}, reward_model={"every": 1}, **saving)
    kept = load_file(tmp_path / "out" / "checkpoint-2" / "grpo_plus_reward_model.safetensors")
    assert {name.partition("/")[0] for name in kept} == {"head", "trunk"}
    assert trainer.pipeline.reward_model.trainings
    now = trainer.pipeline.reward_model.scorer.tensors()
    assert all(torch.equal(tensor, now[name]) for name, tensor in kept.items())


def test_stores_of_pairs_are_saved_as_they_stand_and_loaded_over_what_was_there():
    host = SimpleNamespace(args=SimpleNamespace(seed=0), accelerator=SimpleNamespace(process_index=0))

    def stores(pairs):
        return [list(store) for store in (pairs.fresh, pairs.held_out, pairs.history.items)]

    def copied(pairs):
        other = RewardPairs(RewardModelOptions(replay=0.5))
        other.host = host
        for _ in range(2):  # a trainer may go on from a checkpoint twice
            other.load_state_dict(pairs.state_dict())
            other.load_tensors(pairs.tensors())
        return other

    pairs, made = RewardPairs(RewardModelOptions(replay=0.5)), comparisons(9)
    pairs.host = host
    for first, last in ((0, 4), (4, 6), (6, 8), (8, 8), (8, 9)):
        pairs.add(made[first:last], held_out=first == 4) if first < last else pairs.take()
        assert stores(copied(pairs)) == stores(pairs)
    other = copied(pairs)
    other.load_state_dict({"draws": 0, "seen": 0})  # of a checkpoint without pairs
    assert (stores(other), other.tensors()) == ([[], [], []], {})


def test_two_ranks_train_one_model_whatever_pairs_each_of_them_has(tmp_path, ranks, build):
    first, second = ranks("learned")
    scorer = stirred(build(reward_model={"on": "model", "learning_rate": 1e-2}))
    losses = [float(scorer.update(comparisons(5, seed), 5, 1)) for seed in (0, 1)]
    one, other = (torch.load(tmp_path / f"reward_{rank}.pt") for rank in (0, 1))
    for name, tensor in scorer.tensors().items():
        assert torch.allclose(one["updated"][name], tensor, atol=2e-5), name
    assert same(one["updated"], other["updated"])
    assert same(one["run"], other["run"])
    both = [sum(pair) for pair in zip(first["losses"], second["losses"], strict=True)]
    assert both == pytest.approx(losses, rel=1e-4)
    assert first["logged"] == second["logged"]
    assert math.isclose(first["logged"]["reward_model/pairs"], first["pairs"] + second["pairs"])
    assert first["pairs"] != second["pairs"]
    assert all(found[kind] for kind in ("resumed", "policy") for found in (first, second))
