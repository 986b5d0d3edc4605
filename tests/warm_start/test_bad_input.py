"""What a warm start refuses, before any model loads."""

import pytest

from grpo_plus.warm_start.examples import SolutionRow, encode
from grpo_plus.warm_start.make import Base
from grpo_plus.warm_start.store import Archive, WarmStart, warm_start_problems
from grpo_verifiers.errors import ConfigError
from tests.warm_start.sums import solutions

SETTINGS = {
    "{steps: 2, epochs: 1}": "both steps (2) and epochs (1)",
    "{stpes: 2}": "Did you mean 'steps'?",
    "{steps: 0}": "warm_start: steps is 0, expected a whole number of at least 1",
    "{learning_rate: -1}": "warm_start: learning_rate is -1, expected a number above 0",
    "{solution: 3}": "warm_start: solution is 3",
    "{config: main}": "no dataset",
    "[solutions]": "warm_start is '[solutions]', expected a mapping",
}


@pytest.mark.parametrize("given", SETTINGS)
def test_wrong_settings_are_named(given):
    assert SETTINGS[given] in " ".join(warm_start_problems(given))


def test_good_settings_are_fine_and_what_is_left_out_is_filled():
    assert warm_start_problems(None) == []
    assert warm_start_problems({"dataset": "x.jsonl", "steps": 3, "learning_rate": 1e-5, "folder": "warm"}) == []
    filled = WarmStart.of({}, 100, adapter=False, processes=3)
    assert (filled.steps, filled.batch_size, filled.learning_rate) == (3, 30, 2e-5)
    assert WarmStart.of({"epochs": 2.5}, 10, adapter=True).steps == 2
    assert WarmStart.of({}, 10, adapter=True).learning_rate == 2e-4
    assert WarmStart.of({"full": True}, 10, adapter=True).learning_rate == 2e-5


@pytest.fixture
def refused(config, cli, monkeypatch):
    """The message of a config that is refused; no model loads."""

    def loads(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loads)

    def refused(**changes):
        code, said, err = cli("train", config(**changes))
        assert code == 2, said + err
        return err

    return refused


def asked(row):
    return [{"role": "user", "content": row["question"]}]


