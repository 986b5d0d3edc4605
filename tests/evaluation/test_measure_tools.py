"""`measure` beside tools and environments: TRL's loop, the draws' own seeds, and nothing of the trainer changed."""

import copy
import json
import re

import pytest
import torch
import yaml
from trl import GRPOConfig, GRPOTrainer

from grpo_plus.evaluation.measure import Measure
from grpo_plus.evaluation.run import pairs_of
from grpo_plus.evaluation.sample import Sampler, SampleSettings, seed_of
from grpo_plus.evaluation.turns import TurnSampler
from grpo_verifiers.errors import ConfigError, VerifierFailedError
from grpo_verifiers.registry import import_reference

from .conftest import (
    COUNTER,
    COUNTING,
    DOUBLE,
    OTHER,
    TOOLS,
    called,
    chats,
    counting,
    number_of,
    results_behind,
    samples_of,
    untimed,
)

pytestmark = pytest.mark.slow

LAST = {"name": "numeric", "source": "last"}


def stored(tmp_path, when="before"):
    return samples_of(tmp_path / "out" / "measure" / f"{when}.jsonl")


def turn_sampler(trainer, drawing):
    network = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    sampler = Sampler(network, trainer.processing_class, drawing)
    return TurnSampler(sampler, trainer, trainer.pipeline.tools)


def generated(trainer, seeded=None):
    """What TRL's own trainer makes of all rows: prompts, ids, masks and messages."""
    kept = []
    inner = trainer._generate

    def keeping(prompts):
        found = inner(prompts)
        kept.append(copy.deepcopy(found[:4]))
        return found

    trainer._generate = keeping
    if seeded is not None:
        trainer._generate_single_turn = seeded
    trainer._generate_and_score_completions([dict(row) for row in chats()])
    return kept[0]


def mask_of(completed):
    found = []
    for sample, ids in zip(completed.samples, completed.ids, strict=True):
        spans = [turn["tokens"] for turn in sample.turns]
        found.append([int(any(first <= at < last for first, last in spans)) for at in range(len(ids))])
    return found


@pytest.mark.parametrize("how", ["most probable", "seeds"])
def test_turns_are_those_of_trls_own_loop_in_text_ids_and_masks(trained, calling_model, how):
    drawing = SampleSettings(max_completion_length=200, top_k=1 if how == "most probable" else 0, temperature=0.9)
    pairs = pairs_of(range(8), 1)
    settings = {"max_completion_length": 200, "top_k": drawing.top_k, "temperature": 0.9}
    trainer = trained(calling_model, tools=[DOUBLE], verifiers=["tool_valid"], **settings)
    drawer = turn_sampler(trainer, drawing)
    with drawer.borrowed():
        completed = drawer.complete(list(chats()), pairs, 5)
    given = {"tools": [import_reference(DOUBLE)], "reward_funcs": [lambda completions, **_: [1.0] * len(completions)]}
    stock = trained(calling_model, GRPOTrainer, GRPOConfig, given=given, **settings)
    seeded = None
    if how == "seeds":
        own, first, turn = Sampler(stock.model, stock.processing_class, drawing), [], iter(range(99))

        def seeded(prompt_ids, *_, **__):
            first[:] = first or [list(ids) for ids in prompt_ids]  # further turns are drawn behind longer ones
            rows = [next(at for at, ids in enumerate(first) if behind[: len(ids)] == ids) for behind in prompt_ids]
            number = next(turn)
            return own.complete(prompt_ids, [seed_of(5, *pairs[row], number) for row in rows]), None

    _, ids, mask, messages = generated(stock, seeded)
    told = [[call.status for turn in turns for call in turn.calls] for turns in completed.turns]
    # TRL has Python's own words for arguments that do not fit.
    alike, masks = [at for at, statuses in enumerate(told) if "bad_arguments" not in statuses], mask_of(completed)
    for place in alike:
        assert completed.ids[place] == ids[place]
        assert completed.texts[place] == messages[place]
        assert masks[place] == mask[place]
    assert sum(completed.samples[place].calls for place in alike) >= 3
    if how == "seeds":
        assert len({str(completed.texts[place]) for place in alike}) > 1


