import math

import pytest
from tokenizers.processors import TemplateProcessing
from trl.data_utils import apply_chat_template

from grpo_plus.reward_model.preferences import read_pairs
from grpo_plus.reward_model.reading import as_text, padded, step_ids, token_ids
from grpo_plus.reward_model.stepwise import Stepwise, read_stepwise
from grpo_plus.testing import make_tiny_tokenizer
from grpo_verifiers.errors import ConfigError


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


ASKED, RIGHT, WRONG = [user("2+2?")], [said("4")], [said("5")]


def test_every_form_of_preferences_is_read_as_whole_conversations():
    for row, chosen in (
        ({"chosen": "2+2=4", "rejected": "2+2=5"}, "2+2=4"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5"}, "2+2=4"),
        ({"prompt": None, "chosen": "2+2=4", "rejected": "5"}, "2+2=4"),
        ({"chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}, ASKED + RIGHT),
        ({"prompt": ASKED, "chosen": RIGHT, "rejected": WRONG}, ASKED + RIGHT),
        ({"prompt": ASKED, "chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}, ASKED + RIGHT),
        ({"prompt": "2+2?", "chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}, ASKED + RIGHT),
        ({"prompt": ASKED, "chosen": [{**said("4"), "name": None}], "rejected": WRONG}, ASKED + RIGHT),
    ):
        pair, other, again = read_pairs([row, {**row, "margin": 2}, {**row, "margin": None}])
        assert pair.chosen == chosen
        assert (pair.margin, other.margin, again.margin) == (None, 2.0, None)


def test_pairs_of_one_prompt_are_one_group_and_texts_without_a_prompt_each_their_own():
    asked = {"prompt": ASKED, "chosen": RIGHT, "rejected": WRONG}
    implicit = {"chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}
    rows = [asked, {**asked, "rejected": [said("6")]}, {**asked, "prompt": [user("1?")]}, implicit]
    first, second, third, fourth = (pair.group for pair in read_pairs(rows))
    assert first == second == fourth != third
    one, two = (pair.group for pair in read_pairs([{"chosen": "a", "rejected": "b"}] * 2))
    assert one != two


GOOD = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
BAD_PAIRS = [
    ({"prompt": "2+2=", "chosen": "4", "rejected": "4"}, "chosen and rejected are equal ('4')"),
    ({"prompt": "2+2=", "chosen": "", "rejected": "4"}, "chosen is empty"),
    ({"prompt": ASKED, "chosen": RIGHT, "rejected": [said(" ")]}, "rejected is empty"),
    ({"prompt": ASKED, "chosen": ASKED, "rejected": ASKED + WRONG}, "chosen is empty: it is the prompt"),
    ({"chosen": ASKED + RIGHT, "rejected": ASKED}, "one side is the beginning of the other"),
    ({"prompt": "2+2=", "chosen": "4"}, "there is no rejected"),
    ({"text": "2+2="}, "there is no chosen and no rejected"),
    ({"prompt": [user("3?")], "chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}, "prompt is no prefix of chosen"),
    ({"prompt": "3?", "chosen": ASKED + RIGHT, "rejected": ASKED + WRONG}, "prompt is no prefix of chosen"),
    ({"prompt": ASKED, "chosen": "4", "rejected": "5"}, "prompt is a list of messages and chosen text"),
    ({"prompt": ASKED, "chosen": RIGHT, "rejected": "5"}, "chosen is a list of messages and rejected text"),
    ({"prompt": "2+2=", "chosen": 4, "rejected": "5"}, "chosen is 4, expected a text or a list of messages"),
    ({"prompt": 3, "chosen": "4", "rejected": "5"}, "prompt is 3"),
    ({"prompt": ASKED, "chosen": ["4"], "rejected": WRONG}, "chosen has '4', expected messages"),
    ({"prompt": ASKED, "chosen": [said(None)], "rejected": WRONG}, "chosen has a message whose content is None"),
    ({**GOOD, "margin": math.nan}, "margin is nan, expected a finite number"),
    ({**GOOD, "margin": "1"}, "margin is '1'"),
    ({**GOOD, "margin": 1e39}, "margin is 1e+39"),
]


@pytest.mark.parametrize(("row", "told"), BAD_PAIRS)
def test_rows_that_are_no_preferences_are_refused_by_number(row, told):
    with pytest.raises(ConfigError) as caught:
        read_pairs([GOOD, row])
    assert f"row 1: {told}" in str(caught.value)


def test_many_bad_rows_are_counted_and_the_first_are_named():
    with pytest.raises(ConfigError) as caught:
        read_pairs([{**GOOD, "rejected": "4"}] * 9)
    assert "row 4:" in str(caught.value)
    assert "row 5:" not in str(caught.value)
    assert "and 4 more rows" in str(caught.value)


def test_no_rows_and_prompts_that_the_sides_hold_already_are_refused():
    with pytest.raises(ConfigError, match="has no rows"):
        read_pairs([])
    doubled = {"prompt": "2+2=", "chosen": "2+2=4", "rejected": "2+2=5"}
    with pytest.raises(ConfigError, match="remove the column prompt"):
        read_pairs([doubled, doubled])
    assert len(read_pairs([doubled, GOOD])) == 2  # a short prompt may begin an answer by chance


STEPS = {"prompt": "1+1-1?", "completions": ["1+1=2", "2-1=0"], "labels": [True, False]}


def test_steps_and_labels_are_read():
    third = {"prompt": [user("9?"), said("?"), user("8?")], "completions": [" a \n", "b"], "labels": [1, None]}
    one, two = read_stepwise([STEPS, third])
    assert one == Stepwise(0, "1+1-1?", ("1+1=2", "2-1=0"), (1.0, 0.0))
    assert (two.question, two.steps, two.labels[0]) == ("8?", ("a", "b"), 1.0)
    assert math.isnan(two.labels[1])


BAD_STEPS = [
    ({"prompt": "1?", "completions": ["1"]}, "there is no labels"),
    ({**STEPS, "labels": [1]}, "there are 2 completions (steps) and 1 labels"),
    ({**STEPS, "labels": [1, 2]}, "labels[1] is 2, expected 1, 0, or null"),
    ({**STEPS, "labels": ["+", "-"]}, "labels[0] is '+'"),
    ({**STEPS, "labels": 1}, "labels is 1, expected a list"),
    ({**STEPS, "completions": "12"}, "completions is '12', expected a list"),
    ({**STEPS, "completions": ["1", " "]}, "completions[1] is empty"),
    ({**STEPS, "completions": [], "labels": []}, "completions is empty: there are no steps"),
    ({**STEPS, "prompt": ""}, "prompt is empty"),
    ({**STEPS, "prompt": [said("4")]}, "prompt has no message of the user"),
]


@pytest.mark.parametrize(("row", "told"), BAD_STEPS)
def test_rows_that_are_no_labelled_steps_are_refused_by_number(row, told):
    with pytest.raises(ConfigError) as caught:
        read_stepwise([STEPS, row])
    assert f"row 1: {told}" in str(caught.value)


@pytest.mark.parametrize(("labels", "told"), [([1, 1], "all 2 are 1"), ([None, math.nan], "there are none")])
def test_labels_of_one_class_are_refused(labels, told):
    with pytest.raises(ConfigError, match="one class only") as caught:
        read_stepwise([{**STEPS, "labels": labels}])
    assert told in str(caught.value)


def test_texts_and_tokens_are_those_that_trl_hands_to_a_reward_model():
    tokenizer = make_tiny_tokenizer()
    messages = ASKED + RIGHT
    assert as_text(tokenizer, messages) == apply_chat_template({"messages": messages}, tokenizer)["text"]
    texts = [as_text(tokenizer, messages), "2+2=4"]
    theirs = tokenizer(text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
    ours = padded([token_ids(tokenizer, messages), token_ids(tokenizer, "2+2=4")], tokenizer.pad_token_id)
    for name in ("input_ids", "attention_mask"):
        assert ours[name].tolist() == theirs[name].tolist()


def test_no_special_tokens_are_added_that_the_text_does_not_have():
    tokenizer = make_tiny_tokenizer()
    plain = token_ids(tokenizer, "2+2=4")
    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    assert tokenizer("2+2=4")["input_ids"] == [tokenizer.bos_token_id, *plain]  # it would
    assert token_ids(tokenizer, "2+2=4") == plain
    ids, ends = step_ids(tokenizer, Stepwise(0, "1?", ("ab",), (1.0,)))
    assert (ids.count(tokenizer.bos_token_id), ends) == (1, [5])


def test_a_step_ends_with_the_separator_behind_it():
    tokenizer = make_tiny_tokenizer()
    ids, ends = step_ids(tokenizer, Stepwise(0, "1?", ("ab", "c"), (1.0, 0.0)))
    assert tokenizer.decode(ids) == tokenizer.bos_token + "1?ab\nc\n"
    assert ends == [5, 7]
