"""Resuming with another config, other data, another model: a table of what differs, and ``allow_changes``."""

import copy
import json
import shutil
from itertools import product
from math import lcm
from pathlib import Path

import pytest
import torch
from datasets import Dataset, Image, IterableDataset
from peft import LoraConfig
from PIL import Image as Picture
from transformers import get_scheduler

from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import Hook
from grpo_plus.training.resume.data_position import Geometry, Position, position
from grpo_plus.training.resume.run_changes import keep_optimizer_options
from grpo_plus.training.resume.run_fingerprint import MOST_ROWS, data_of, differences
from grpo_plus.training.resume.state import StateError
from tests.trainer import resumed_ranks
from tests.trainer.conftest import weights


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


FIXED = {
    "an optimizer": ({}, {"optim": "adamw_torch"}, "optim"),
    "options of the optimizer": ({}, {"optim_args": "momentum=0.9"}, "optim_args"),
    "a rank": ({"lora": {}}, {"lora": {"r": 8}}, "adapters.default.r"),
    "target modules": ({"lora": {}}, {"lora": {"target_modules": ["q_proj"]}}, "adapters.default.target_modules"),
    "an adapter where there was none": ({}, {"lora": {}}, "adapters.default.r"),
    "no adapter where there was one": ({"lora": {}}, {}, "adapters.default.r"),
    "the base of an adapter": ({"lora": {}}, {"lora": {}, "model": "weights"}, "model.weights"),
    "a size": ({}, {"model": "wider"}, "model.shapes"),
    "a class": ({}, {"model": "llama"}, "model.class"),
    "frozen weights": ({}, {"freeze": True}, "model.trained_shapes"),
}


def made(build, other_models, *, lora=None, model=None, freeze=False, **settings):
    given = {} if lora is None else {"peft_config": adapter(**lora)}
    trainer = build(trainer=given | ({"model": str(other_models / model)} if model else {}), **settings)
    if freeze:
        trainer.model.get_input_embeddings().weight.requires_grad_(False)
    return trainer


def part_of(trainer):
    return {"state": json.loads(json.dumps(trainer.pipeline.resume_check.state_dict()))}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FIXED)
def test_what_cannot_go_on_is_refused_whatever_is_allowed(build, other_models, name):
    before, after, field = FIXED[name]
    part = part_of(made(build, other_models, **before))
    same = made(build, other_models, **before)
    same.pipeline.resume_check.compare(part, Path("checkpoint-2"), allow_changes=False)
    assert same.pipeline.resume_check.changed == {}
    with pytest.raises(StateError, match="cannot change in a run") as caught:
        made(build, other_models, **after).pipeline.resume_check.compare(part, Path("checkpoint-2"), allow_changes=True)
    rows, _, rest = str(caught.value).partition(" cannot change in a run")
    assert any(line.startswith(f"  {field} ") for line in rows.splitlines())
    assert field in rows.splitlines()[-1].split(", ")
    assert rest.endswith("model_name_or_path: checkpoint-2.")


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

    def resume(self, other):
        with keep_optimizer_options(self.optimizer, self.schedule):
            self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
            self.schedule.load_state_dict(copy.deepcopy(other.schedule.state_dict()))


RATES = {
    "learning_rate": {"lr": 0.02},
    "max_steps": {"length": 30},
    "lr_scheduler_type": {"kind": "cosine"},
    "warmup_steps": {"warmup": 6},
    "lr_scheduler_kwargs": {"kind": "cosine_with_min_lr", "kwargs": {"min_lr_rate": 0.3}},
    "num_generations": {},
}


@pytest.mark.parametrize("name", RATES)
def test_a_resumed_run_has_the_rate_of_its_own_schedule_at_that_step(name):
    options = RATES[name]
    old = Simulated()
    old.rates(STEPS)
    expected = Simulated(**options).rates(9)[STEPS:]
    resumed = Simulated(**options)
    resumed.resume(old)
    assert resumed.schedule.get_last_lr() == pytest.approx([expected[0]] * 2)
    assert resumed.rates(5) == pytest.approx(expected, rel=1e-12)


