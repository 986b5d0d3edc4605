"""`evaluate` on a real tiny model: what is drawn, what is judged, and that both can be repeated."""

import json
import time
from collections import Counter

import pytest
import torch

from grpo_plus.evaluation.results import gain
from grpo_plus.evaluation.run import evaluate, judged_samples
from grpo_plus.evaluation.sample import Sampler, SampleSettings, seed_of
from grpo_plus.evaluation.store import SampleStore, StoreError
from grpo_plus.testing import make_tiny_model
from grpo_verifiers import get_verifier, verifier
from grpo_verifiers.verifying import REGISTRY

SHORT = SampleSettings(max_completion_length=6)
ROWS = [{"prompt": f"{'7' * n}+1=", "answer": str(n), "kind": "exact" if n % 2 else "math"} for n in range(1, 6)]


@pytest.fixture(scope="module")
def model():
    return make_tiny_model(vocab="0123456789+=", layers=1)


@pytest.fixture(scope="module")
def digits():
    """1 for a digit in front, 0.5 for one later, nothing for an empty completion; rows beginning 77777 are not judged."""

    @verifier("evaluate_test_digits", isolation="inline")
    def digits(completion: str, answer: str, *, missing: str = "5"):
        score = float(completion[:1].isdigit()) or 0.5 * any(c.isdigit() for c in completion)
        return None if answer == missing else score

    yield digits
    REGISTRY.unregister("evaluate_test_digits")


def texts(evaluation):
    return {(sample.row, sample.sample): sample.completion for sample in evaluation.samples}


def test_a_sample_depends_on_its_own_seed_only_and_model_and_random_state_are_left_alone(model, digits):
    network, tokenizer = model
    whole = evaluate(network, tokenizer, ROWS, digits, n=4, drawing=SHORT)
    small = evaluate(network, tokenizer, ROWS, digits, n=4, drawing=SHORT, batch=3)
    part = evaluate(network, tokenizer, ROWS[:2], digits, n=2, drawing=SHORT)
    other = evaluate(network, tokenizer, ROWS, digits, n=4, drawing=SHORT, seed=1)
    assert texts(whole) == texts(small)
    assert all(texts(whole)[pair] == text for pair, text in texts(part).items())
    assert len(set(texts(whole).values())) > 10
    assert sum(texts(whole)[pair] != text for pair, text in texts(other).items()) > 10
    network.train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    evaluate(network, tokenizer, ROWS[:1], digits, drawing=SHORT)
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training
    network.eval()


def test_draws_have_the_models_distribution_and_greedy_is_generate(model):
    network, tokenizer = model
    sampler = Sampler(network, tokenizer, SampleSettings(max_completion_length=1, temperature=0.7))
    ids = sampler.tokenize("12+3=")
    count = 4000
    drawn = Counter(row[0] for row in sampler.complete([ids] * count, [seed_of(0, 0, s) for s in range(count)]))
    with torch.no_grad():
        wanted = (network(torch.tensor([ids])).logits[0, -1] / 0.7).softmax(-1)
    for token, chance in enumerate(wanted.tolist()):
        assert abs(drawn[token] / count - chance) < 4.5 * (chance * (1 - chance) / count) ** 0.5 + 1e-3
    sampler = Sampler(network, tokenizer, SampleSettings(max_completion_length=5, temperature=0))
    ids = sampler.tokenize("4+4=")
    ours = sampler.complete([ids], [0])[0]
    theirs = network.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=5)[0, len(ids) :].tolist()
    assert ours == theirs


@pytest.mark.slow
def test_checks_of_a_batch_run_while_the_next_is_drawn_and_each_is_made_once(model):
    network, tokenizer = model
    events = []

    @verifier("evaluate_test_events", isolation="inline")
    async def events_of(completion: str) -> float:
        events.append(completion)
        return float(len(completion))

    try:
        rows = [{"prompt": text} for text in ("1234", "78", "7812345", "+")]
        sampler = Sampler(network, tokenizer, SampleSettings(max_completion_length=60, temperature=1.4))
        begun, complete = [], sampler.complete

        def watched(prompts, seeds):
            drawn = complete(prompts, seeds)
            time.sleep(0.1)
            begun.append(len(events))
            return drawn

        sampler.complete = watched
        pairs = [(row, sample) for row in range(4) for sample in range(4)]
        parts = judged_samples(sampler, rows, [get_verifier("evaluate_test_events")], pairs=pairs, seed=0, batch=8)
        judged = [sample for part in parts for sample in part]
    finally:
        REGISTRY.unregister("evaluate_test_events")
    assert begun == [0, 8]
    assert sorted(events) == sorted(sample.completion for sample in judged)
    scores = [sample.verdicts["evaluate_test_events"]["score"] for sample in judged]
    assert scores == [float(len(sample.completion)) for sample in judged]


def test_a_model_that_generates_by_itself_is_evaluated_too_and_says_so(digits):
    network, tokenizer = make_tiny_model(architecture="gemma2", vocab="0123456789+=", layers=2)
    found = [evaluate(network, tokenizer, ROWS[:2], digits, n=2, drawing=SHORT) for _ in range(2)]
    assert texts(found[0]) == texts(found[1])
    assert "uses its own generate" in found[0].notes[0]