def test_a_sample_of_turns_depends_on_its_own_seed_only(trained, calling_model):
    trainer = trained(calling_model, tools=[DOUBLE], verifiers=["tool_valid"])
    drawer = turn_sampler(trainer, SampleSettings(max_completion_length=200, temperature=1.2))
    rows, pairs = list(chats()), pairs_of(range(8), 2)
    with drawer.borrowed():
        whole = drawer.complete([rows[row] for row, _ in pairs], pairs, 0).samples
        part = drawer.complete([rows[row] for row, _ in pairs[5:9]], pairs[5:9], 0).samples
        other = drawer.complete([rows[row] for row, _ in pairs], pairs, 1).samples

    def said(sample):
        return [(turn["text"], [call["arguments"] for call in turn["calls"]]) for turn in sample.turns]

    assert list(map(said, part)) == list(map(said, whole[5:9]))
    assert list(map(said, other)) != list(map(said, whole))
    first, second = said(whole[0]), said(whole[1])
    assert first or second


def state_of(trainer):
    return {
        "metrics": {mode: dict(lists) for mode, lists in trainer._metrics.items()},
        "tokens": trainer.state.num_input_tokens_seen,
        "random": torch.get_rng_state().tolist(),
        "weights": [value.sum().item() for value in trainer.model.parameters()],
        "mode": trainer.model.training,
    }


def test_measure_draws_judges_stores_and_leaves_the_trainer_as_it_was(trained, tool_model, speaking, tmp_path):
    def answer(prompt, row):
        results, number = results_behind(prompt), number_of(prompt)
        if number == 7 or results == 2:
            return f"it is {number}<|im_end|>"
        if number == 6:
            return called("nobody", number=1)
        return called("double", number=-1 if number == 5 else number)

    speaking(answer)
    trainer = trained(tool_model, tools=[DOUBLE], verifiers=[LAST, {"name": "tool_valid", "weight": 0}])
    measure = Measure({"n": 2, "batch": 5, "max_completion_length": 900}, trainer, chats())
    before = state_of(trainer)
    line = measure.take("before")
    assert state_of(trainer) == before
    assert line == "Accuracy before training: numeric 100.0% (80.6 to 100.0)."
    found = measure.evaluations["before"]
    assert found.calls == 2 * 7 * 2
    assert found.failed_calls == 2 * 2 * 2
    by_row = {(row["row"], row["sample"]): row for row in stored(tmp_path)}
    assert len(by_row) == 16

    def calls(row, what):
        return [call[what] for turn in by_row[row]["turns"] for call in turn["calls"]]

    assert calls((5, 0), "status") == ["error", "error"]
    assert calls((6, 1), "status") == ["unknown", "unknown"]
    assert calls((3, 0), "result") == ["6", "6"]
    assert by_row[7, 0]["completion"] == by_row[7, 0]["turns"][0]["text"] == "it is 7"
    assert by_row[3, 0]["completion"] == "it is 3"
    assert by_row[3, 0]["verdicts"]["tool_valid"]["score"] == 1.0
    assert by_row[6, 0]["verdicts"]["tool_valid"]["score"] < 1.0
    table = "\n".join(measure.summary())
    assert re.search(r"calls a completion.* 1\.75", table)
    assert re.search(r"failed calls.* 8 \(28\.6%\)", table)


def test_an_environments_own_reward_is_a_result(trained, tool_model, speaking, tmp_path):
    speaking(counting)
    trainer = trained(tool_model, environment=COUNTER)
    measure = Measure({"n": 2, "max_completion_length": 900}, trainer, chats())
    assert measure.take("before").startswith("Accuracy before training: Counter 50.0%")
    by_row = {row["row"]: row for row in stored(tmp_path)}
    assert by_row[2]["verdicts"] == {"Counter": {"score": 1.0, "status": "correct", "detail": ""}}
    assert by_row[3]["verdicts"]["Counter"]["score"] == 0.0
    assert by_row[2]["prompt"] == chats()[2]["prompt"]
    assert by_row[2]["observation"] == "Count to 3."
    assert [turn["state"] for turn in by_row[2]["turns"]] == ["0", "1", "2", "3"]
    assert [turn["reward"] for turn in by_row[2]["turns"]] == [1.0, 1.0, 1.0, None]
    given = {"environment_factory": import_reference(COUNTING), "reward_funcs": None}  # handed over in Python, too
    measure = Measure({"max_completion_length": 900}, trained(tool_model, given=given), chats())
    assert measure.take("before").startswith("Accuracy before training: Counting 50.0%")
    assert measure.evaluations["before"].calls == 4 * 3 + 4 * 2


