"""The ``prompt`` mapping: columns, words, answer formats, and who gets a conversation."""

import shutil

import pytest
import yaml
from datasets import Dataset

from grpo_plus.cli import UserError
from grpo_plus.cli._prompts import FORMATS, filled, maker, placeholders, prompt_problems, with_prompts
from grpo_plus.recipe.entries import read_entries

ROW = {"question": "1+1?", "level": 2, "answer": "2"}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def test_what_a_row_becomes():
    for prompt, chat, expected in (
        ({"column": "question"}, True, [user("1+1?")]),
        ({"column": "question"}, False, "1+1?"),
        ({"column": "question", "chat": False}, True, "1+1?"),
        ({"column": "question", "system": "Be brief."}, True, [system("Be brief."), user("1+1?")]),
        ({"column": "question", "system": "Be brief."}, False, "Be brief.\n\n1+1?"),
        ({"column": "question", "template": "boxed"}, True, [system(FORMATS["boxed"].text), user("1+1?")]),
        (
            {"column": "question", "template": "think", "system": "Brief."},
            True,
            [system("Brief.\n\n" + FORMATS["think"].text), user("1+1?")],
        ),
        ({"user": "Level {level}: {question}\nAnswer:"}, False, "Level 2: 1+1?\nAnswer:"),
        ({"user": r"{question} \boxed{} or \boxed{answer}."}, False, r"1+1? \boxed{} or \boxed{answer}."),
        ({"user": 'Answer as JSON {{"x": {level}}} {}'}, True, [user('Answer as JSON {"x": 2} {}')]),
    ):
        assert prompt_problems(prompt) == []
        assert maker(prompt, chat=chat)(ROW) == expected
        rows = with_prompts(Dataset.from_list([ROW | {"prompt": 3}]), prompt, chat=chat)
        assert rows[0] == ROW | {"prompt": expected}


def test_nothing_set_changes_nothing_and_conversations_stay():
    rows = Dataset.from_list([{"prompt": "x"}])
    assert with_prompts(rows, {}, chat=True) is rows
    asked = {"turns": [user("a"), {"role": "assistant", "content": "b"}, user("c")]}
    assert maker({"column": "turns"}, chat=False)(asked) == asked["turns"]
    assert maker({"column": "turns", "system": "S"}, chat=True)(asked) == [system("S"), *asked["turns"]]
    with pytest.raises(UserError, match="begin with one already"):
        maker({"column": "turns", "template": "boxed"}, chat=True)({"turns": [system("T"), user("a")]})


@pytest.mark.parametrize("value", [None, 3, {"a": 1}])
def test_a_cell_that_is_no_text(value):
    with pytest.raises(UserError, match="expected text"):
        maker({"column": "question"}, chat=False)({"question": value})
    if value == 3:
        assert filled("{question}", {"question": value}) == "3"
        return
    with pytest.raises(UserError, match="expected text"):
        filled("{question}", {"question": value})


def test_placeholders_are_columns_only():
    assert placeholders(r"{a} {{b}} \boxed{c} {} {d e} {a}") == ["a", "d e"]


def test_what_is_refused():
    for given, expected in (
        ({"tempalte": "boxed"}, "Did you mean 'template'?"),
        ({"template": "boxd"}, "unknown template 'boxd'. Did you mean 'boxed'? There is: boxed, think"),
        ({"column": "a", "user": "{b}"}, "both column ('a') and user ('{b}')"),
        ({"chat": "yes"}, "expected true or false"),
        ({"system": ""}, "expected a string"),
        ({"column": 3}, "expected a string"),
        ("just text", "expected a mapping"),
    ):
        assert expected in " ".join(prompt_problems(given))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_checked_by_the_verifiers_it_names(name):
    checks, problems = read_entries(yaml.safe_load(f"[{FORMATS[name].checked_by}]"))
    assert not problems
    ends = {"boxed": "a \\boxed{2}", "think": "2", "think_boxed": "\\boxed{2}", "think_answer": "<answer>2</answer>"}
    good = "<think>1+1</think>" * name.startswith("think") + ends[name]
    for check in checks:
        verifier = check.build()
        assert verifier.verify(good, answer="2").score == 1.0
        assert verifier.verify("no idea", answer="2").score == 0.0


def test_missing_columns_are_found_before_the_model_is_loaded(cli, config, folder):
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    broken = {"model_name_or_path": str(folder / "broken")}
    err = cli.refused("train", config(prompt={"user": "{questoin}?"}, **broken))
    assert "unknown column 'questoin'. Did you mean 'question'?" in err
    assert "write a literal brace twice" in err
    err = cli.refused("train", config(prompt={"column": "question"}, **broken))
    assert f"model_name_or_path: the tokenizer of '{folder / 'broken'}' cannot be loaded" in err


@pytest.mark.slow
def test_one_prompt_is_shown_as_the_model_reads_it(cli, config):
    given = config(prompt={"column": "question", "template": "think_answer"}, max_steps=1)
    out = cli.done("train", given)
    shown = out[out.index("A prompt, as the model reads it:") :].partition("\n{")[0]
    assert "<|im_start|>system\n  First think" in shown
    assert "<|im_start|>user\n  what is 0?" in shown
    assert "prefilled" not in shown


@pytest.mark.slow
def test_a_chat_template_that_opens_the_thinking_is_pointed_out(cli, config, tiny_model, tmp_path, caplog):
    thinking = tmp_path / "thinking"
    shutil.copytree(tiny_model, thinking)
    template = thinking / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>\n")
    more = {"model_name_or_path": str(thinking), "prompt": {"column": "question"}, "reward_funcs": None, "max_steps": 1}
    cli.done("train", config(verifiers=["think_format"], **more))
    assert "think_format scores all of them 0" in caplog.text
    caplog.clear()
    cli.done("train", config(verifiers=[{"name": "think_format", "prefilled": True}], **more))
    assert "prefilled" not in caplog.text


@pytest.mark.slow
def test_a_model_without_chat_template_gets_plain_text(cli, config, tiny_model, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(tiny_model, plain)
    (plain / "chat_template.jinja").unlink()
    more = {"model_name_or_path": str(plain), "max_steps": 1}
    out = cli.done("train", config(prompt={"column": "question", "system": "Be brief."}, **more))
    assert "  Be brief.\n  \n  what is 0?" in out
    assert "has no chat template" in cli.refused("train", config(prompt={"column": "question", "chat": True}, **more))
