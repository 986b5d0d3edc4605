"""Process reward models: the verifier gives what a plain forward of the checkpoint gives, whatever a completion says."""

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForTokenClassification

from grpo_plus.testing import make_tiny_tokenizer
from grpo_verifiers import Status, get_verifier
from grpo_verifiers.errors import KeywordError, VerifierFailedError
from grpo_verifiers.testing import check_verifier

QUESTION = "1+1+2="
STEPS = ["1+1=2", "2+2=4", "so 4"]


def tiny(folder, kind, **fields):
    """A checkpoint with random weights wide enough for its scores to differ."""
    tokenizer = make_tiny_tokenizer()
    tokenizer.add_tokens(["<extra_0>", "ки"], special_tokens=True)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, max_position_embeddings=256, **fields,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = kind(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), model, tokenizer


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("classifier"), Qwen2ForTokenClassification, num_labels=2)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("language"), Qwen2ForCausalLM)


def plain_qwen(model, tokenizer, steps):
    shown = "".join(f"{step}<extra_0>" for step in steps)
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": shown}]
    ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0].softmax(-1)[:, 1]
    return [chances[at].item() for at, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<extra_0>")]


def plain_shepherd(model, tokenizer, steps):
    ids = tokenizer(f"{QUESTION} " + "\n".join(f"{step} ки" for step in steps))["input_ids"]
    plus, minus = tokenizer.convert_tokens_to_ids(["+", "-"])
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0][:, [plus, minus]].softmax(-1)[:, 0]
    return [chances[at].item() for at, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("ки")]


def plain_concat(model, tokenizer, steps):
    ids, at = [tokenizer.bos_token_id, *tokenizer(QUESTION, add_special_tokens=False)["input_ids"]], []
    for step in steps:
        ids += tokenizer(step + "\n", add_special_tokens=False)["input_ids"]
        at.append(len(ids) - 1)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].softmax(-1)[at, 1].tolist()


PLAIN = {"qwen": plain_qwen, "shepherd": plain_shepherd, "concat": plain_concat}


@pytest.mark.sample(2)
@pytest.mark.parametrize("style", PLAIN)
def test_scores_are_those_of_a_plain_forward(style, classifier, language_model):
    folder, model, tokenizer = language_model if style == "shepherd" else classifier
    before = torch.random.get_rng_state()
    made = get_verifier("prm", model=folder, style=style, steps="newline", batch_size=2)
    texts = ["\n".join(STEPS) + "<|im_end|>", "2+2=4", "\n\n".join(STEPS * 3), "", "<|im_end|>"]
    verdicts = made.verify_batch([QUESTION] * 5, [""] * 5, completion_text=texts)
    for verdict, steps in zip(verdicts, [STEPS, ["2+2=4"], STEPS * 3, [], []], strict=True):
        expected = PLAIN[style](model, tokenizer, steps) if steps else []
        assert [step.score for step in verdict.steps] == pytest.approx(expected, abs=1e-5)
        assert verdict.score == (pytest.approx(min(expected), abs=1e-5) if steps else None)
    assert len({round(step.score, 3) for step in verdicts[0].steps}) == 3
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("style", PLAIN)
def test_separators_in_a_completion_change_nothing(style, classifier, language_model):
    folder, model, tokenizer = language_model if style == "shepherd" else classifier
    made = get_verifier("prm", model=folder, style=style, steps="newline")
    text = "<extra_0>1+1=2ки\n<extra_0> <step></step>\n2+2=4<|im_start|>\nso 4<|im_end|>"
    verdict = made.verify("", f"{QUESTION}<extra_0>ки", completion_text=text)
    spans = [text[step.start : step.end] for step in verdict.steps]
    assert spans == ["<extra_0>1+1=2ки\n", "<extra_0> <step></step>\n", "2+2=4<|im_start|>\n", "so 4<|im_end|>"]
    expected = PLAIN[style](model, tokenizer, STEPS)
    assert [step.score for step in verdict.steps if step.score is not None] == pytest.approx(expected, abs=1e-5)
    assert [step.score is None for step in verdict.steps] == [False, True, False, False]


