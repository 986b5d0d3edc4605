"""Every type of causal model that can be made tiny: the ratios of a first update are 1, and the gradient is TRL's."""

import contextlib
import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from grpo_plus.engine.architecture import treatments_of
from grpo_plus.engine.branches import install
from grpo_plus.engine.forward import Head
from grpo_plus.engine.probe import PackingTrial
from tests.device import DEVICE

TABLE = (Path(__file__).parents[1] / "cases" / "tiny_models.txt").read_text().splitlines()
SIZES = {name: json.loads(value) for value, *names in map(str.split, TABLE) for name in names}
SHIFTED = ("biogpt", "ctrl", "gpt2", "hunyuan_v1_dense", "roberta", "xglm")
OTHERS = [
    pytest.param(kind, marks=pytest.mark.nightly) for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in SHIFTED
]


def tiny(kind, *, fresh=False, **own):
    """A tiny model of a type; unless ``fresh``, the ones and zeros of new norms and biases are as if they were trained."""
    fields = vars(CONFIG_MAPPING[kind]())
    sizes = {name: size for name, size in SIZES.items() if name in fields or name.endswith("_token_id")}
    if "qk_rope_head_dim" in fields:
        sizes |= {"head_dim": 4, "num_key_value_heads": 4}
    if fields.get("layer_types"):
        sizes["layer_types"] = [fields["layer_types"][0], fields["layer_types"][-1]]
    config = AutoConfig.for_model(kind, **{**sizes, "is_decoder": True, **own})
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > 3e6:
        raise ValueError(f"{kind} has {size} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2 and not fresh:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", [*SHIFTED, *OTHERS])
def test_the_first_update_of_every_type(bench, kind, monkeypatch):
    monkeypatch.setattr("grpo_plus.engine.cost._LAYER_OVERHEAD", {"other": 2e5})  # layouts differ between micro-batches
    batch = bench.batch(prompts=(2, 40), completions=(1, 30), dead=(1,))
    plain = contextlib.nullcontext() if kind in SHIFTED else contextlib.suppress(Exception)
    truth = None
    with plain:  # transformers or TRL may lack a package, or fail on its own
        model = tiny(kind)
        model.config._name_or_path = bench.model()  # has the tokenizer
        settings = {"beta": 0.05, "router_aux_loss_coef": 0.0}
        truth = bench.gradient(bench.trainer(model=copy.deepcopy(model), **settings), batch, old=0.0, reference=0.0)
    if truth is None:
        pytest.skip("cannot be made tiny, or does not run in TRL")
    for engine in ("auto", "trimmed")[: 1 if treatments_of(model).refusal else 2]:
        trainer = bench.trainer(engine, model=copy.deepcopy(model), **settings)
        found, loss, reports = bench.gradient(trainer, batch, old=0.0, reference=0.0)
        assert bench.distance(found, truth[0]) < 1e-4
        assert loss == pytest.approx(truth[1], rel=1e-4, abs=1e-6)
        assert max(trainer._metrics["train"]["kl"]) < 1e-9  # of ratios that are 1
        assert kind not in SHIFTED or 2.0 not in {report["engine/layout"] for report in reports}


FAR = {"max_position_embeddings": 2**15}


@pytest.mark.parametrize(("kind", "dtype", "fresh", "own", "moves"), [
    ("gpt2", "bfloat16", False, {}, "16 columns"),
    ("hunyuan_v1_dense", "bfloat16", True, {}, "16 columns"),
    ("ministral3", "float32", True, FAR, "position 32755"),
    ("llama", "float32", False, FAR, None),
    ("opt", "bfloat16", False, {}, None),
    ("flex_olmo", "bfloat16", False, {}, None),
])  # fmt: skip
def test_a_trial_knows_relative_positions_in_every_precision(kind, dtype, fresh, own, moves):
    model = tiny(kind, fresh=fresh, **own).to(DEVICE, getattr(torch, dtype))
    trial = PackingTrial(model, 101, torch.device(DEVICE), contextlib.nullcontext, Head(fused=False))
    reason = trial.positions(explicit=True, limit=model.config.max_position_embeddings)
    assert reason is None if moves is None else moves in reason
    install()
    assert moves or trial.packing(attention="sdpa", sharing=True, joining=True) is None