def test_options_of_the_optimizer_are_those_of_the_run_and_its_moments_the_checkpoints():
    old = Simulated()
    old.rates(STEPS)
    resumed = Simulated(weight_decay=0.5, betas=(0.5, 0.6), eps=1e-3)
    resumed.resume(old)
    found = [{key: group[key] for key in ("weight_decay", "betas", "eps")} for group in resumed.optimizer.param_groups]
    assert found == [{"weight_decay": decay, "betas": (0.5, 0.6), "eps": 1e-3} for decay in (0.5, 0.0)]
    assert [state["step"] for state in resumed.optimizer.state.values()] == [STEPS, STEPS]
    assert resumed.rates(1) == pytest.approx([0.1 * 6 / 8])


def test_a_schedule_that_follows_a_metric_keeps_the_rate_that_it_has_reached():
    def made(rate):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    (old, plateau), (new, schedule) = made(0.1), made(0.1)
    for metric in (1.0, 2.0):
        plateau.step(metric)
    with keep_optimizer_options(new, schedule):
        new.load_state_dict(old.state_dict())
        schedule.load_state_dict(plateau.state_dict())
    assert new.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.fixture
def checkpoint(build, tmp_path):
    build(save_strategy="steps", save_steps=2, max_steps=3).train()
    return tmp_path / "out" / "checkpoint-2"


@pytest.fixture
def resume(trained, checkpoint, caplog):
    def resume(**settings):
        caplog.clear()
        run = trained(**{"max_steps": 3, **settings}, resume=str(checkpoint))
        return run, notes_in(caplog)

    return resume


def notes_in(caplog):
    said = [record.getMessage() for record in caplog.records]
    return [text for text in said if text.startswith("allow_changes: the checkpoint")]


def logged(run, name):
    return {entry["step"]: entry[name] for entry in run.state.log_history if name in entry}


def test_another_run_is_refused_with_one_table_and_goes_on_where_it_is_allowed(resume, checkpoint, sums):
    _, notes = resume(save_steps=7, logging_steps=2)
    assert notes == []
    changes = {"learning_rate": 0.1, "lr_scheduler_type": "constant", "advantage": "sign", "temperature": 0.7}
    changes["trainer"] = {"train_dataset": sums.select(range(12))}
    with pytest.raises(StateError) as caught:
        resume(**changes)
    title, *rows = str(caught.value).splitlines()
    assert title == f"the checkpoint {checkpoint} was saved by a run that differs from this one:"
    cells = [tuple(cell.strip() for cell in row.split(" | ")) for row in rows[:-1]]
    assert cells[0] == ("name", "checkpoint", "now")
    assert {
        ("learning_rate", "0.05", "0.1"),
        ("lr_scheduler_type", "linear", "constant"),
        ("temperature", "1.0", "0.7"),
        ("advantage", "unset", "sign"),
        ("data.rows", "16", "12"),
    } <= set(cells)
    assert len(set(map(len, cells))) == 1
    assert rows[-1].startswith("Resume with the config that saved it, or set allow_changes (--allow_changes)")
    run, (note,) = resume(**changes, allow=True)
    assert note.splitlines()[:-1] == [f"allow_changes: {title}", *rows[:-1]]
    assert note.endswith("A new generation batch begins.")
    assert logged(run, "learning_rate")[3] == 0.1
    for name in ("state", "manifest"):
        (checkpoint / f"grpo_plus_{name}.json").unlink()
    assert resume(learning_rate=0.1)[1] == []  # of a checkpoint of TRL's own trainer nothing is known


@pytest.mark.slow
def test_steps_of_saving_and_logging_are_those_of_the_config_that_resumes(resume, tmp_path):
    run, notes = resume(max_steps=6, save_strategy="steps", save_steps=5, logging_steps=3)
    assert (tmp_path / "out" / "checkpoint-5").is_dir()
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    assert {3, 6} <= logged(run, "reward").keys()
    assert 5 not in logged(run, "reward")
    assert notes == []
    # Linear to 0 at step 6, from 0.05.
    assert run.lr_scheduler.base_lrs == [0.05, 0.05]
    assert logged(run, "learning_rate")[3] == pytest.approx(0.05 * 4 / 6)


