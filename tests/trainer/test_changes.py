"""Resuming with another config, other data, another model: exact, or refused, or said once; never silent."""

import copy
import json
import shutil
from dataclasses import fields
from itertools import product
from math import lcm

import pytest
import torch
from accelerate.parallelism_config import ParallelismConfig
from datasets import Dataset, Image, IterableDataset
from peft import LoraConfig
from PIL import Image as Picture
from transformers import get_scheduler

from grpo_plus import GRPOPlusConfig
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import Hook, Misfit
from grpo_plus.training.resuming.changes import KEEPS_BATCH, lines_of
from grpo_plus.training.resuming.made_of import MOST_ROWS, NO_RESULT, data_of, differences, settings_of
from grpo_plus.training.resuming.place import Geometry, Position, consequences, position
from grpo_plus.training.resuming.rates import OPTIMIZER, new_rates
from grpo_plus.training.state import StateError
from tests.device import FLOAT32
from tests.trainer import resumed_ranks
from tests.trainer.conftest import weights


def another(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value / 2 + 0.125
    if isinstance(value, list):
        return [*value, "another"]
    return {"another": 1} if isinstance(value, dict) else "another"


@pytest.mark.slow
def test_every_field_is_mentioned_or_cannot_change_a_result(tmp_path):
    names = [name for names in NO_RESULT.values() for name in names]
    assert len(names) == len(set(names))  # one reason each
    assert not set(names) & set(KEEPS_BATCH)
    assert set(OPTIMIZER) <= set(KEEPS_BATCH)
    plain = GRPOPlusConfig(output_dir=str(tmp_path), **FLOAT32)
    special = {"parallelism_config": ParallelismConfig(tp_size=1)}
    for name in (field.name for field in fields(GRPOPlusConfig)):
        other = copy.copy(plain)
        object.__setattr__(other, name, special.get(name) or another(getattr(plain, name)))
        lines = lines_of({field: found for field, *found in differences(settings_of(plain), settings_of(other))})
        assert bool(lines) is (name not in names), name
        assert all(line.startswith((f"  {name}: ", f"  {name}.")) and " then, " in line for line in lines), name


@pytest.mark.parametrize(("then", "now", "expected"), [
    ({"a": 1, "b": None, "c": float("nan")}, {"a": 1, "c": float("nan")}, []),
    ({"a": {"eps": 1, "x": 2}}, {"a": {"eps": 3, "x": 2}}, [("a.eps", 1, 3)]),
    ({"a": None}, {"a": {"eps": 3}}, [("a.eps", None, 3)]),
    ({"a": {"eps": 3}}, {"a": None}, [("a.eps", 3, None)]),
    ({"a": [{"w": 1}, {"w": 2}]}, {"a": [{"w": 1}, {"w": 5}]}, [("a[1].w", 2, 5)]),
    ({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])]),
    ({"a": [{"w": 1}]}, {"a": []}, [("a", [{"w": 1}], [])]),
    ({"a": True, "old": 7}, {"a": 1.5, "new": 7}, [("a", True, 1.5), ("old", 7, None), ("new", None, 7)]),
])  # fmt: skip
def test_differences_have_the_names_that_a_config_would_have(then, now, expected):
    assert differences(then, now) == expected


def test_other_rows_of_the_same_length_are_other_data(sums):
    found = data_of(sums)
    assert found["rows"] == 16
    assert data_of(sums.select(range(16))) == found
    other = sums.map(lambda row, place: {"answer": "x" if place == 9 else row["answer"]}, with_indices=True)
    assert data_of(other)["digest"] != found["digest"]
    assert data_of(sums.select(range(12)))["rows"] == 12
    assert data_of({"one": sums, "other": None}) == {"one": found, "other": None}

    def made(color):  # images are told apart by their bytes
        return Dataset.from_dict({"image": [Picture.new("RGB", (2, 2), color)]}).cast_column("image", Image())

    assert data_of(made("red")) == data_of(made("red")) != data_of(made("blue"))


