"""Turns in a record: spans, calls, scores and advantages as given, bounded, without secrets, and absent in old ones."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grpo_plus.record import schema
from grpo_plus.record.sample import MOST_ALL, MOST_CALLS, MOST_TEXT, MOST_TURNS, completion_record, turn_rows
from grpo_plus.sampling.token_spans import Decode
from grpo_plus.training.hooks import Completions, ScoredBatch
from grpo_plus.training.observers import recorder
from grpo_plus.training.observers.card import section
from grpo_verifiers.turns import Call, Turn

DECODE: Decode = lambda ids: "".join("abcdefghij"[one] for one in ids)  # noqa: E731 - one letter a token
CALLED = (Call("add", {"a": 1}, "2", "ok", 0.25), Call("gone", "{", "no such tool", "unknown"))
TURNS = [Turn(0, 3, "let me see", CALLED), Turn(5, 9, "it is 2", (), "s1", 0.5)]
SPANS = [(0, 3), (5, 9)]


def row(**changes):
    given = {"ids": list(range(9)), "advantage": 0.5, "advantages": None, "values": None, "untrained": [[3, 5]]}
    return given | {"truncated": False, "verdicts": [], "turns": turn_rows(TURNS, SPANS)} | changes


def read(record):
    return schema.reader(schema.CompletionData)(record)


def test_a_turn_has_what_was_said_called_and_returned():
    first, second = read(completion_record(row(), [1.0], DECODE))["turns"]
    found = [(turn["tokens"], turn["text"]) for turn in (first, second)]
    assert found == [([0, 3], "let me see"), ([5, 9], "it is 2")]
    called = [[call[name] for name in ("name", "arguments", "result", "status", "seconds")] for call in first["calls"]]
    assert called == [["add", '{"a": 1}', "2", "ok", 0.25], ["gone", "{", "no such tool", "unknown", 0.0]]
    assert (second["state"], second["reward"], first["state"], first["reward"]) == ("s1", 0.5, None, None)


def test_a_turns_advantage_is_the_mean_over_its_own_tokens_and_its_score_that_of_the_steps_on_it():
    each = [1.0, 2.0, 3.0, 9.0, 9.0, -1.0, -1.0, -2.0, -4.0]
    steps = [[0, 1, 1.0], [1, 3, 0.0], [5, 9, None]]
    first, second = completion_record(row(advantages=each), [1.0], DECODE, steps)["turns"]
    assert (first["advantage"], second["advantage"], first["score"], second["score"]) == (2.0, -2.0, 0.5, None)
    one, other = completion_record(row(), [1.0], DECODE)["turns"]
    assert one["advantage"] == other["advantage"] == 0.5


def test_scores_of_a_verifier_fall_on_the_turns_where_the_estimator_read_none():
    verdict = {"verifier": "v", "status": "partial", "reason": "", "steps": [(0, 3, 0.25), (5, 9, 1.0)]}
    turns = completion_record(row(verdicts=[verdict]), [1.0], DECODE)["turns"]
    assert [turn["score"] for turn in turns] == [0.25, 1.0]


def test_a_run_without_tools_and_an_old_record_have_no_turns():
    assert "turns" not in read(completion_record(row(turns=None), [1.0], DECODE))
    assert "turns" not in read({"pieces": ["a"]})


def test_turns_are_bounded_whatever_tools_return():
    call = Call("x" * 10**5, {"a": "y" * 10**5}, "z" * 10**6)
    rows = turn_rows([Turn(0, 1, "t" * 10**6, (call,) * 40)] * 100, [(0, 1)] * 100)
    assert (len(rows), len(rows[0]["calls"]), rows[0]["left_out"]) == (MOST_TURNS, MOST_CALLS, 40 - MOST_CALLS)
    assert len(rows[0]["text"]) == MOST_TEXT
    assert rows[0]["text"].endswith("t…")
    texts = [one["text"] for one in rows]
    texts += [call[key] for one in rows for call in one["calls"] for key in ("name", "arguments", "result")]
    assert sum(map(len, texts)) <= MOST_ALL + 2 * len(texts)


@pytest.mark.parametrize("place", ["text", "arguments", "named", "result"])
def test_secrets_do_not_reach_the_record(place):
    key = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5"
    arguments = {"named": {"token": "plain-words-9"}, "arguments": {"q": key}}.get(place, {})
    call = Call("f", arguments, key if place == "result" else "")
    said = str(turn_rows([Turn(0, 1, key if place == "text" else "", (call,))], [(0, 1)]))
    assert key not in said
    assert "plain-words-9" not in said


@pytest.mark.parametrize("tools", [True, False])
def test_a_rank_sends_turns_and_the_values_of_trained_tokens_of_the_rows_that_are_kept(tools, monkeypatch):
    monkeypatch.setattr(recorder, "stop_token_ids", lambda _: {0})
    pipeline = SimpleNamespace(verifiers=SimpleNamespace(at_work=lambda **_: []))
    parts = {"accelerator": SimpleNamespace(process_index=0), "model": SimpleNamespace(training=True)}
    run = SimpleNamespace(**parts, pipeline=pipeline)
    completions = Completions([{}] * 2, ["p"] * 2, ["t"] * 2, [[1] * 9] * 2)
    if tools:
        completions = replace(completions, turns=[[], TURNS], turn_tokens=[[], SPANS])
    output = {"advantages": torch.ones(2), "completion_mask": torch.ones(2, 9, dtype=torch.long)}
    output |= {"critic_values": torch.arange(20.0).reshape(2, 10), "tool_mask": torch.ones(2, 9, dtype=torch.long)}
    output["tool_mask"][1, 3] = 0
    batch = ScoredBatch(completions, torch.zeros(2, 1), [(), ()], output=output)
    [one] = recorder.rank_rows(run, batch, groups=[1], size=1)["rows"]
    assert one["turns"] == (turn_rows(TURNS, SPANS) if tools else None)
    assert (one["values"], one["untrained"]) == ([10.0, 11.0, 12.0, None, 14.0, 15.0, 16.0, 17.0, 18.0], [[3, 4]])
    recorded = completion_record({**one, "values": [value and value / 3 for value in one["values"]]}, [1.0], DECODE)
    assert recorded["token_values"][:4] == [3.333, 3.667, 4.0, None]


def test_the_card_names_the_tools_of_a_run_that_has_some(build):
    def add_numbers(a: int, b: int) -> int:
        """Adds."""
        return a + b

    trainer = build(advantage="sign")
    assert "| tools |" not in section(trainer)
    trainer.tools = [add_numbers]
    assert '| tools | ["add_numbers"] |' in section(trainer)