def test_a_refused_run_has_loaded_nothing(build, checkpoint):
    run = build(temperature=0.5, max_steps=3)
    before = [weight.clone() for weight in run.model.parameters()]
    with pytest.raises(StateError):
        run.train(resume_from_checkpoint=str(checkpoint))
    assert all(map(torch.equal, before, run.model.parameters()))


def test_the_state_of_another_part_begins_anew_in_a_run_that_may_differ(build, trained, tmp_path, caplog):
    adaptive = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
    kl = {"objective": {"name": "grpo", **adaptive}, "beta": 0.05, "save_strategy": "steps", "save_steps": 2}
    trained(**kl)
    folder = str(tmp_path / "out" / "checkpoint-2")
    run = trained(**{**kl, "objective": {"name": "dapo", **adaptive}, "max_steps": 3}, resume=folder, allow=True)
    assert run.state.global_step == 3
    assert "allow_changes: these begin anew: objective." in caplog.text
    plain = trained(**{**kl, "objective": "grpo", "max_steps": 3}, resume=folder, allow=True)
    assert plain.state.global_step == 3  # what has no use for a state any more begins anew, too
    saved = json.loads((tmp_path / "out" / "checkpoint-2" / "grpo_plus_state.json").read_text())
    beta = saved["parts"]["objective"]["state"]["beta"]
    run = build(**{**kl, "temperature": 0.5, "max_steps": 3})
    with run.pipeline.training():
        run.pipeline.resume_check.restore(run.pipeline.stages, Path(folder), allow_changes=True)
        assert run.pipeline.objective.beta() == beta != 0.05  # the same part goes on


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


def test_another_reference_model_differs_and_the_same_one_elsewhere_does_not(build, other_models, tiny_model, tmp_path):
    part = part_of(build(beta=0.1))
    elsewhere = build(trainer={"model": shutil.copytree(tiny_model, tmp_path / "elsewhere").as_posix()}, beta=0.1)
    elsewhere.pipeline.resume_check.compare(part, tmp_path, allow_changes=False)
    other = build(trainer={"model": str(other_models / "weights")}, beta=0.1)
    other.pipeline.resume_check.compare(part, tmp_path, allow_changes=True)
    assert list(other.pipeline.resume_check.changed) == ["model.weights"]


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
        given = {"hooks": [hook], **(trainer or {})}
        run = trained(trainer=given, **{**saving, **settings}, resume=resume, allow=resume is not None)
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
    fields = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    assert sorted(line.split()[0] for line in note.splitlines()[2:-1]) == sorted(fields)


LONG = {"steps_per_generation": 4, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize("after", [{"num_generations": 8}, {"temperature": 0.7}, {"max_steps": 7}])
def test_inside_a_batch_another_one_begins_unless_the_run_is_the_same(noted, tmp_path, caplog, after):
    _, prompts = noted(**LONG)
    order = [prompt for _, batch in prompts for prompt in batch]
    _, found = noted(str(tmp_path / "out" / "checkpoint-2"), **LONG, **after)
    if "max_steps" in after:
        assert found[:1] == [entry for entry in prompts if entry[0] >= 2][:1]
        assert notes_in(caplog) == []
    else:
        assert found[0][0] == 2
        assert found[0][1] == order[: len(found[0][1])]


def test_a_run_on_data_that_ends_before_its_place_goes_on_with_the_next_pass(noted, tmp_path, caplog):
    whole, _ = noted(**LONG)
    data = whole.train_dataset.select(range(8))
    _, found = noted(str(tmp_path / "out" / "checkpoint-6"), {"train_dataset": data}, max_steps=12, **LONG)
    (note,) = notes_in(caplog)
    assert [line.split()[0] for line in note.splitlines()[2:-1]] == ["data.rows", "data.digest"]
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
    cells = [[cell.strip() for cell in line.split(" | ")] for line in note.splitlines()]
    assert ["processes", str(3 - processes), str(processes)] in cells