def test_a_digest_reads_few_rows_as_they_are_stored_and_no_stream():
    read = []

    def note(batch):
        read.append(batch)
        return batch

    many = Dataset.from_dict({"prompt": [str(number) for number in range(5000)]})
    assert data_of(many.with_transform(note))["digest"] == data_of(many)["digest"]
    assert read == []
    assert MOST_ROWS == 64

    def rows():
        read.append("stream")
        yield {"prompt": "1"}

    assert data_of(IterableDataset.from_generator(rows)) == {"columns": None}
    assert read == []


def adapter(**changes):
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **changes})


@pytest.fixture(scope="module")
def other_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    make_tiny_model(folder / "weights", seed=1)
    make_tiny_model(folder / "wider", hidden=48)
    make_tiny_model(folder / "llama", architecture="llama")
    return folder


REFUSED = {
    "an optimizer": ({}, {"optim": "adamw_torch"}, "it was saved with optim sgd, and this run has adamw_torch"),
    "options of the optimizer": ({}, {"optim_args": "momentum=0.9"}, "optim_args unset, and this run has momentum=0.9"),
    "a rank": ({"lora": {}}, {"lora": {"r": 8}}, "the adapter's r 4, and this run has 8"),
    "a scale": ({"lora": {}}, {"lora": {"lora_alpha": 32}}, "the adapter's lora_alpha 8, and this run has 32"),
    "target modules": ({"lora": {}}, {"lora": {"target_modules": ["q_proj"]}}, "target_modules ['q_proj', 'v_proj'],"),
    "an adapter where there was none": ({}, {"lora": {}}, "it holds all weights, and this run trains an adapter"),
    "no adapter where there was one": ({"lora": {}}, {}, "'default' (LORA), and this run trains all weights"),
    "the base of an adapter": ({"lora": {}}, {"lora": {}, "model": "weights"}, "was trained on other weights"),
    "a size": ({}, {"model": "wider"}, "it is of a Qwen2ForCausalLM with 25,184 parameters"),
    "a class": ({}, {"model": "llama"}, "and this run has a LlamaForCausalLM"),
    "frozen weights": ({}, {"freeze": True}, "it was trained on 25,184 numbers, and this run trains 21,952"),
}


def made(build, other_models, *, lora=None, model=None, freeze=False, **settings):
    given = {} if lora is None else {"peft_config": adapter(**lora)}
    trainer = build(trainer=given | ({"model": str(other_models / model)} if model else {}), **settings)
    if freeze:
        trainer.model.get_input_embeddings().weight.requires_grad_(False)
    return trainer


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_on_is_refused_before_anything_loads(build, other_models, name):
    before, after, words = REFUSED[name]
    state = json.loads(json.dumps(made(build, other_models, **before).settings.state_dict()))
    same = made(build, other_models, **before)
    same.settings.load_state_dict(state)
    assert same.settings.changed == {}
    with pytest.raises(Misfit) as caught:
        made(build, other_models, **after).settings.load_state_dict(state)
    assert words in str(caught.value)
    assert len(caught.value.reasons) == 1


STEPS, LENGTH = 4, 10


class Simulated:
    """Optimizer and schedule as the training loop makes and moves them, without a model."""

    def __init__(self, length=LENGTH, kind="linear", warmup=2, kwargs=None, **options):
        options = {"lr": 0.1, "weight_decay": 0.01, "betas": (0.9, 0.99), "eps": 1e-8} | options
        weight, bias = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, **options)
        self.schedule = get_scheduler(kind, self.optimizer, warmup, length, scheduler_specific_kwargs=kwargs)

    def rates(self, steps):
        found = []
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones(2)
            found.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.schedule.step()
        return found

    def resume(self, other, changed):
        with new_rates(self.optimizer, self.schedule, changed):
            self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
            self.schedule.load_state_dict(copy.deepcopy(other.schedule.state_dict()))


RATES = {
    "learning_rate": ({"lr": 0.02}, (0.1, 0.02)),
    "max_steps": ({"length": 30}, (10, 30)),
    "lr_scheduler_type": ({"kind": "cosine"}, ("linear", "cosine")),
    "warmup_steps": ({"warmup": 6}, (2, 6)),
    "lr_scheduler_kwargs": ({"kind": "cosine_with_min_lr", "kwargs": {"min_lr_rate": 0.3}}, ({}, {"min_lr_rate": 0.3})),
    "num_generations": ({}, (4, 8)),
}


