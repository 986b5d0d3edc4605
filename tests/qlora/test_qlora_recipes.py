"""The shipped recipes: each is understood by the command line, and fits its card by the planner."""

from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen3Config

from grpo_plus.cli._arguments import parse
from grpo_plus.memory.estimate import GIB, Settings, estimate
from grpo_plus.memory.shape import shape_of

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {"Qwen/Qwen2.5-3B-Instruct": (Qwen2Config, 36, 2048, 11008, 16, 2, True)}
MODELS["Qwen/Qwen3-8B"] = (Qwen3Config, 36, 4096, 12288, 32, 8, False)
MODELS["Qwen/Qwen3-14B"] = (Qwen3Config, 40, 5120, 17408, 40, 8, False)


def shape(name):
    kind, layers, hidden, intermediate, heads, kv_heads, tied = MODELS[name]
    made = kind(
        vocab_size=151936, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied,
    )  # fmt: skip
    return shape_of(made, name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("card", [8, 12, 16, 24])
def test_a_recipe_is_understood_and_fits_its_card(card):
    recipe = EXAMPLES / f"math_{card}gb.yaml"
    parsed = parse("grpo-plus train", [str(recipe), "--use_cpu"])
    args, model = parsed.training, parsed.model
    assert model.load_in_4bit
    assert model.use_peft
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32
    assert (args.learning_rate, args.recipe.rollout.how) == (2e-5, "auto")
    sizes = {"micro_batch": args.per_device_train_batch_size, "completion_length": args.max_completion_length}
    settings = Settings(**sizes, rollout_rows=args.recipe.rollout.rows, prompts=4, rank=model.lora_r)
    peak = estimate(shape(model.model_name_or_path), settings).peak
    assert 0.6 * card * GIB < peak < 0.94 * card * GIB
    assert f"these settings need {peak / GIB:.1f} GiB." in recipe.read_text(encoding="utf-8")
