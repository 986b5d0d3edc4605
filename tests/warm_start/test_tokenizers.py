"""Solutions behind their prompts, for tokenizers of several kinds."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from grpo_plus.warm_start.examples import SolutionRow, encode
from grpo_verifiers.errors import ConfigError
from tests.warm_start.sums import starts

SPECIALS = ["<unk>", "<s>", "</s>", "<|user|>", "<|model|>"]
TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|model|>' }}{{ m['content'] }}"
    "{{ '</s>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|model|>' }}{% endif %}"
)
LINES = ["What is 2 + 2 = 4?", "the sum is 4, so x = 4\nand then (x) is 12", "Answer: 4", "I think that 10 + 3 is 13."]
ASKED = [{"role": "user", "content": "2 + 2?"}]


def learned(tokenizer, trainer, **options):
    tokenizer.train_from_iterator(LINES * 9, trainer(show_progress=False, special_tokens=SPECIALS, **options))
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trained = {"vocab_size": 120, "unk_token": "<unk>", "initial_alphabet": list("0123456789\n()'")}
    return learned(tokenizer, trainers.UnigramTrainer, **trained)


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return learned(tokenizer, trainers.BpeTrainer, vocab_size=320, initial_alphabet=alphabet)


def words():
    """Whole words, with the space before each in it."""
    vocabulary = {word: at for at, word in enumerate(("<unk>", "<s>", "</s>", "▁sum", "▁4"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return tokenizer


def whole(tokenizer):
    """A model's tokenizer, which begins plain text with <s>."""
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


@pytest.mark.parametrize("make", [unigram, byte_level])
@pytest.mark.parametrize("prompt", ["What is 2 + 2?\n", ASKED])
def test_solutions_follow_the_prompts_ids_and_end_once(make, prompt):
    tokenizer = whole(make())
    found = encode(
        [SolutionRow(prompt, text) for text in ("4", "the sum is 4,\nso x = 4")], tokenizer, column="solution"
    )
    asked = tokenizer(prompt) if isinstance(prompt, str) else tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, return_dict=True)  # fmt: skip
    for ids, start, text in zip(found.ids, starts(found), ("4", "the sum is 4,\nso x = 4"), strict=True):
        assert ids[:start] == list(asked["input_ids"])
        assert tokenizer.decode(ids) == tokenizer.decode(ids[:start]) + text + "</s>"


def test_a_solution_that_merges_with_its_prompt_is_shown():
    tokenizer = whole(words())
    assert encode([SolutionRow("sum", " 4")], tokenizer, column="solution").ids == [[1, 3, 4, 2]]
    with pytest.raises(ConfigError) as refused:
        encode([SolutionRow("sum", " 4"), SolutionRow("sum", "4")], tokenizer, column="solution")
    said = str(refused.value)
    assert "row 1 of the solutions cannot follow its prompt" in said
    assert "the prompt:\n  | sum\nthe solution:\n  | 4\n" in said