@pytest.mark.parametrize("name", RATES)
def test_a_resumed_run_has_the_rate_of_its_own_schedule_at_that_step(name):
    options, change = RATES[name]
    old = Simulated()
    old.rates(STEPS)
    expected = Simulated(**options).rates(9)[STEPS:]
    resumed = Simulated(**options)
    resumed.resume(old, {name: change})
    assert resumed.schedule.get_last_lr() == pytest.approx([expected[0]] * 2)
    assert resumed.rates(5) == pytest.approx(expected, rel=1e-12)


def test_options_of_the_optimizer_that_changed_are_those_of_the_run_and_no_others():
    old = Simulated()
    old.rates(STEPS)
    resumed = Simulated(weight_decay=0.5, betas=(0.5, 0.6), eps=1e-3)
    resumed.resume(old, {"adam_beta2": (0.99, 0.6), "adam_epsilon": (1e-8, 1e-3)})
    assert [(group["weight_decay"], group["betas"][1], group["eps"]) for group in resumed.optimizer.param_groups] == [
        (decay, 0.6, 1e-3) for decay in (0.01, 0.0)
    ]
    resumed = Simulated(weight_decay=0.5, betas=(0.5, 0.6), eps=1e-3)
    resumed.resume(old, {"weight_decay": (0.01, 0.5), "adam_beta1": (0.9, 0.5)})
    found = [{key: group[key] for key in ("weight_decay", "betas", "eps")} for group in resumed.optimizer.param_groups]
    assert found == [{"weight_decay": decay, "betas": (0.5, 0.6), "eps": 1e-8} for decay in (0.5, 0.0)]
    assert resumed.rates(1) == pytest.approx([0.1 * 6 / 8])


def test_a_schedule_that_follows_a_metric_keeps_what_it_reached_in_proportion():
    def made(rate):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    (old, plateau), (new, schedule) = made(0.1), made(0.4)
    for metric in (1.0, 2.0):
        plateau.step(metric)
    assert old.param_groups[0]["lr"] == pytest.approx(0.05)
    with new_rates(new, schedule, {"learning_rate": (0.1, 0.4)}):
        new.load_state_dict(old.state_dict())
        schedule.load_state_dict(plateau.state_dict())
    assert new.param_groups[0]["lr"] == pytest.approx(0.2)


@pytest.fixture
def checkpoint(build, tmp_path):
    build(save_strategy="steps", save_steps=2, max_steps=3).train()
    return tmp_path / "out" / "checkpoint-2"


@pytest.fixture
def resume(trained, checkpoint, caplog):
    def resume(**settings):
        caplog.clear()
        run = trained(**{"max_steps": 3, **settings}, resume=str(checkpoint))
        if (checkpoint / "grpo_plus_state.json").exists():
            assert "do not match" not in caplog.text
        return run, notes_in(caplog)

    return resume


def notes_in(caplog):
    said = [record.getMessage() for record in caplog.records]
    return [text for text in said if "was saved with other settings" in text]


def logged(run, name):
    return {entry["step"]: entry[name] for entry in run.state.log_history if name in entry}


def test_one_message_says_what_changed_and_what_follows_and_nothing_is_said_of_nothing(resume, checkpoint, sums):
    _, notes = resume(save_steps=7, logging_steps=2)
    assert notes == []
    changes = {"learning_rate": 0.1, "lr_scheduler_type": "constant", "advantage": "sign", "temperature": 0.7}
    run, (note,) = resume(trainer={"train_dataset": sums.select(range(12))}, **changes)
    assert note.splitlines()[:6] == [
        "note: checkpoint-2 was saved with other settings:",
        "  learning_rate: 0.05 then, 0.1 now (the schedule goes on with the new one)",
        "  lr_scheduler_type: linear then, constant now (at this step of the new schedule)",
        "  temperature: 1.0 then, 0.7 now",
        "  advantage: unset then, sign now",
        "  rows of the training data: 16 then, 12 now",
    ]
    assert logged(run, "learning_rate")[3] == 0.1
    assert not run.settings.keeps_batch
    for name in ("state", "manifest"):
        (checkpoint / f"grpo_plus_{name}.json").unlink()
    assert resume(learning_rate=0.1)[1] == []  # of an older checkpoint nothing is known


