"""Guessed tokens: what is drawn is what would have been drawn without, under every way of sampling."""

from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_plus.sampling.drafts import MOST, Cost, Drafts
from grpo_plus.sampling.sampler import Sampling
from grpo_plus.testing import make_tiny_model
from tests.device import DEVICE
from tests.qlora.runs import assert_same_distribution, nf4
from tests.qlora.test_qlora_rollout import LETTERS, TINY, decode
from tests.qlora.test_qlora_rollout import MODELS as LOADED

MODELS = {name: LOADED[name] for name in ("llama", "gpt2", "qwen3")}
PROMPTS = [prompt for prompt in ([5, 6, 7], [8, 9, 10, 11, 12, 5, 6], [7], [5, 6, 7, 9, 11]) for _ in range(4)]
WAYS = {
    "all": {}, "greedy": {"draw": False}, "cold": {"temperature": 0.4}, "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8}, "min_p": {"min_p": 0.2}, "penalty": {"repetition_penalty": 1.5},
    "everything": {"repetition_penalty": 1.3, "temperature": 1.2, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
}  # fmt: skip


class Always(Drafts):
    """Guesses whether it pays or not."""

    many = 3

    def tokens(self, rows, sampling):
        return self.many


class Bad(Always):
    """Guesses one token for ever."""

    def guess(self, text_RS, length_R, key_R):
        return torch.full((len(text_RS), MOST), 5, device=DEVICE)


class Oracle(Always):
    """Guesses what it was told that a row draws: ``plain``, from the prompt on."""

    def __init__(self, model, plain, many):
        super().__init__(model, DEVICE)
        self.plain, self.many = [torch.tensor(row, device=DEVICE) for row in plain], many

    def keys(self, prompts):
        return torch.arange(len(prompts), device=DEVICE)

    def guess(self, text_RS, length_R, key_R):
        guesses = torch.full((len(text_RS), MOST), -1, device=DEVICE)
        for place, (row, length) in enumerate(zip(key_R.tolist(), length_R.tolist(), strict=True)):
            ahead = self.plain[row][length : length + MOST]
            guesses[place, : len(ahead)] = ahead
        return guesses


def numbers(rows, most, seed=0):
    table = torch.rand(rows, most, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    return lambda row, place: table[row, place]


def chosen(way, most=30, stops=(6,)):
    return Sampling(stops=stops, most=most, pad=0, **WAYS[way])


@pytest.mark.sample(3, 8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [None, 5])
def test_with_numbers_of_their_own_rows_draw_the_same_tokens_whatever_is_guessed(name, way, rows):
    model, sampling = MODELS[name], chosen(way)
    settings = {"uniform": numbers(len(PROMPTS), 30), "most_rows": rows}
    plain = decode(model, PROMPTS, sampling, **settings)
    learner = Always(model, DEVICE)
    first, second = (decode(model, PROMPTS, sampling, **settings, drafts=learner) for _ in range(2))
    bad = decode(model, PROMPTS, sampling, **settings, drafts=Bad(model, DEVICE))
    assert plain.completions == first.completions == second.completions == bad.completions
    assert second.tokens_per_pass > 1.7
    assert bad.tokens_per_pass < 1.3
    assert plain.useful == plain.tokens_per_pass == 1 > bad.useful


@pytest.mark.parametrize("many", [1, 3, MOST])
@pytest.mark.parametrize("most", [2, 11, 30])
def test_a_row_ends_inside_of_a_guess_at_its_stop_or_its_last_token(many, most):
    model, sampling = MODELS["llama"], chosen("all", most)
    drawing = {"uniform": numbers(len(PROMPTS), most)}
    plain = decode(model, PROMPTS, sampling, **drawing)
    # It guesses past the end.
    longer = [[*prompt, *row, *[5] * MOST] for prompt, row in zip(PROMPTS, plain.completions, strict=True)]
    told, drafts = [], Oracle(model, longer, many)
    done = decode(model, PROMPTS, sampling, **drawing, drafts=drafts, finished=lambda *ended: told.append(ended))
    assert done.completions == plain.completions
    assert sorted(told) == list(enumerate(plain.completions))
    assert done.right == sum(len(row) - 1 - -(-(len(row) - 1) // (many + 1)) for row in plain.completions)


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "greedy"])
@pytest.mark.parametrize("kind", [Always, Bad])
def test_with_torchs_generator_the_distribution_is_that_of_plain_drawing(way, kind):
    count, sampling = 3000, chosen(way, most=4)
    every = [prompt for prompt in ([5, 6, 5], [6]) for _ in range(count)]
    learner = kind(TINY, DEVICE)
    decode(TINY, every[:: count // 20], sampling, drafts=learner)
    tables = []
    for drafts in (None, learner):
        torch.manual_seed(7 + (drafts is None))
        rows = decode(TINY, every, sampling, most_rows=2500, drafts=drafts).completions
        tables.append(Counter((place // count, *row) for place, row in enumerate(rows)))
    assert_same_distribution(*tables)


def test_a_seed_draws_the_same_with_any_history_and_takes_one_number_of_the_generator():
    model, sampling, drawn = MODELS["qwen3"], chosen("all"), []
    learner = Always(model, DEVICE)
    for drafts in (None, learner, learner):
        torch.manual_seed(3)
        drawn.append((decode(model, PROMPTS, sampling, drafts=drafts).completions, torch.rand(2).tolist()))
    assert drawn[0] == drawn[1] == drawn[2]


def test_scores_are_noted_once_for_every_token_that_stays():
    noted = []

    class Notes:
        def note(self, rows, places, scores_RV):
            assert len(rows) == len(places) == len(scores_RV)
            noted.extend(zip(rows.tolist(), places.tolist(), scores_RV.isfinite().sum(1).tolist(), strict=True))

    learner, sampling = Always(MODELS["llama"], DEVICE), chosen("top_k")
    how = {"uniform": numbers(len(PROMPTS), 30), "support": Notes(), "drafts": learner, "most_rows": 7}
    for _ in range(2):
        noted.clear()
        cost = decode(MODELS["llama"], PROMPTS, sampling, **how)
    wanted = [(row, place, 3) for row, ids in enumerate(cost.completions) for place in range(len(ids))]
    assert sorted(noted) == wanted
    assert cost.right > 50


@pytest.mark.sample(1)
@pytest.mark.parametrize("at", range(2, 6))
def test_memory_that_runs_out_amid_guesses_loses_and_changes_nothing(at):
    model, sampling = MODELS["llama"], chosen("penalty")
    drawing = {"uniform": numbers(len(PROMPTS), 30)}
    learner = Always(model, DEVICE)
    plain = decode(model, PROMPTS, sampling, **drawing)
    decode(model, PROMPTS, sampling, **drawing, drafts=learner)
    passes = [0]

    def fail(*_):
        passes[0] += 1
        if passes[0] in (at, at + 3):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    handle = model.model.layers[1].mlp.register_forward_hook(fail)
    try:
        cost = decode(model, PROMPTS, sampling, **drawing, drafts=learner)
    finally:
        handle.remove()
    assert cost.completions == plain.completions
    assert cost.failures > 0
    assert cost.right > 0


def test_in_bfloat16_rounding_alone_moves_a_token():
    model = make_tiny_model(architecture="llama", vocab=LETTERS, layers=2)[0].to(DEVICE, torch.bfloat16)
    sampling = chosen("all", stops=())
    prompts = PROMPTS * 4
    drawing = {"uniform": numbers(len(prompts), 30)}
    plain = decode(model, prompts, sampling, **drawing).completions
    learner = Always(model, DEVICE)
    for _ in range(2):
        cost = decode(model, prompts, sampling, **drawing, drafts=learner)
    same = [drawn == row for drawn, row in zip(cost.completions, plain, strict=True)]
    assert sum(same) > 0.6 * len(same)
    assert cost.right > 100


def test_a_state_makes_the_same_guesses_and_one_of_another_vocabulary_none():
    model, sampling = MODELS["llama"], chosen("all")
    first, again = Always(model, DEVICE), Always(model, DEVICE)
    decode(model, PROMPTS, sampling, uniform=numbers(len(PROMPTS), 30, seed=1), drafts=first)
    counts, tensors = first.state()
    again.load(counts, {name: tensor.clone() for name, tensor in tensors.items()})
    for seed in (1, 2):
        drawing = {"uniform": numbers(len(PROMPTS), 30, seed=seed)}
        costs = [decode(model, PROMPTS, sampling, **drawing, drafts=drafts) for drafts in (first, again)]
        assert costs[0] == costs[1]
        assert first.counts == again.counts
    assert costs[0].right > 10
    other = Always(TINY, DEVICE)
    other.load(counts, tensors)
    assert other.counts["rows"] == 0
    decode(TINY, [[5]] * 4, Sampling(stops=(), most=9, pad=0), drafts=other)


@pytest.mark.slow
def test_guesses_that_are_wrong_end_by_themselves_and_begin_again_when_they_would_be_right():
    model, sampling = MODELS["llama"], chosen("all", most=200, stops=())

    class Turning(Drafts):
        good = False

        def guess(self, text_RS, length_R, key_R):
            if self.good:
                return super().guess(text_RS, length_R, key_R)
            return torch.full((len(text_RS), MOST), 5, device=DEVICE)

    drafts = Turning(model, DEVICE)
    drafts.counts = {"rows": 100, "guessed": 100, "tried": 100, "right": 90}
    drawing = {"uniform": numbers(2, 200)}
    bad = decode(model, [[5], [7]], sampling, **drawing, drafts=drafts)
    assert bad.tried > 50
    assert decode(model, [[5], [7]], sampling, **drawing, drafts=drafts).tried == 0
    drafts.good = True
    for _ in range(60):
        good = decode(model, [[5], [7]], sampling, **drawing, drafts=drafts)
        if good.tokens_per_pass > 1.5:
            break
    assert good.tokens_per_pass > 1.5
    assert good.completions == bad.completions


def test_what_a_pass_costs_says_how_many_tokens_pay():
    cpu, gpu = (Cost(20_000_000, 6, 8000, torch.device(kind)) for kind in ("cpu", "cuda"))
    plain = Sampling(stops=(), most=1, pad=0)
    assert cpu.best(1, 1.0, 0.9, plain) >= 3
    assert cpu.best(512, 1.0, 0.5, plain) == 0
    assert gpu.best(128, 1.0, 0.7, plain) >= 2
    for kind in (cpu, gpu):
        assert kind.best(1, 1.0, 0.02, plain) == kind.best(1, 0.02, 0.9, plain) == kind.best(1, 0.0, 0.0, plain) == 0


@pytest.mark.slow
def test_a_model_in_4_bits_draws_the_same_tokens_with_guesses(repeating_model):
    model = AutoModelForCausalLM.from_pretrained(repeating_model, quantization_config=nf4()).eval()
    start = AutoTokenizer.from_pretrained(repeating_model)("1234", add_special_tokens=False)["input_ids"]
    prompts = [start, start[:2]] * 4
    for way in ("all", "greedy", "everything"):
        drawing = {"uniform": numbers(len(prompts), 60)}
        sampling = chosen(way, most=60, stops=())
        plain = decode(model, prompts, sampling, **drawing)
        learner = Drafts(model, DEVICE)
        first, second = (decode(model, prompts, sampling, **drawing, drafts=learner) for _ in range(2))
        forced = decode(model, prompts, sampling, **drawing, drafts=Bad(model, DEVICE))
        assert plain.completions == first.completions == second.completions == forced.completions
        if way != "everything":  # a penalty for repetition leaves little to guess
            assert second.tokens_per_pass > 1.3
