"""The data of the examples with tools and with an environment: right by the tools themselves, and held out."""

import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest
import yaml

from grpo_plus.cli.quickstart import ROWS, tools
from grpo_verifiers import get_verifier
from grpo_verifiers.registry import import_reference
from grpo_verifiers.testing.tools import check_environment
from grpo_verifiers.tools.calculator import calculator

EXAMPLES = Path(__file__).parents[2] / "examples"
GAME = EXAMPLES / "game.py"


def questions(rows):
    return {row[0]["content"] for row in rows["prompt"]}


def test_what_the_calculator_says_in_the_solutions_is_what_it_says():
    for made in islice(tools.sums(seed=3), 200):
        asked, said, last = made.with_the_calculator()
        arguments = json.loads(asked["tool_calls"][0]["function"]["arguments"])
        assert calculator(**arguments) == said["content"] == str(eval(made.question))
        assert last["content"] == f"\\boxed{{{eval(made.question)}}}"


def test_from_the_head_it_is_right_exactly_where_nothing_carries():
    found = list(islice(tools.sums(seed=3), 400))
    said = [made.from_the_head()[0]["content"] for made in found]
    verdicts = get_verifier("math").verify_batch(None, said, answer=[str(made.answer) for made in found])
    columns = [zip(str(made.left), str(made.right), strict=True) for made in found]
    carries = [any(int(one) + int(other) > 9 for one, other in each) for each in columns]
    assert [verdict.score == 0.0 for verdict in verdicts] == carries
    assert 0.6 < sum(carries) / 400 < 0.9


def test_sums_of_the_test_split_are_neither_trained_on_nor_in_the_warm_start(monkeypatch):
    monkeypatch.setattr(tools, "SOLUTIONS", 4000)
    splits, learned = tools.dataset(), tools.solutions()
    assert {name: len(rows) for name, rows in splits.items()} == ROWS
    assert not questions(splits["test"]) & (questions(splits["train"]) | questions(learned))
    calls = sum(len(solution) == 3 for solution in learned["solution"])
    assert calls / 4000 == pytest.approx(tools.CALLING, abs=0.03)


def test_calls_are_read_back_as_they_are_written(tmp_path, monkeypatch):
    """By transformers, from the model's own template: what TRL's loop does with a sampled turn."""
    from transformers import AutoTokenizer

    from grpo_plus.trl.tools import parse_message, tool_tokenizer

    monkeypatch.setattr(tools, "FOLDER", tmp_path)
    folder = tools.base()
    assert tools.base() == folder
    tokenizer, template = tool_tokenizer(AutoTokenizer.from_pretrained(folder))
    assert template is None
    for made in islice(tools.sums(seed=4), 20):
        asked = made.with_the_calculator()[0]
        function = asked["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
        text = tokenizer.apply_chat_template([{"role": "user", "content": made.question}, asked], tokenize=False)
        turn = text[text.rindex("<tool_call>") :]
        message = parse_message(tokenizer, tokenizer(turn)["input_ids"], [], [])
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "calculator", "arguments": {"expression": made.question}}


@pytest.fixture
def game():
    if not GAME.is_file():
        pytest.skip("the examples are not beside the tests")
    return lambda name: import_reference(f"{GAME}:{name}")


def test_the_game_keeps_the_contract_of_environments_and_a_treasure_once_found_stays_found(game):
    row = game("dataset")()["train"][0]
    check_environment(f"{GAME}:Treasure", rows=[row], calls=[(way, {}) for way in game("WAYS")])
    made = game("Treasure")()
    made.reset(start="12", treasure="13")
    assert [made.north(), made.north(), made.south()] == ["found"] * 3
    assert made.get_reward() == 1.0


@pytest.mark.slow
def test_games_of_the_test_split_are_neither_trained_on_nor_in_the_warm_start(game):
    splits, learned = game("dataset")(), game("solutions")()
    test = questions(splits["test"])
    assert len(test) == len(splits["test"])
    assert len(questions(splits["train"])) == len(splits["train"])
    assert not test & (questions(splits["train"]) | questions(learned))


def test_the_games_of_the_warm_start_are_what_the_environment_would_have_said(game):
    rng, made = random.Random(1), game("Treasure")()
    won = 0
    for at, treasure in rng.choices(game("games")(held_out=False), k=300):
        row = game("row")(at, treasure)
        made.reset(row["start"], row["treasure"])
        turns = game("played")(at, treasure, rng)
        nearer, before = 0.0, made.state_key()
        assert before == row["prompt"][0]["content"]
        for turn, result in zip(turns[::2], turns[1::2], strict=False):
            (call,) = turn["tool_calls"]
            assert getattr(made, call["function"]["name"])() == result["content"]
            nearer += made.get_turn_reward()
            assert result["content"] in (made.state_key(), "found")
        start = game("distance")(at, treasure)
        won += made.get_reward() == 1.0
        assert (made.get_reward() == 1.0) == (nearer == start) == (turns[-1]["content"] == "done")
        assert len(turns) <= 2 * game("MOVES") + 1
    assert 0.3 < won / 300 < 0.5


def longest(solution):
    """Characters, as tokens, of the turns and of what the tools say; marks count as one."""
    text = ""
    for message in solution:
        calls = "".join(
            f"({each['function']['name']}{each['function']['arguments']})" for each in message.get("tool_calls") or ()
        )
        text += f"|a{message['content'] or ''}{calls}|"
    return len(text)


@pytest.mark.parametrize("name", ["tools", "environment"])
def test_the_longest_solution_fits_the_config(name, game):
    values = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    if name == "tools":
        made = [each.with_the_calculator() for each in islice(tools.sums(seed=5), 500)]
    else:
        rng = random.Random(2)
        made = [game("played")(*each, rng) for each in rng.choices(game("games")(held_out=False), k=500)]
        assert values["max_tool_calling_iterations"] == game("MOVES")
    assert max(map(longest, made)) <= values["max_completion_length"]


def test_what_the_texts_say_of_the_game_is_so(game):
    """The transcript at the top of the file is a game."""
    text = game("__doc__")
    start, *results = re.findall(r"(?:user|tool): +(\S+)", text)
    made = game("Treasure")()
    made.reset(start=start[:2], treasure="33")
    moves = re.findall(r"<tool_call>(\w+)", text)
    assert start == made.state_key()
    assert [getattr(made, move)() for move in moves] == results
