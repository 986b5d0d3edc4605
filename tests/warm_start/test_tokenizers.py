"""Solutions behind their prompts, for tokenizers that begin each text with a space of their own."""

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from grpo_plus.warm_start.examples import Row, encode
from grpo_verifiers.errors import ConfigError

SPECIALS = ["<unk>", "<s>", "</s>", "<|user|>", "<|model|>"]
TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|model|>' }}{{ m['content'] }}"
    "{{ '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|model|>' }}{% endif %}"
)
LINES = ["What is 2 + 2 = 4?", "the sum is 4, so x = 4\nand then (x) is 12", "Answer: 4", "I think that 10 + 3 is 13."]
PROMPTS = ["2+2=", "Answer: ", "What is 2 + 2?\n", "so", [{"role": "user", "content": "2 + 2?"}]]
SOLUTIONS = ["4", " 4", "  4", "the sum is 4,\nso x = 4 ", "(x)", "\n4", "Answer: 12", "'s", "."]


def learned(tokenizer, trainer, lines=LINES, **options):
    tokenizer.train_from_iterator(lines * 9, trainer(show_progress=False, **{"special_tokens": SPECIALS, **options}))
    return tokenizer


def unigram(scheme):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trained = {"vocab_size": 120, "unk_token": "<unk>", "initial_alphabet": list("0123456789\n()'")}
    return learned(tokenizer, trainers.UnigramTrainer, **trained)


def bpe(scheme):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return learned(tokenizer, trainers.BpeTrainer, vocab_size=120, initial_alphabet=list("▁0123456789\n()'"))


def llama():
    """As the first Llamas: a normaliser writes the space, and unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    all_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = {"vocab_size": 380, "special_tokens": [*SPECIALS, *all_bytes]}
    return learned(tokenizer, trainers.BpeTrainer, [line.replace("\n", " ") for line in LINES], **trained)


def byte_level(add_prefix_space):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return learned(tokenizer, trainers.BpeTrainer, vocab_size=320, initial_alphabet=alphabet)


KINDS = {
    "unigram, always": lambda: unigram("always"),
    "unigram, first": lambda: unigram("first"),
    "bpe, always": lambda: bpe("always"),
    "bpe, first": lambda: bpe("first"),
    "llama": llama,
    "bytes, add_prefix_space": lambda: byte_level(True),
    "bytes": lambda: byte_level(False),
}


def whole(tokenizer):
    """A model's tokenizer, which begins plain text with <s>."""
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_solutions_follow_the_prompts_ids_with_no_space_added(kind):
    tokenizer = whole(KINDS[kind]())
    rows = [Row(prompt, solution) for prompt in PROMPTS for solution in SOLUTIONS]
    found = encode(rows, tokenizer, column="solution", verbatim=True)
    assert found.changed == 0
    for row, ids, start in zip(rows, found.ids, found.starts, strict=True):
        asked = tokenizer(row.prompt) if isinstance(row.prompt, str) else tokenizer.apply_chat_template(
            row.prompt, add_generation_prompt=True, return_dict=True)  # fmt: skip
        assert list(ids[:start]) == list(asked["input_ids"])
        assert tokenizer.decode(ids) == tokenizer.decode(ids[:start]) + row.solution + "</s>", row
    apart = tokenizer(SOLUTIONS, add_special_tokens=False)["input_ids"]
    rows = zip(found.ids, found.starts, apart * len(PROMPTS), strict=True)
    assert all(ids[start:-1] == own for ids, start, own in rows) is (kind == "bytes")


@pytest.mark.parametrize("kind", KINDS)
def test_a_templates_turn_ends_the_solution_once(kind):
    tokenizer = whole(KINDS[kind]())
    tokenizer.chat_template = TEMPLATE.replace("'</s>'", "'</s>\\n'")
    found = encode([Row(PROMPTS[-1], "4")], tokenizer, column="solution")
    assert tokenizer.decode(found.ids[0][found.starts[0] :], skip_special_tokens=True).strip() == "4"
    assert found.ids[0][-1] == tokenizer.eos_token_id
    assert found.ids[0].count(tokenizer.eos_token_id) == 2  # the prompt's turn has one, too
    assert tokenizer.decode(found.ids[0]) == tokenizer.decode(found.ids[0][: found.starts[0]]) + "4</s>"


def test_characters_that_a_tokenizer_does_not_know_are_counted_and_add_no_space():
    tokenizer = whole(unigram("always"))
    found = encode([Row("2+2=", "4 €"), Row("2+2=", "4")], tokenizer, column="solution")
    assert (tokenizer.decode(found.ids[0][found.starts[0] :]), found.changed) == ("4 <unk></s>", 1)
    assert "1 solutions hold characters that the tokenizer does not know" in found.told()[0]


def test_white_space_that_a_tokenizer_folds_is_counted():
    folding = byte_level(add_prefix_space=False)
    folding.normalizer = normalizers.Replace(Regex(" +"), " ")
    tokenizer = whole(folding)
    found = encode([Row("2+2=", "  4"), Row("2+2=", "4  5")], tokenizer, column="solution")
    assert [tokenizer.decode(ids[start:]) for ids, start in zip(found.ids, found.starts, strict=True)] == [
        " 4</s>", "4 5</s>"]  # fmt: skip
    assert found.changed == 2


def words(*known):
    """A tokenizer of whole words, with the space before each in it."""
    vocabulary = {word: at for at, word in enumerate(("<unk>", "<s>", "</s>", *known))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return whole(tokenizer)


@pytest.mark.parametrize("solution", ["4", "4 €"])
def test_a_space_that_cannot_be_left_out_is_refused_whatever_else_is_unknown(solution):
    with pytest.raises(ConfigError, match="row 0 of the solutions cannot follow its prompt"):
        encode([Row("sum", solution)], words("▁sum", "▁4"), column="solution")


def test_white_space_that_is_dropped_is_refused():
    dropping = byte_level(add_prefix_space=False)
    dropping.normalizer = normalizers.Replace(" ", "")
    with pytest.raises(ConfigError, match="cannot follow its prompt"):
        encode([Row("sum", " 4")], whole(dropping), column="solution")


def test_a_solution_that_no_ids_can_be_behind_its_prompt_is_shown():
    tokenizer = words("▁sum", "▁4")
    assert encode([Row("sum", " 4")], tokenizer, column="solution").ids == [[1, 3, 4, 2]]
    with pytest.raises(ConfigError) as refused:
        encode([Row("sum", " 4"), Row("sum", "4")], tokenizer, column="solution")
    said = str(refused.value)
    assert "row 1 of the solutions cannot follow its prompt" in said
    assert "  | sum4\n" in said
    assert "  | <s> sum 4\n" in said