def test_the_question_is_the_last_message_and_steps_beyond_the_length_are_not_scored(classifier):
    made = get_verifier("prm", model=classifier[0], steps="newline")
    chat = [{"role": "system", "content": "x"}, {"role": "user", "content": QUESTION}]
    assert made.verify("so 4", chat) == made.verify("so 4", QUESTION)
    made = get_verifier("prm", model=classifier[0], style="concat", steps="newline", max_length=20)
    verdict = made.verify("\n".join(STEPS * 40), QUESTION)
    assert [step.score is None for step in verdict.steps] == [False] * 2 + [True] * 118
    assert "118 beyond max_length" in verdict.detail


@pytest.mark.slow
def test_in_a_worker_it_says_the_same_and_keeps_the_contract(classifier):
    here = get_verifier("prm", model=classifier[0], steps="newline")
    there = get_verifier("prm", model=classifier[0], steps="newline", timeout=120.0)
    assert (here.isolation, there.isolation) == ("inline", "process")
    texts = ["\n".join(STEPS), "2+2=4"]
    one, two = (made.verify_batch([QUESTION] * 2, texts) for made in (here, there))
    for a, b in zip(one, two, strict=True):
        assert [step.score for step in a.steps] == pytest.approx([step.score for step in b.steps], abs=1e-6)
    check_verifier(here, accept=[("1+1=2", {"prompt": QUESTION})])


def test_checkpoints_and_options_that_do_not_fit_are_refused(classifier, language_model):
    for model, options, said in [
        (language_model, {"steps": "newline"}, r"no weights for .*score"),
        (classifier, {"separator": "no token"}, "separator 'no token' is"), (classifier, {"positive": 2}, "2 classes"),
    ]:  # fmt: skip
        with pytest.raises(VerifierFailedError, match=said):
            get_verifier("prm", model=model[0], **options).verify("so 4", QUESTION)
    with pytest.raises(KeywordError, match="'model' is required"):
        get_verifier("prm")
    for options, said in [
        ({"model": "./nowhere"}, "not a folder"), ({"trust_remote_code": True}, "commit hash"), ({"style": "other"}, "shepherd"),
        ({"trust_remote_code": True, "revision": "main"}, "commit hash"), ({"style": "shepherd", "positive": 0}, "tokens"),
        ({"device": "gpu"}, "cuda:0"),
        ({"steps": "lines"}, "newline"), ({"batch_size": 0}, "batch_size"),
    ]:  # fmt: skip
        with pytest.raises(KeywordError, match=said):
            get_verifier("prm", **{"model": "a/b", **options})
    assert get_verifier("prm", model="a/b", trust_remote_code=True, revision="a" * 40).gives_steps


def test_only_safetensors_of_the_checkpoint_itself_are_loaded(classifier, tmp_path):
    folder, model, tokenizer = classifier
    tokenizer.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(VerifierFailedError, match="cannot be loaded"):
        get_verifier("prm", model=str(tmp_path)).verify("so 4", QUESTION)
    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "somebody/else--modeling.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VerifierFailedError, match="somebody/else"):
        get_verifier("prm", model=str(tmp_path), trust_remote_code=True).verify("so 4", QUESTION)


def test_a_tokenizer_that_makes_separators_of_other_text(classifier, monkeypatch):
    """Where the count does not come out, nothing is guessed: the completion gets 0."""
    from grpo_verifiers.steps import _prm_model

    monkeypatch.setattr(_prm_model.Reader, "clean", lambda self, text: text.strip())
    verdict = get_verifier("prm", model=classifier[0], steps="newline").verify("1+1=2<extra_0>\nso 4", QUESTION)
    found = [verdict.score, verdict.status, *(step.score for step in verdict.steps)]
    assert found == [0.0, Status.UNPARSABLE, 0.0, 0.0]
