"""`grpo-plus verify` with several verifiers, rows that are shown, and results that stay."""

import json

import pytest

KEY = "sk-abcdefghijklmnop1234567890ABCD"
ROWS = [("4", "4", "right"), ("4.0", "4", "as a number"), (f"the key is {KEY}", "5", "secret"), ("", "7", "nothing")]


@pytest.fixture
def data(folder):
    path = folder / "done.jsonl"
    path.write_text("".join(json.dumps({"completion": c, "gold": g, "note": n}) + "\n" for c, g, n in ROWS))
    return path


BOTH = ("--verifier", "exact", "--verifier", "numeric", "--column", "answer=gold")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_each_of_several_verifiers_judges_every_row_and_only_so_many_rows_are_shown(cli, data):
    out = cli.done("verify", data, *BOTH, "--out", data.with_suffix(".out"))
    found = lines(data.with_suffix(".out"))
    assert [(line["row"], line["verifier"], line["score"]) for line in found] == [
        (0, "exact", 1.0), (0, "numeric", 1.0), (1, "exact", 0.0), (1, "numeric", 1.0),
        (2, "exact", 0.0), (2, "numeric", 0.0), (3, "exact", 0.0), (3, "numeric", 0.0),
    ]  # fmt: skip
    assert [line["gold"] for line in found[::2]] == [{"answer": gold} for _, gold, _ in ROWS]
    assert [line["completion"] for line in found[:4:2]] == ["4", "4.0"]
    assert "mean scores: exact 0.2500, numeric 0.5000" in out
    out = cli.done("verify", data, *BOTH, "--show", "wrong", "--show-rows", "1")
    assert out.count("\nrow ") == 1
    assert "2 more rows match" in out


SHOWN = {"wrong": "123", "timeout": "", "timeout,correct": "01", "timeout disagree": "1", "all": "0123"}


@pytest.mark.parametrize(("asked", "rows"), SHOWN.items())
def test_rows_are_shown_with_completion_gold_verdict_and_reason(cli, data, asked, rows):
    flags = [word for each in asked.split() for word in ("--show", each)]
    out = cli.done("verify", data, *BOTH, *flags, "--out", data.with_suffix(".out"))
    assert [line.removeprefix("row ") for line in out.splitlines() if line.startswith("row ")] == [*rows]
    assert KEY not in out + data.with_suffix(".out").read_text(encoding="utf-8")
    assert ("the key is (hidden)" in out) == ("2" in rows)
    if "1" in rows:
        shown = out[out.index("row 1") :].splitlines()
        assert shown[1:3] == ["  completion: 4.0", "  gold answer: 4"]
        assert shown[3].startswith("  exact: wrong, score 0: '4.0' against '4'")
        assert shown[4].startswith("  numeric: correct, score 1: ")
    elif not rows:
        assert "no row matches --show (timeout)" in out


def test_results_are_written_to_a_file_of_the_users_only_and_earlier_ones_stay(cli, data):
    out = data.with_name("results.jsonl")
    cli.done("verify", data, *BOTH)
    assert not list(data.parent.glob("*verdicts*"))
    assert f"results: {out}" in cli.done("verify", data, *BOTH, "--out", out)
    out.write_text("earlier")
    assert "exists already" in cli.refused("verify", data, *BOTH, "--out", out)
    assert out.read_text() == "earlier"
    cli.done("verify", data, *BOTH, "--out", out, "--overwrite")
    assert len(lines(out)) == 2 * len(ROWS)


def test_options_of_one_of_several_carry_its_label(cli, data):
    strict = ("--verifier", "{name: exact, label: strict, columns: {answer: gold}}")
    loose = ("--verifier", "numeric", "--column", "numeric.answer=gold", "--option", "numeric.abs_tol=10")
    assert "mean scores: strict 0.2500, numeric 0.5000" in cli.done("verify", data, *strict, *loose)


def test_a_completion_may_be_a_chat(cli, folder):
    chat = [{"role": "assistant", "content": "so 4"}]
    (folder / "chats.jsonl").write_text(json.dumps({"completion": chat, "answer": "4"}) + "\n")
    flags = ("--verifier", "numeric", "--option", "source=last", "--show", "all")
    out = cli.done("verify", folder / "chats.jsonl", *flags, "--out", folder / "out.jsonl")
    (line,) = lines(folder / "out.jsonl")
    assert (line["completion"], line["score"]) == (chat, 1.0)
    assert "so 4" in out