@pytest.mark.slow
def test_steps_of_saving_and_logging_are_those_of_the_config_that_resumes(resume, tmp_path):
    run, notes = resume(max_steps=6, save_strategy="steps", save_steps=5, logging_steps=3)
    assert (tmp_path / "out" / "checkpoint-5").is_dir()
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    assert {3, 6} <= logged(run, "reward").keys()
    assert 5 not in logged(run, "reward")
    assert [line.split(":")[0] for line in notes[0].splitlines()[1:]] == ["  max_steps"]
    # Linear to 0 at step 6, from 0.05.
    assert run.lr_scheduler.base_lrs == [0.05, 0.05]
    assert logged(run, "learning_rate")[3] == pytest.approx(0.05 * 4 / 6)


def test_a_refusal_names_the_checkpoint_and_the_way_out(build, checkpoint):
    run = build(optim="adamw_torch", max_steps=3)
    before = [weight.clone() for weight in run.model.parameters()]
    with pytest.raises(StateError) as caught:
        run.train(resume_from_checkpoint=str(checkpoint))
    assert f"the checkpoint {checkpoint} does not fit this run: it was saved with optim sgd" in str(caught.value)
    assert f"model_name_or_path: {checkpoint}" in str(caught.value)
    assert all(map(torch.equal, before, run.model.parameters()))


def test_the_state_holds_no_secret(trained, tmp_path):
    secret = "hf_" + "Q7x" * 11
    trained(hub_token=secret, generation_kwargs={"api_key": secret}, save_strategy="steps", save_steps=2)
    text = (tmp_path / "out" / "checkpoint-2" / "grpo_plus_state.json").read_text()
    assert secret not in text
    assert "api_key" in text


SIZES = (1, 2, 3)
GEOMETRIES = [
    Geometry(processes, size, accumulation, steps, generations, iterations)
    for processes, size, accumulation, steps, generations, iterations in product((1, 2), *[SIZES] * 4, (1, 2))
    if processes * size * steps % generations == 0
]


def test_another_reference_model_is_said_and_the_same_one_elsewhere_is_not(build, other_models, tiny_model, tmp_path):
    state = build(beta=0.1).settings.state_dict()
    elsewhere = build(trainer={"model": shutil.copytree(tiny_model, tmp_path / "elsewhere").as_posix()}, beta=0.1)
    elsewhere.settings.load_state_dict(state)
    assert elsewhere.settings.changed == {}
    other = build(trainer={"model": str(other_models / "weights")}, beta=0.1)
    other.settings.load_state_dict(state)
    (line,) = lines_of(other.settings.changed)
    assert line.startswith(f"  model: {tiny_model} then, {other_models / 'weights'} now (trained are those of the")


def drawn_by(geometry, length, first=0):
    """The prompts of a pass in generation batches, from a prompt on, as TRL's sampler cuts them."""
    return [range(at, at + geometry.prompts) for at in range(first, length - geometry.prompts + 1, geometry.prompts)]


