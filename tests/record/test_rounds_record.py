"""Lines of ``rounds.jsonl``, read back."""

from grpo_plus.record import open_run
from grpo_plus.record.files import FOLDER, ROUNDS, RUN, append_line, dump


def ended(number, *, every=4, did=("reference",)):
    return {"kind": "round", "step": number * every, "number": number, "first": (number - 1) * every + 1, "did": [*did]}


def run_with(folder, *lines):
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / RUN).write_text(dump({"schema": 1, "status": "done"}))
    for line in lines:
        append_line(folder / FOLDER / ROUNDS, line)
    return open_run(folder)


def test_rounds_are_read_in_order_and_a_resumed_run_takes_back_those_after_its_checkpoint(tmp_path):
    found = run_with(tmp_path, ended(1), ended(2, did=("reference", "prompts")) | {"seconds": 0.5})
    rounds = [(line["number"], line["first"], line["step"], line["did"]) for line in found.rounds()]
    assert rounds == [(1, 1, 4, ["reference"]), (2, 5, 8, ["reference", "prompts"])]
    assert found.damage == []
    found = run_with(tmp_path, {"kind": "begin", "step": 4}, ended(2, did=("prompts",)))
    assert [(line["number"], line["did"]) for line in found.rounds()] == [(1, ["reference"]), (2, ["prompts"])]


def test_a_run_without_rounds_has_none_and_a_broken_line_is_said(tmp_path):
    assert run_with(tmp_path).rounds() == []
    found = run_with(tmp_path, ended(1), {**ended(2), "step": "many"})
    assert len(found.rounds()) == 1
    assert any("1 line of grpo_plus/rounds.jsonl" in sentence for sentence in found.damage)