def test_rows_of_several_environments_and_rows_whose_reset_fails(trained, tool_model, speaking):
    def answer(prompt, row):
        if '"name": "shout"' in prompt:
            shouted = results_behind(prompt)
            return "done<|im_end|>" if shouted else called("shout", word="hi")
        return counting(prompt, row)

    speaking(answer)
    data = chats(environment=lambda n: "other" if n < 2 else "counting", goal=lambda n: -1 if n == 4 else 3)
    several = {"counting": COUNTING, "other": OTHER}
    trainer = trained(tool_model, environment=several, verifiers=["tool_used"], given={"train_dataset": data})
    measure = Measure({"max_completion_length": 900}, trainer, data)
    measure.take("before")
    own = measure.evaluations["before"].results["Counting"]
    assert own.statuses == {"correct": 2, "wrong": 3, "error": 1, "not_applicable": 2}
    assert set(own.by_row) == {2, 3, 5, 6, 7}
    broken = data.map(lambda row: {"goal": -1, "environment": "counting"})
    with pytest.raises(VerifierFailedError, match=r"environment 'Counting' failed in reset for all 8 rows"):
        Measure({}, trainer, broken).take("before")


def test_an_interrupted_measurement_goes_on(trained, tool_model, speaking, tmp_path):
    speaking(lambda prompt, row: "it is 3<|im_end|>" if results_behind(prompt) else called("double", number=3))
    trainer = trained(tool_model, tools=[DOUBLE], verifiers=[LAST])
    Measure({}, trainer, chats()).take("before")
    file = tmp_path / "out" / "measure" / "before.jsonl"
    whole = samples_of(file)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    drawn = []
    speaking(lambda prompt, row: drawn.append(prompt) or "it is 3<|im_end|>")
    measure = Measure({}, trainer, chats())
    measure.take("before", resumes=True)
    assert len(drawn) == 5
    assert samples_of(file)[:3] == whole[:3]
    assert measure.evaluations["before"].calls == 3
    other = trained(tool_model, tools=[DOUBLE], verifiers=[LAST], max_tool_calling_iterations=2)
    with pytest.raises(ValueError, match=r"max_tool_calling_iterations was None, now 2"):
        Measure({}, other, chats()).take("before", resumes=True)


def test_a_row_without_room_behind_its_results_is_over_and_others_go_on(trained, tool_model, speaking):
    """The result of row 0 fills the completion to its last token, while row 1 calls twice and then answers."""
    ways = {"0": "x" * 200, "1": "y"}

    def answer(prompt, row):
        number = prompt.rpartition("<|im_start|>user\nq")[2][0]
        return called("nasty", way=ways[number]) if results_behind(prompt) < 2 else "ok<|im_end|>"

    speaking(answer)
    trainer = trained(tool_model, tools=[f"{TOOLS}:nasty"], verifiers=["tool_valid"])
    said = called("nasty", way=ways["0"]) + f"\n<|im_start|>user\n<tool_response>\nfine: {ways['0']}\n</tool_response>"
    said += "<|im_end|>\n<|im_start|>assistant\n"
    length = len(trainer.processing_class.encode(said, add_special_tokens=False))
    drawer = turn_sampler(trainer, SampleSettings(max_completion_length=length))
    with drawer.borrowed():
        completed = drawer.complete([dict(row) for row in chats()][:2], [(0, 0), (1, 0)], 0)
    assert len(completed.ids[0]) == length
    assert [[len(turn.calls) for turn in turns] for turns in completed.turns] == [[1], [1, 1, 0]]
    assert [sample.cut_off for sample in completed.samples] == [True, False]
    assert [sample.completion for sample in completed.samples] == ["", "ok"]
    speaking(lambda prompt, row: called("double", number=1))  # calls beyond the limit are not run
    limited = trained(tool_model, tools=[DOUBLE], verifiers=["tool_valid"], max_tool_calling_iterations=2)
    drawer = turn_sampler(limited, SampleSettings(max_completion_length=900))
    with drawer.borrowed():
        (sample,) = drawer.complete([dict(chats()[0])], [(0, 0)], 0).samples
    assert [[call["status"] for call in turn["calls"]] for turn in sample.turns] == [["ok"], ["ok"], ["cut"]]
    assert (sample.calls, sample.failed_calls, sample.cut_off) == (2, 0, True)