@pytest.mark.slow
@pytest.mark.parametrize("length", [12, 17])
def test_no_prompt_of_a_pass_is_lost_under_another_split_and_none_comes_again_without_need(length):
    looked = 0
    for number, was in enumerate(GEOMETRIES):
        for now in GEOMETRIES[number % 7 :: 7]:
            for taken in range(0, len(drawn_by(was, length)) * was.block + 1, was.gradient_accumulation_steps):
                stood = Position(taken + 5 * was.block, 1, taken)
                place = position(stood, was, now, holds_batch=False)
                assert (place.passes, place.ended) == (1, False)
                whole_steps = lcm(now.block, now.gradient_accumulation_steps)
                assert place.taken % whole_steps == place.step % now.block == 0
                first = place.taken // now.block * now.prompts
                trained = taken // was.block * was.prompts
                assert 0 <= trained - first < now.prompts * whole_steps // now.block
                to_come = [prompt for batch in drawn_by(now, length, first) for prompt in batch]
                assert to_come == list(range(first, length // now.prompts * now.prompts))
                drawn = -(-taken // was.block) * was.prompts
                again = f": {drawn - first} that were drawn before come again" if drawn > first else ""
                expected = f"at prompt {first + 1} of pass 2{again}."
                if was != now or place.taken != taken:
                    assert consequences(stood, place, was, now)[0].endswith(expected)
                looked += 1
    assert looked > 20_000


class Prompts(Hook):
    def __init__(self):
        self.found = []

    def prompts(self, rows):
        self.found.append((self.host.state.global_step, list(dict.fromkeys(row["prompt"] for row in rows))))


@pytest.fixture
def noted(trained):
    def noted(resume=None, trainer=None, **settings):
        hook, saving = Prompts(), {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
        run = trained(trainer={"hooks": [hook], **(trainer or {})}, **{**saving, **settings}, resume=resume)
        return run, hook.found

    return noted


WIDE = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
NARROW = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(("before", "after"), [(WIDE, NARROW), (NARROW, WIDE)])
def test_the_same_batches_in_other_micro_batches_are_the_same_run(noted, tmp_path, caplog, before, after):
    whole, prompts = noted(**after)
    noted(**before)
    shutil.move(tmp_path / "out" / "checkpoint-3", tmp_path / "checkpoint-3")
    resumed, found = noted(str(tmp_path / "checkpoint-3"), **after)
    assert found == [entry for entry in prompts if entry[0] >= 3]
    assert logged(resumed, "reward") == pytest.approx(logged(whole, "reward"))
    assert (weights(whole) - weights(resumed)).abs().max() < 1e-5
    (note,) = notes_in(caplog)
    assert note.splitlines()[-1] == "A new generation batch begins at prompt 7 of pass 1."
    assert len(note.splitlines()) == 5


LONG = {"steps_per_generation": 4, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    "after", [{"num_generations": 8}, {"temperature": 0.7}, {"engine": "stock", "learning_rate": 0.01}]
)
def test_inside_a_batch_another_one_begins_unless_it_is_the_same(noted, tmp_path, caplog, after):
    _, prompts = noted(**LONG)
    order = [prompt for _, batch in prompts for prompt in batch]
    resumed, found = noted(str(tmp_path / "out" / "checkpoint-2"), **LONG, **after)
    (note,) = notes_in(caplog)
    if "engine" in after:
        assert resumed.settings.keeps_batch
        assert found == [entry for entry in prompts if entry[0] >= 2]
        assert "generation batch" not in note
    else:
        assert note.endswith("at prompt 1 of pass 1: 8 that were drawn before come again.")
        assert found[0][0] == 2
        assert found[0][1] == order[: len(found[0][1])]


def test_a_run_on_data_that_ends_before_its_place_goes_on_with_the_next_pass(noted, tmp_path, caplog):
    whole, _ = noted(**LONG)
    data = whole.train_dataset.select(range(8))
    _, found = noted(str(tmp_path / "out" / "checkpoint-6"), {"train_dataset": data}, max_steps=12, **LONG)
    (note,) = notes_in(caplog)
    assert "  rows of the training data: 16 then, 8 now" in note.splitlines()
    assert note.endswith("A new generation batch begins at prompt 1 of pass 2.")
    assert [step for step, _ in found] == [6, 10]
    assert {prompt for _, batch in found for prompt in batch} == set(data["prompt"])


@pytest.mark.parametrize("processes", [1, 2])
def test_another_number_of_processes_goes_on_with_the_next_prompts(tmp_path, tiny_model, two_ranks, processes):
    def run(count, name, *more):
        arguments = "processes", str(tmp_path), tiny_model, name, *more
        if count == 1:
            resumed_ranks.main(*arguments)
        else:
            with two_ranks(resumed_ranks.__file__, *arguments, log=tmp_path / "log"):
                pass
        return json.loads((tmp_path / f"{name}_0.json").read_text())

    first = run(3 - processes, "first")
    again = run(processes, "again", str(tmp_path / "out" / "checkpoint-2"))
    assert (first["processes"], again["processes"]) == (3 - processes, processes)
    drawn, later = ([set(batch) for batch in found["prompts"]] for found in (first, again))
    assert not set.union(*drawn[:2]) & set.union(*later[:2])
    assert later[:2] == drawn[2:4]
    (note,) = again["notes"]
    assert f"  processes: {3 - processes} then, {processes} now" in note.splitlines()
    assert "A new generation batch begins at prompt 5 of pass 1." in note.splitlines()
    assert note.endswith("The random state begins anew: the checkpoint holds none for this number of processes.")
