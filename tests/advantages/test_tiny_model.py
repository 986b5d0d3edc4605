import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_plus.testing import make_tiny_model, make_tiny_tokenizer
from grpo_plus.testing.tiny import ARCHITECTURES, PRINTABLE


@pytest.mark.sample(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_comes_back_from_its_folder_the_same(architecture, tmp_path):
    before = torch.random.get_rng_state()
    model, tokenizer = make_tiny_model(tmp_path, architecture=architecture)
    assert torch.equal(before, torch.random.get_rng_state())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    reader = AutoTokenizer.from_pretrained(tmp_path)
    ids = reader(PRINTABLE, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, len(PRINTABLE)) == (1, 96)
    assert ids.tolist() == [tokenizer(PRINTABLE)["input_ids"]]
    assert reader.decode(ids[0]) == tokenizer.decode(ids[0]) == PRINTABLE
    assert (reader.pad_token_id, reader.eos_token_id, reader.bos_token_id) == (0, 4, 2)
    assert loaded.generation_config.eos_token_id == 4
    with torch.no_grad():
        logits = model(ids).logits
        torch.testing.assert_close(loaded(ids).logits, logits)
    assert logits.shape[-1] == len(tokenizer) == 101
    assert logits.softmax(-1).amax(-1).mean() > 0.05  # far from uniform (0.01), so that wrong contexts show
    again, _ = make_tiny_model(architecture=architecture)
    other, _ = make_tiny_model(architecture=architecture, seed=1)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, logits)
        assert not torch.allclose(other(ids).logits, logits)


def test_the_chat_template_marks_turns_with_single_tokens():
    tokenizer = make_tiny_tokenizer()
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": [{"type": "text", "text": "2"}]}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text)["input_ids"]
    assert (ids.count(tokenizer.eos_token_id), ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>"))) == (2, 3)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\n1+1?\nassistant\n2\nassistant\n"
    assert tokenizer.unk_token_id in tokenizer("é")["input_ids"]


def test_bad_requests_are_explained():
    with pytest.raises(ValueError, match="Did you mean 'qwen2'"):
        make_tiny_model(architecture="qwen-2")
    with pytest.raises(ValueError, match="multiple of 8"):
        make_tiny_model(hidden=20)
    with pytest.raises(ValueError, match="ASCII"):
        make_tiny_tokenizer("añ")