def test_estimates_follow_from_the_samples(model, digits):
    network, tokenizer = model
    found = evaluate(network, tokenizer, ROWS, digits, n=4, ks=(1, 2, 4), drawing=SHORT)
    results = found.results["evaluate_test_digits"]
    by_row = {}
    for sample in found.samples:
        text, verdict = sample.completion, sample.verdicts["evaluate_test_digits"]
        if sample.row == 4:  # cannot be judged: counted, and left out of every estimate
            assert (verdict["score"], verdict["status"]) == (None, "not_applicable")
            continue
        expected = 1.0 if text[:1].isdigit() else 0.5 if any(c.isdigit() for c in text) else 0.0
        assert verdict["score"] == expected
        assert sample.tokens <= 6
        assert sample.cut_off == (sample.tokens == 6 and len(text) == 6) or sample.tokens < 6 or len(text) < 6
        by_row.setdefault(sample.row, []).append(expected)
    assert sorted(by_row) == [0, 1, 2, 3]
    right = {row: sum(score == 1 for score in scores) for row, scores in by_row.items()}
    assert results.accuracy.value == pytest.approx(sum(right.values()) / 16)
    assert results.score.value == pytest.approx(sum(map(sum, by_row.values())) / 16)
    assert results.passes[4].value == pytest.approx(sum(count > 0 for count in right.values()) / 4)
    assert results.passes[1].value <= results.passes[2].value <= results.passes[4].value
    assert not results.majorities
    assert results.statuses["not_applicable"] == 4
    assert gain(results, results).value == 0.0


def test_conversations_go_through_the_chat_template_and_each_row_to_its_own_verifier(model, digits):
    network, tokenizer = model
    seen = []

    class Watching(Sampler):
        def complete(self, prompts, seeds):
            seen.extend(prompts)
            return super().complete(prompts, seeds)

    rows = [{"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}]
    judged = list(judged_samples(Watching(network, tokenizer, SHORT), rows, [digits], pairs=[(0, 0)], seed=0, batch=4))
    expected = tokenizer.apply_chat_template(rows[0]["prompt"], add_generation_prompt=True, tokenize=True)
    assert seen == [list(expected["input_ids"])]
    assert judged[0][0].prompt == rows[0]["prompt"]
    judges = [get_verifier("exact"), get_verifier("math")]
    found = evaluate(network, tokenizer, ROWS, judges, n=2, drawing=SHORT, verifier_column="kind")
    for sample in found.samples:
        for label in ("exact", "math"):
            applies = ROWS[sample.row]["kind"] == label
            assert (sample.verdicts[label]["status"] != "not_applicable") == applies


@pytest.mark.parametrize(("keywords", "expected"), [
    ({"n": 2, "ks": (4,)}, r"k is 4, but it must be a whole number from 1 to n \(2\)"),
    ({"n": 0}, "n is 0"), ({"batch": 0}, "batch is 0"), ({"rows": []}, "no rows"),
    ({"rows": [{"question": "1", "answer": "1"}]}, "the dataset has no column 'prompt'. There is: question, answer"),
    ({"rows": [{"prompt": "", "answer": "1"}]}, "row 0: the prompt is empty"),
    ({"rows": [{"prompt": "1"}]}, "no column 'answer'"),
])  # fmt: skip
def test_wrong_input_is_named(model, digits, keywords, expected):
    network, tokenizer = model
    rows = keywords.pop("rows", ROWS)
    with pytest.raises(ValueError, match=expected):
        evaluate(network, tokenizer, rows, digits, drawing=SHORT, **keywords)
    for wrong in ({"temperature": -1}, {"top_p": 0}, {"top_k": -1}, {"max_completion_length": 0}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} is {wrong[name]}"):
            SampleSettings(**wrong)


def test_an_evaluation_goes_on_where_it_was_cut_off(model, digits, tmp_path):
    network, tokenizer = model
    path, settings = tmp_path / "out" / "samples.jsonl", {"model": "m", "n": 3}
    whole = evaluate(network, tokenizer, ROWS, digits, n=3, drawing=SHORT)
    store = SampleStore(path, settings)
    store.add(whole.samples[:4])
    store.close()
    with path.open("a") as file:
        file.write('{"row": 1, "sample": 1, "prom')  # the process died here
    again = SampleStore(path, settings)
    assert [(sample.row, sample.sample) for sample in again.done] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    drawn = []

    def report(samples):
        drawn.extend(samples)
        again.add(samples)

    found = evaluate(network, tokenizer, ROWS, digits, n=3, drawing=SHORT, done=again.done, report=report)
    again.finish(found)
    assert len(drawn) == 11
    assert texts(found) == texts(whole)
    assert found.results == whole.results
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["row"], line["sample"]) for line in lines) == sorted(texts(whole))
    written = json.loads(path.with_suffix(".json").read_text())
    label = written["results"]["verifiers"]["evaluate_test_digits"]
    assert label["pass_at"]["1"]["value"] == whole.results["evaluate_test_digits"].accuracy.value


def test_a_file_of_something_else_is_never_written_over(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("mine\n")
    with pytest.raises(StoreError, match="does not name its evaluation"):
        SampleStore(path, {"n": 1})
    assert path.read_text() == "mine\n"
    SampleStore(path, {"n": 1}, overwrite=True).close()
    with pytest.raises(StoreError, match="n was 1, now 2"):
        SampleStore(path, {"n": 2})
    path.write_text('{"row": "x"}\n')
    with pytest.raises(StoreError, match="line 1"):
        SampleStore(path, {"n": 1})
    with pytest.raises(StoreError, match=r"must end in \.jsonl"):
        SampleStore(tmp_path / "samples.csv", {})