def test_rows_that_do_not_fit_are_refused_before_anything_is_drawn(trained, tool_model):
    trainer = trained(tool_model, tools=[DOUBLE], verifiers=["tool_valid"])
    texts = chats().map(lambda row: {"prompt": row["prompt"][0]["content"]}, remove_columns=["prompt"])
    with pytest.raises(ConfigError, match=r"measure, split held: the prompts are texts, and tools are called in chats"):
        Measure({"split": "held"}, trainer, texts)
    of_a = {"train_dataset": chats(environment=lambda n: "a")}
    several = trained(tool_model, environment={"a": COUNTING}, given=of_a)
    with pytest.raises(ConfigError, match=r"measure, split test: the column 'environment' has 'b'.*There is: a"):
        Measure({}, several, chats(environment=lambda n: "b"))
    with pytest.raises(ConfigError, match=r"has no column 'environment'"):
        Measure({}, several, chats())
    twice = trained(tool_model, environment=COUNTING, verifiers=[{"name": "tool_used", "label": "Counting"}])
    with pytest.raises(ConfigError, match=r"'Counting' is both a verifier and an environment"):
        Measure({}, twice, chats())


def test_two_processes_measure_what_one_does_and_eval_draws_the_same_from_the_runs_folder(
    cli, calling_model, tmp_path, two_ranks
):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats()))
    config = {
        "model_name_or_path": calling_model, "dataset_name": "data.jsonl", "tools": [DOUBLE], "max_steps": 1,
        "verifiers": ["tool_valid", {"name": "tool_used", "weight": 0}], "measure": {"split": "train", "n": 2, "limit": 5},
        "max_completion_length": 200, "num_generations": 2, "use_cpu": True, "bf16": False, "report_to": "none",
        "per_device_train_batch_size": 2, "save_strategy": "no", "learning_rate": 1e-30, "disable_tqdm": True,
    }  # fmt: skip
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    script = tmp_path / "rank.py"
    script.write_text("import sys\nfrom grpo_plus.cli import main\nassert main(sys.argv[1:]) == 0\n")
    two = ("train", file, "--output_dir", tmp_path / "two", "--per_device_train_batch_size", "1")
    with two_ranks(script, *two, log=tmp_path / "log", cwd=tmp_path):
        text = cli.done("train", file, "--output_dir", tmp_path / "one")
    before, after, two = (
        untimed(tmp_path / folder / "measure" / f"{when}.jsonl")
        for folder, when in (("one", "before"), ("one", "after"), ("two", "before"))
    )
    assert sorted(before) == [(row, sample) for row in range(5) for sample in range(2)]
    assert before == two == after
    assert sum(row["calls"] for row in before.values()) >= 3
    assert "Accuracy before training: tool_valid" in text
    assert "calls a completion" in text
    assert "Accuracy" in (tmp_path / "one" / "README.md").read_text()
    assert (tmp_path / "log").read_text().count("points of accuracy") == 1
    out = tmp_path / "evaluated.jsonl"
    code, text, err = cli(
        "eval", tmp_path / "one", "--dataset", tmp_path / "data.jsonl", "--split", "train", "--verifier", "tool_valid",
        "--verifier", "tool_used", "-n", "2", "--limit", "5", "--max-completion-length", "200", "--out", out,
        "--trust-run",
    )  # fmt: skip
    assert code == 0, err
    assert f"Callable by the model, from the run {tmp_path / 'one'}: tools: double." in err
    assert untimed(out) == after