DATA = {
    "the column is missing": (solutions(), {"solution": "solutoin"}, "Did you mean 'solution'?"),
    "the prompt's column is missing": ([{"solution": "2"}] * 8, {}, "unknown column 'question'"),
    "a solution is empty": (solutions(solution=lambda row: " " * (row["question"] == "1+1")), {}, "row 0 of the"),
    "a solution is a number": (solutions(solution=lambda row: 3), {}, "holds 3, expected text, or messages"),
    "the last turn is the user's": (solutions(solution=asked), {}, "whose last turn is the assistant's"),
    "prompts fill max_length": (solutions(), {"max_length": 3}, "no solution is left to train on: the prompts alone"),
    "a solution brings its prompt": (
        solutions(solution=lambda row: [*asked(row), {"role": "assistant", "content": row["solution"]}]),
        {},
        "expected text, or messages of the assistant",
    ),
    "the split is missing": (solutions(), {"split": "tarin"}, "warm_start.split: unknown split 'tarin'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DATA)
def test_solutions_that_cannot_be_learned_are_refused(refused, write, case):
    rows, settings, expected = DATA[case]
    said = refused(warm_start={"dataset": write(rows, "other.jsonl"), **settings})
    assert expected in said


@pytest.mark.slow
def test_a_missing_dataset_is_named_and_everything_held_out_is_an_error(refused):
    assert "'./nowhere.jsonl' does not exist" in refused(warm_start={"dataset": "./nowhere.jsonl"})
    assert "all of 16 are measured or evaluated" in refused(measure={"split": "train"})


def plain():
    return Template("A:", lambda each: f"A:{each['content']}")


def test_held_out_prompts_are_known_with_other_white_space():
    tokenizer = plain()
    rows = [
        SolutionRow([{"role": "user", "content": " 1+1 \n"}], "2"),
        SolutionRow([{"role": "user", "content": "1+2"}], "3"),
    ]
    found = encode(rows, tokenizer, column="solution", measured=[ASKED])
    assert (len(found), found.measured) == (1, 1)
    assert tokenizer.decode(found.ids[0][:-1]) == "[1+2]A:3"


def test_a_tokenizer_without_an_end_is_named():
    tokenizer = plain()
    tokenizer.eos_token_id = None
    with pytest.raises(ConfigError, match="no eos_token"):
        encode([SolutionRow(ASKED, "2")], tokenizer, column="solution")


def test_secrets_and_places_of_loading_are_not_kept():
    places = {"token": "hf_secret", "cache_dir": "/somewhere", "local_files_only": True}
    kept = Base("a/model", {"dtype": "float32", "proxies": {"https": "http://me:pw@host"}, **places}).settings()
    assert kept["loading"] == {"dtype": "float32", "proxies": "{'https': 'http://(hidden)@host'}"}


def test_a_full_disk_is_named_whichever_library_writes(tmp_path):
    class SafetensorError(Exception):
        pass

    def save(folder):
        (folder / "begun").write_text("")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(ConfigError, match="no space left on the disk"):
        Archive(tmp_path, {}).keep(save, {}, alone=True)
    assert list(tmp_path.iterdir()) == []


class Template:
    """A tokenizer whose chat template is a function."""

    eos_token_id, eos_token, chat_template = 0, "\0", "set"

    def __init__(self, opening, turn):
        self.opening, self.turn = opening, turn

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt=False):
        assert tokenize is False
        text = "".join(self.turn(each) if each["role"] == "assistant" else f"[{each['content']}]" for each in messages)
        return text + self.opening * add_generation_prompt

    def __call__(self, text, *, add_special_tokens):
        return {"input_ids": [[ord(letter) for letter in each] for each in text]}

    def decode(self, ids, **_):
        return "".join(map(chr, ids))


ASKED = [{"role": "user", "content": "1+1"}]


def test_a_template_that_renders_the_prompt_otherwise_is_refused_side_by_side():
    tokenizer = Template("A:<think>", lambda each: f"A:{each['content']}")
    with pytest.raises(ConfigError) as refused:
        encode([SolutionRow(ASKED, "So 2.")], tokenizer, column="solution")
    lines = str(refused.value).splitlines()
    assert lines[lines.index("the prompt as GRPO's model reads it:") + 1] == "  | [1+1]A:<think>"
    assert lines[lines.index("prompt and solution together:") + 1] == "  | [1+1]A:So 2."
    assert "verbatim: true" in lines[-1]
    found = encode([SolutionRow(ASKED, "So 2.")], tokenizer, column="solution", verbatim=True)
    assert (tokenizer.decode(found.ids[0][:-1]), found.ids[0][-1]) == ("[1+1]A:<think>So 2.", 0)


def test_a_template_that_drops_a_part_of_the_solution_is_refused():
    tokenizer = Template("A:", lambda each: "A:" + each["content"].split("</think>")[-1])
    with pytest.raises(ConfigError, match="drops a part of it"):
        encode([SolutionRow(ASKED, "<think>one and one</think>2")], tokenizer, column="solution")


def test_a_line_break_behind_the_last_token_is_not_learned():
    tokenizer = Template("A:", lambda each: f"A:{each['content']}\0\n")
    found = encode([SolutionRow(ASKED, "2")], tokenizer, column="solution")
    assert tokenizer.decode(found.ids[0]) == "[1+1]A:2\0"


def test_cut_solutions_are_counted_and_do_not_end():
    tokenizer = plain()
    rows = [
        SolutionRow(ASKED, "2"),
        SolutionRow(ASKED, "22222"),
        SolutionRow([{"role": "user", "content": "1+1+1+1+1"}], "5"),
    ]
    found = encode(rows, tokenizer, column="solution", max_length=10)
    assert (len(found), found.cut, found.too_long) == (2, 1, 1)
    assert len(found.ids[1]) == 10
    assert found.ids[1][-1] != 0
    assert "1 solutions are cut by max_length (unset: max_completion_length)" in found.messages()[0]
    assert encode(rows, tokenizer, column="solution", most=3).cut == 1


@pytest.mark.slow
def test_a_loss_that_is_no_number_keeps_nothing(config, cli, tmp_path):
    code, _, err = cli("train", config(warm_start={"steps": 8, "learning_rate": 1e30}))
    assert code == 2
    assert "nothing was stored. Lower its learning_rate" in err
    assert [path for path in (tmp_path / "out" / "_warm_start").iterdir() if path.is_dir()] == []
