"""Leaner rollouts against `generate`: equal token for token when greedy, equal in distribution when drawn."""

import contextlib
import functools
import logging
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModelForCausalLM, PromptTuningConfig, get_peft_model
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutput

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.settings import RolloutOptions
from grpo_plus.sampling import decode as decoding
from grpo_plus.sampling.rollout import Rollout, refusal, rows_that_fit
from grpo_plus.sampling.sampler import Sampling, pick, read_sampling
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.rollout.lean import LeanRollouts
from tests.device import DEVICE
from tests.qlora.runs import assert_same_distribution, lora

decode = functools.partial(decoding.decode, device=DEVICE)
LETTERS = "abcdefgh"
NAMES = ("llama", "gpt2", "qwen3", "olmo2")
MODELS = {name: make_tiny_model(architecture=name, vocab=LETTERS, layers=2)[0].to(DEVICE) for name in NAMES}
TINY = make_tiny_model(architecture="llama", vocab="ab", layers=1, hidden=16)[0].to(DEVICE)
IDS = range(5, 5 + len(LETTERS))


def config(most, stops, **changes):
    values = {"max_new_tokens": most, "do_sample": False, "pad_token_id": 0, "eos_token_id": list(stops), "top_k": 0}
    return GenerationConfig(**{**values, **changes}, disable_compile=True)


def padded(prompts):
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=DEVICE)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=DEVICE)
    return {"input_ids": ids, "attention_mask": mask}


def completions(output, width, stops):
    rows = []
    for row in output[:, width:].tolist():
        end = next((place for place, token in enumerate(row) if token in stops), len(row) - 1)
        rows.append(row[: end + 1])
    return rows


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    prompts=st.lists(st.lists(st.sampled_from(IDS), min_size=1, max_size=6), min_size=1, max_size=4),
    copies=st.integers(1, 3),
    rows=st.none() | st.integers(1, 5),
    how=st.tuples(st.integers(1, 9), st.sets(st.sampled_from(IDS), max_size=3), st.sampled_from([1.0, 1.7])),
)
def test_greedy_rollouts_are_those_of_generate(name, prompts, copies, rows, how):
    model, every = MODELS[name], [prompt for prompt in prompts for _ in range(copies)]
    most, stops, penalty = how
    wanted = config(most, sorted(stops), repetition_penalty=penalty)
    inputs = padded(every)
    seen = []
    stock = model.generate(**inputs, generation_config=wanted)
    with Rollout(rows, seen.append).applied(model):
        ours = model.generate(**inputs, generation_config=wanted)
    width = inputs["input_ids"].shape[1]
    assert completions(ours, width, stops) == completions(stock, width, stops)
    (cost,) = seen
    # A row that has not ended when another does waits for nobody: its own tokens but the last are all it runs.
    assert cost.row_steps == sum(len(row) - 1 for row in cost.completions)
    if rows is None:
        assert cost.prefills == len({tuple(prompt) for prompt in every})
    assert "generate" not in vars(model)


DRAWING = [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}]


@pytest.mark.sample(1, 2)
@pytest.mark.parametrize("changes", [*DRAWING, {"repetition_penalty": 1.5, "temperature": 1.3, "top_p": 0.95}])
def test_drawn_rollouts_have_the_distribution_of_generate(changes):
    count = 3000
    inputs = padded([prompt for prompt in ([5, 6, 5], [6]) for _ in range(count)])
    tables = []
    for lean in (False, True):
        torch.manual_seed(11 + lean)
        with Rollout(2500, lambda _: None).applied(TINY) if lean else contextlib.nullcontext():
            output = TINY.generate(**inputs, generation_config=config(3, [6], do_sample=True, **changes))
        tables.append(Counter((place // count, *row) for place, row in enumerate(completions(output, 3, {6}))))
    assert_same_distribution(*tables)


class Countdown(torch.nn.Module):
    """A model that counts down to zero from its prompt, so that every row's length is known."""

    def __init__(self, most):
        super().__init__()
        self.config = TINY.config
        self.most = most
        self.passes = []

    def drawn(self, lengths, most=None, **options):
        sampling = Sampling(stops=(0,), most=most or self.most, pad=0, draw=False)
        return decode(self, [[length] for length in lengths], sampling, **options)

    def forward(self, input_ids, past_key_values, **_):
        rows, width = input_ids.shape
        past_key_values.update(*torch.zeros(2, rows, 1, width, 1, device=input_ids.device), 0)
        self.passes.append(rows)
        logits = torch.nn.functional.one_hot((input_ids[:, -1:] - 1).clamp(min=0), self.most + 1).float()
        return CausalLMOutput(logits=logits)


@pytest.mark.parametrize("rows", [None, 16])
def test_row_steps_are_nearly_halved_on_lengths_as_they_come(rows):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.exp(torch.randn(64, generator=generator) * 0.7 + 4.5).long().clamp(1, 512).tolist()
    model = Countdown(max(lengths))
    cost = model.drawn(lengths, most_rows=rows)
    assert cost.completions == [list(range(length - 1, -1, -1)) for length in lengths]
    assert cost.row_steps == sum(length - 1 for length in lengths) == sum(model.passes) - cost.prefills
    assert cost.saved == 1 - cost.row_steps / (64 * (max(lengths) - 1))
    assert cost.saved > 0.44
    assert max(model.passes) <= (rows or 64)


@pytest.mark.parametrize("lengths", [[1, 1], [3, 9, 1, 5]])
def test_rows_that_end_together_save_nothing(lengths):
    cost = Countdown(9).drawn(lengths)
    assert cost.saved == (0.0 if lengths == [1, 1] else 1 - 14 / 32)


def test_scores_are_noted_once_for_every_token_that_was_drawn():
    noted, stops = {}, (6,)

    class Notes:
        def note(self, rows, places, scores_RV):
            for row, place, scores in zip(rows.tolist(), places.tolist(), scores_RV, strict=True):
                assert (row, place) not in noted
                noted[row, place] = scores

    sampling = Sampling(stops=stops, most=7, pad=0, top_k=2)
    cost = decode(MODELS["llama"], [[5, 6], [7], [7]] * 4, sampling, most_rows=5, support=Notes())
    assert set(noted) == {(row, place) for row, ids in enumerate(cost.completions) for place in range(len(ids))}
    for (row, place), scores in noted.items():
        assert scores.isfinite().sum() == 2
        assert scores[cost.completions[row][place]].isfinite()


@pytest.mark.parametrize("vocabulary", [40, 512, 513, 5000])
def test_numbers_pick_the_token_in_whose_part_of_the_probabilities_they_fall(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(6, vocabulary, generator=generator).to(DEVICE) * 2
    scores[1, ::2] = float("-inf")
    scores[2, :-1] = float("-inf")
    scores[3, 1:] = float("-inf")
    numbers = torch.rand(400, 6, dtype=torch.float64, generator=generator).to(DEVICE)
    numbers[0], numbers[1] = 0.0, 1 - 2**-53
    ends = scores.double().softmax(dim=1).cumsum(dim=1)
    for some in numbers:
        drawn = pick(scores, some)
        assert scores.gather(1, drawn[:, None]).isfinite().all()
        for row, token in enumerate(drawn.tolist()):
            assert ends[row, token] * (1 + 1e-6) + 1e-6 >= some[row] * ends[row, -1]
            assert token == 0 or ends[row, token - 1] * (1 - 1e-6) - 1e-6 <= some[row] * ends[row, -1]


@pytest.mark.parametrize("draw", [True, False])
def test_logits_that_are_no_numbers_are_an_error(draw):
    model = make_tiny_model(architecture="llama", vocab=LETTERS)[0].to(DEVICE)
    model.lm_head.weight.data[3].fill_(float("nan"))
    with pytest.raises(ValueError, match="logits are NaN"):
        decode(model, [[5], [6]], Sampling(stops=(), most=2, pad=0, draw=draw))


@pytest.mark.slow
class TestOutOfMemory:
    @pytest.mark.parametrize("limit", [1, 3, 7])
    def test_no_row_is_lost_or_drawn_twice(self, limit):
        lengths = [9, 4, 30, 17, 17, 2, 25, 11]

        class Narrow(Countdown):
            def forward(self, input_ids, past_key_values, **keywords):
                if input_ids.shape[0] > limit:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                return super().forward(input_ids, past_key_values, **keywords)

        cost = Narrow(30).drawn(lengths, 40)
        assert cost.completions == [list(range(length - 1, -1, -1)) for length in lengths]
        assert cost.places <= limit

    @settings(max_examples=15, deadline=None)
    @given(at=st.integers(0, 11), layer=st.integers(0, 1), copies=st.integers(1, 2))
    def test_rows_go_on_where_they_were(self, at, layer, copies):
        """The failure comes in the middle of a pass, when some layers have grown their cache and others have not."""
        model = MODELS["llama"]
        wanted, inputs = config(9, [6]), padded([[5, 7], [8, 9, 5], [11, 12, 12]] * copies)
        stock = model.generate(**inputs, generation_config=wanted)
        passes, costs = [0], []

        def fail(*_):
            passes[0] += 1
            if passes[0] == at + 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        handle = model.model.layers[layer].mlp.register_forward_hook(fail)
        try:
            with Rollout(None, costs.append).applied(model):
                ours = model.generate(**inputs, generation_config=wanted)
        finally:
            handle.remove()
        assert completions(ours, 3, {6}) == completions(stock, 3, {6})

    def test_fewer_rows_are_drawn_from_then_on(self, caplog):
        model, costs = MODELS["llama"], []
        wanted, inputs = config(4, []), padded([[5, 7]] * 8)

        def fail(module, arguments, output):
            if output.shape[0] > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        handle = model.model.layers[0].mlp.register_forward_hook(fail)
        rollout = Rollout(None, costs.append)
        try:
            with rollout.applied(model):
                for _ in range(2):
                    model.generate(**inputs, generation_config=wanted)
        finally:
            handle.remove()
        assert caplog.text.count("set rollout: {rows: 4}") == 1
        assert [cost.places for cost in costs] == [4, 4]

    def test_a_single_row_that_does_not_fit_is_an_error(self):
        def fail(*_):
            raise torch.OutOfMemoryError("CUDA out of memory.")

        model = make_tiny_model(architecture="llama", vocab=LETTERS)[0].to(DEVICE)
        model.model.layers[0].register_forward_hook(fail)
        with pytest.raises(torch.OutOfMemoryError):
            decode(model, [[5], [6]], Sampling(stops=(), most=2, pad=0))


class TestFallback:
    def said(self, model, caplog, **keywords):
        wanted = config(2, [5])
        with caplog.at_level(logging.WARNING), Rollout(None, pytest.fail).applied(model):
            inputs = padded([[5, 6]])
            model.generate(**{**inputs, "generation_config": wanted, **keywords})
        return caplog.text

    @pytest.mark.parametrize(
        "changes",
        [{"num_beams": 2}, {"typical_p": 0.5}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 2}, {"suppress_tokens": [6]},
         {"bad_words_ids": [[6]]}, {"prompt_lookup_num_tokens": 2}],
    )  # fmt: skip
    def test_settings_that_are_not_known(self, changes, caplog):
        name = next(iter(changes))
        said = self.said(MODELS["llama"], caplog, generation_config=config(2, [5], **changes))
        assert f"the generation setting {name} is" in said

    def test_defaults_of_the_model_count_where_the_config_is_silent(self):
        defaults = GenerationConfig(no_repeat_ngram_size=3, min_p=0.3)
        assert read_sampling(config(2, [5]), defaults) == "the generation setting no_repeat_ngram_size is 3"
        found = read_sampling(config(2, [5], do_sample=True), GenerationConfig(min_p=0.3, temperature=0.5))
        assert (found.min_p, found.temperature) == (0.3, 0.5)
        assert read_sampling(config(2, [5], min_p=0.1), GenerationConfig(min_p=0.3)).min_p == 0.1

    def test_further_inputs(self, caplog):
        text = self.said(MODELS["llama"], caplog, output_scores=True, return_dict_in_generate=True)
        assert "generate was called with" in text

    def test_a_generate_that_was_replaced_or_overridden(self, caplog):
        model, _ = make_tiny_model(architecture="llama")
        called = []
        model.generate = lambda **_: called.append(1)
        self.said(model, caplog)
        assert called == [1]
        assert "generate was replaced" in caplog.text

        class Own(type(MODELS["llama"])):
            def prepare_inputs_for_generation(self, *arguments, **keywords):
                return super().prepare_inputs_for_generation(*arguments, **keywords)

        assert refusal(Own(MODELS["llama"].config)) == "Own has a prepare_inputs_for_generation of its own"

    @pytest.mark.parametrize("method", ["generate", "_sample", "_get_logits_processor", "_get_stopping_criteria"])
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_patch_of_the_library_is_seen(self, method, wrapped, monkeypatch):
        model, own = MODELS["llama"], getattr(GenerationMixin, method)

        def patch(self, *arguments, **keywords):
            return own(self, *arguments, **keywords)

        assert refusal(model) is None
        monkeypatch.setattr(GenerationMixin, method, functools.wraps(own)(patch) if wrapped else patch)
        assert refusal(model) == f"LlamaForCausalLM has a {method} of its own"

    def test_a_patch_of_the_adapters_is_seen(self, monkeypatch):
        adapted = get_peft_model(make_tiny_model(architecture="llama")[0], lora())
        monkeypatch.setattr(PeftModelForCausalLM, "generate", lambda *_, **__: None)
        assert refusal(adapted) == "PeftModelForCausalLM has a generate of its own"

    @pytest.mark.parametrize("asked", [True, False])
    def test_sharded_parameters_are_said_to_be_drawn_from_elsewhere(self, caplog, asked):
        plugin = SimpleNamespace(zero_stage=3)
        there = SimpleNamespace(is_main_process=True, state=SimpleNamespace(deepspeed_plugin=plugin))
        facts = {"is_fsdp_enabled": False, "is_deepspeed_enabled": True, "rollout_func": None, "tools": []}
        args = SimpleNamespace(ds3_gather_for_generation=False, use_vllm=False)
        drawn = LeanRollouts(Recipe(rollout=RolloutOptions("auto"), rollout_is_set=asked), retry=None)
        drawn.after_loading(SimpleNamespace(accelerator=there, args=args, **facts))
        assert drawn.most_rows is None
        assert ("rollout is 'auto', but the parameters are sharded" in caplog.text) is asked

    @pytest.mark.parametrize("architecture", ["gemma2", "mistral"])
    def test_windows_and_models_on_several_devices(self, architecture):
        model, _ = make_tiny_model(architecture=architecture, sliding_window=4)
        assert "does not keep keys and values of all tokens (sliding-window" in refusal(model)
        model.hf_device_map = {"model": 0, "lm_head": 1}
        assert "several devices" in refusal(model)

    def test_adapters_are_fine_and_prompts_that_are_learned_are_not(self):
        adapted = get_peft_model(make_tiny_model(architecture="llama", vocab=LETTERS)[0].to(DEVICE), lora())
        assert refusal(adapted) is None
        wanted, inputs = config(5, [6]), padded([[5, 6, 7], [8]])
        stock = adapted.generate(**inputs, generation_config=wanted)
        with Rollout(None, lambda _: None).applied(adapted):
            assert torch.equal(adapted.generate(**inputs, generation_config=wanted), stock)
        learned = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        assert "changes the prompt" in refusal(get_peft_model(make_tiny_model(architecture="llama")[0], learned))

    def test_generate_comes_back_after_an_error(self):
        model = MODELS["llama"]
        with pytest.raises(ValueError, match="top_k"), Rollout(None, lambda _: None).applied(model):
            model.generate(**padded([[5]]), generation_config=config(2, [5], do_sample=True, top_k=-1))
        assert "generate" not in vars(model)


def test_weights_are_cast_once_a_drawing_and_not_once_a_token():
    model, _ = make_tiny_model(architecture="qwen3", vocab=LETTERS, layers=2)
    model = model.to(DEVICE)
    forward, casts = model.forward, []

    def cast(*arguments, **keywords):  # as accelerate has it for a model in mixed precision
        with torch.autocast(DEVICE, torch.bfloat16):
            return forward(*arguments, **keywords)

    class Casts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function is torch.ops.aten._to_copy.default and arguments[0].data_ptr() in weights:
                casts.append(arguments[0].data_ptr())
            return function(*arguments, **(keywords or {}))

    weights = {parameter.data_ptr() for parameter in model.parameters()}
    model.forward = cast
    with Casts(), Rollout(None, lambda _: None).applied(model):
        output = model.generate(**padded([[5, 6], [7]]), generation_config=config(6, [], min_new_tokens=None))
    assert output.shape[1] == 8
    assert len(casts) == len(set(casts)) > 10


def test_rows_that_memory_allows():
    model = MODELS["llama"]  # 2 layers, 2 heads of 8, float32: 256 bytes a token
    assert (rows_that_fit(model, 100, 256 * 100 * 3.9), rows_that_fit(model, 100, 10)) == (3, 1)
