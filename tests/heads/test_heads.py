"""Heads on hidden states: what they read, what their gradients reach, and what of the policy they leave alone."""

import contextlib
from functools import partial
from itertools import product

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpo_plus.engine import Facts, forward
from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.own_model import ModelTrunk
from grpo_plus.heads.passes import Passes, _Reader, rows_of
from grpo_plus.heads.scalar import ScalarHead
from grpo_plus.heads.trunk import HeadError, PolicyTrunk
from grpo_plus.testing import make_tiny_model
from tests.device import DEVICE

ARCHITECTURES = ("gpt2", "llama", "qwen3")


def batch(seed=0, rows=6, prompts=(4, 7), widths=(9, 6, 0, 8, 1, 5), vocabulary=90):
    """Rows of two prompts, padded as TRL does."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randint, 3, vocabulary, generator=generator)
    prompt_ids, prompt_mask = torch.zeros(2, rows, max(prompts), dtype=torch.long)
    ids, mask = torch.zeros(2, rows, max(widths), dtype=torch.long)
    texts = [draw((length,)) for length in prompts]
    for row in range(rows):
        text = texts[row * len(prompts) // rows]
        prompt_ids[row, -len(text) :], prompt_mask[row, -len(text) :] = text, 1
        ids[row, : widths[row]], mask[row, : widths[row]] = draw((widths[row],)), 1
    found = {"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": ids, "completion_mask": mask}
    return {name: column.to(DEVICE) for name, column in found.items()}


def adapted(model, *, dropout=0.0, **options):
    config = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **options}
    model = peft.get_peft_model(model, peft.LoraConfig(lora_dropout=dropout, **config))
    generator = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(0.2 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def loaded(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(DEVICE)


def passes(trunk, *, layout="auto", dtype=torch.float32, spread=0.3, **further):
    head = ScalarHead(trunk.hidden_size, dtype, spread=spread, device=DEVICE)
    return Passes(trunk, head, layout=layout, autocast=contextlib.nullcontext, **further)


def plain_values(model, head, rows):
    """V of each completion token, one row at a time, without padding, from the state that predicts it."""
    count, width = rows["completion_ids"].shape
    values = torch.zeros(count, width, dtype=head.weight.dtype, device=DEVICE)
    for row in range(count):
        prompt = rows["prompt_ids"][row][rows["prompt_mask"][row] == 1]
        completion = rows["completion_ids"][row][rows["completion_mask"][row] == 1]
        if len(completion):
            ids = torch.cat([prompt, completion])[None]
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0].to(head.weight.dtype)
            for place in range(len(completion)):
                values[row, place] = (hidden[len(prompt) + place - 1] * head.weight).sum() + head.bias
    return values


def perturb(trunk, size=0.1):
    generator = torch.Generator().manual_seed(3)
    for parameter in trunk.named_parameters().values():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += size * drawn.to(DEVICE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name in ARCHITECTURES:
        made[name] = str(tmp_path_factory.mktemp(name))
        make_tiny_model(made[name], architecture=name)
    return made


CASES = [("qwen3", layout) for layout in ("auto", "packed", "trimmed", "stock")]
CASES += [pytest.param(*each, marks=pytest.mark.slow) for each in product(("gpt2", "llama"), ("auto", "stock"))]


@pytest.mark.parametrize(("architecture", "layout"), CASES)
def test_values_are_those_of_a_plain_loop_over_the_models_own_hidden_states(folders, architecture, layout):
    model, rows = loaded(folders[architecture]), batch()
    found = passes(PolicyTrunk(model), layout=layout)
    with torch.no_grad(), found.trunk.active():
        values = found.values(*rows_of(rows), batch_size=4)
        torch.testing.assert_close(values, plain_values(model, found.head, rows), atol=2e-6, rtol=1e-5)
        same, features = found.features(*rows_of(rows), batch_size=4)
    assert torch.equal(same, values)
    torch.testing.assert_close(found.head(features.to(DEVICE)) * rows["completion_mask"], values, atol=1e-6, rtol=1e-6)
    assert (features.any(-1).to(DEVICE) == rows["completion_mask"].bool()).all()
    assert values[2].count_nonzero() == 0  # no tokens


def test_turns_that_completions_share_are_read_by_each_of_them(folders, monkeypatch):
    monkeypatch.setattr("grpo_plus.engine.cost._BUNDLE_OVERHEAD", 0.0)
    model, rows = loaded(folders["qwen3"]), batch(widths=(9, 9, 0, 8, 8, 5))
    for first, second, turn in ((0, 1, 9), (3, 4, 6)):  # two rows are equal, and two begin alike
        for name in ("prompt_ids", "prompt_mask"):
            rows[name][second] = rows[name][first]
        rows["completion_ids"][second, :turn] = rows["completion_ids"][first, :turn]
    found, seen = passes(PolicyTrunk(model), layout="packed"), []
    model.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:2].numel()))
    with torch.no_grad(), found.trunk.active():
        found.values(*rows_of(rows))  # its trial is over
        seen.clear()
        values, features = found.features(*rows_of(rows))
        assert sum(seen) < int(rows["prompt_mask"].sum() + rows["completion_mask"].sum()) - 6 - 9 - 6
        torch.testing.assert_close(values, plain_values(model, found.head, rows), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(found.head(features.to(DEVICE)) * rows["completion_mask"], values, atol=1e-6, rtol=1e-6)
    assert torch.equal(features[0], features[1])


def trunk_of(kind, folder, dtype=torch.float64):
    if kind == "model":
        trunk = ModelTrunk(folder, vocabulary=90, dtype=dtype, device=DEVICE)
        plain = loaded(folder, dtype)
        return trunk, plain, {name: dict(plain.model.named_parameters())[name] for name in trunk.named_parameters()}
    model = adapted(loaded(folder, dtype))
    trunk = AdapterTrunk(model, "critic", rank=2)
    for parameter in trunk.named_parameters().values():
        parameter.data = parameter.data.to(dtype)
    # the same weights as a policy's only adapter, in a model of its own
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    plain = peft.get_peft_model(loaded(folder, dtype), config)
    theirs = {name.replace(".default.", ".critic."): parameter for name, parameter in plain.named_parameters()}
    for parameter in plain.parameters():
        parameter.data = parameter.data.to(dtype)
    return trunk, plain, {name: theirs[name] for name in trunk.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "stock"])
@pytest.mark.parametrize("kind", ["adapter", "model"])
def test_the_gradient_is_that_of_a_plain_loop(folders, kind, layout):
    rows = batch()
    trunk, plain, theirs = trunk_of(kind, folders["qwen3"])
    perturb(trunk)
    for name, parameter in trunk.named_parameters().items():
        theirs[name].data.copy_(parameter.data)
    found = passes(trunk, layout=layout, dtype=torch.float64)
    found.head.weight.data *= 1.0
    aims = torch.randn(rows["completion_ids"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    aims = aims.to(DEVICE)
    mask = rows["completion_mask"]
    with trunk.active():
        (0.5 * (found.values(*rows_of(rows)).double() - aims).square() * mask).sum().backward()
    head = ScalarHead(trunk.hidden_size, torch.float64, spread=0.3, device=DEVICE)
    (0.5 * (plain_values(plain, head, rows) - aims).square() * mask).sum().backward()
    torch.testing.assert_close(found.head.weight.grad, head.weight.grad, atol=1e-5, rtol=1e-4)
    compared = 0
    for name, parameter in trunk.named_parameters().items():
        if theirs[name].grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-5, rtol=1e-4)
            compared += int(parameter.grad.abs().sum() > 0)
    assert compared > 10


def state_of(model):
    layers = [m for m in model.modules() if hasattr(m, "active_adapters") and hasattr(m, "disable_adapters")]
    adapters = [
        (m.active_adapters, m.disable_adapters) for m in layers if m is not model and not hasattr(m, "peft_config")
    ]
    trained = [(name, p.requires_grad, p.grad is None) for name, p in model.named_parameters()]
    return trained, adapters, [module.training for module in model.modules()], model.active_adapters


@pytest.mark.parametrize("fails", [False, True])
def test_an_adapter_of_its_own_leaves_everything_of_the_policy_as_it_was(folders, fails):
    model = adapted(loaded(folders["qwen3"]), dropout=0.3, modules_to_save=["lm_head"])
    model.train()
    names = set(dict(model.named_parameters()))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    random = torch.get_rng_state()
    trunk = AdapterTrunk(model, "critic")
    assert torch.equal(random, torch.get_rng_state())
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trained
    assert list(model.peft_config) == ["default"]
    before = state_of(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if name in names}
    found = passes(trunk)
    own = trunk.named_parameters() | {f"head.{n}": p for n, p in found.head.named_parameters()}
    optimizer = OwnAdamW(own, learning_rate=0.1)
    rows = batch()
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), trunk.active():
            found.values(*rows_of(rows)).square().sum().backward()
            if fails:
                raise ZeroDivisionError
        optimizer.step()
    assert state_of(model) == before
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters() if name in names)
    moved = [name for name, p in trunk.named_parameters().items() if "lora_B" in name and p.abs().sum() > 0]
    assert len(moved) >= 14


def test_tokens_that_the_policy_trains_by_themselves_are_the_bases_own_in_the_passes_of_a_head(folders):
    """Their layer has no weights of the head's adapter; the first values of an adapter are those of the base alone."""
    tokens = {"trainable_token_indices": list(range(3, 60))}
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **tokens)
    model = peft.get_peft_model(loaded(folders["qwen3"]), adapter)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "trainable_tokens_delta" in name:
                parameter.add_(1.0)
    trunk, ids = AdapterTrunk(model, "critic"), batch()["completion_ids"][:1]
    policy, before = model(input_ids=ids).logits, state_of(model)
    with trunk.active():
        hidden = trunk.hidden(input_ids=ids)
    assert torch.equal(hidden, loaded(folders["qwen3"]).model(input_ids=ids).last_hidden_state)
    assert state_of(model) == before
    assert torch.equal(model(input_ids=ids).logits, policy)


def test_the_adapter_is_not_saved_with_the_policy_and_the_policy_is_the_same_beside_it(folders, tmp_path):
    model = adapted(loaded(folders["qwen3"])).eval()
    ids = batch()["completion_ids"][:1]
    before = model(input_ids=ids).logits
    trunk = AdapterTrunk(model, "critic")
    perturb(trunk)
    assert torch.equal(model(input_ids=ids).logits, before)
    with trunk.active():
        inside = trunk.hidden(input_ids=ids)
    assert not torch.allclose(inside, model.get_base_model().model(input_ids=ids).last_hidden_state, atol=1e-3)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    assert not [name for name in load_file(tmp_path / "adapter_model.safetensors") if "critic" in name]
    with model.disable_adapter():
        plain = loaded(folders["qwen3"])(input_ids=ids).logits
        torch.testing.assert_close(model(input_ids=ids).logits, plain)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, before, atol=1e-5, rtol=1e-4)


@pytest.fixture
def in_4_bits(tmp_path):
    make_tiny_model(tmp_path / "full", architecture="qwen3", hidden=64)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "full", quantization_config=quantisation)


@pytest.mark.slow
def test_an_adapter_of_its_own_stands_on_a_base_in_4_bits(in_4_bits):
    model = adapted(in_4_bits).train()
    packed = {name: p.detach().clone() for name, p in model.named_parameters() if p.dtype == torch.uint8}
    assert packed
    trunk = AdapterTrunk(model, "critic")
    assert {p.dtype for p in trunk.named_parameters().values()} == {torch.float32}
    perturb(trunk)
    rows, values = batch(), {}
    for layout in ("stock", "packed"):
        found = passes(trunk, layout=layout)
        with trunk.active():
            values[layout] = found.values(*rows_of(rows))
            values[layout].sum().backward()
    torch.testing.assert_close(values["packed"], values["stock"], atol=1e-4, rtol=1e-3)
    with torch.no_grad(), trunk.active():
        torch.testing.assert_close(values["stock"], plain_values(model, found.head, rows), atol=1e-4, rtol=1e-3)
    assert all(p.grad is not None for name, p in trunk.named_parameters().items() if "lm_head" not in name)
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], tensor) for name, tensor in packed.items())


@pytest.mark.parametrize("field", ["model", "start"])
def test_a_model_in_4_bits_is_refused_as_one_to_train(in_4_bits, tmp_path, field):
    in_4_bits.save_pretrained(tmp_path / "small")
    with pytest.raises(HeadError, match=rf"{field} is .*small', whose weights are stored quantised .* or on: adapter"):
        ModelTrunk(str(tmp_path / "small"), vocabulary=90, field=field)


def test_values_have_no_dropout_although_the_policy_trains_with_some(folders):
    model = adapted(loaded(folders["qwen3"]), dropout=0.5).train()
    found, rows = passes(PolicyTrunk(model.get_base_model())), batch()
    with torch.no_grad(), found.trunk.active():
        first, second = found.values(*rows_of(rows)), found.values(*rows_of(rows))
    assert torch.equal(first, second)
    model.eval()
    torch.testing.assert_close(first, plain_values(model, found.head, rows).detach(), atol=2e-6, rtol=1e-5)


def test_a_model_that_packs_wrongly_is_found_out_although_its_head_is_zero(folders, monkeypatch):
    model = loaded(folders["qwen3"])
    monkeypatch.setattr(forward, "_mask", lambda *_args, **_keywords: None)  # completions would see each other
    found = passes(PolicyTrunk(model), spread=0.0)
    rows = batch()
    with torch.no_grad(), found.trunk.active():
        found.values(*rows_of(rows))
    assert not found.engine._models.of(_Reader(found.trunk, lambda *_: None)).treatments.packing


def test_frozen_parts_are_not_trained(folders):
    trunk = ModelTrunk(folders["qwen3"], vocabulary=90, freeze=["attention"])
    assert not [name for name in trunk.named_parameters() if "self_attn" in name]
    assert [name for name in trunk.named_parameters() if "mlp" in name]
    assert not [name for name, p in trunk.model.named_parameters() if p.requires_grad and "self_attn" in name]
    beside = AdapterTrunk(adapted(loaded(folders["qwen3"])), "critic", freeze=["attention"])
    assert not [name for name in beside.named_parameters() if "self_attn" in name]
    with pytest.raises(HeadError, match="leaves nothing to train"):
        AdapterTrunk(adapted(loaded(folders["qwen3"])), "critic", freeze=["attention", "mlp", "embeddings"][:2])


def test_trunks_that_cannot_be_had_say_why(folders):
    with pytest.raises(HeadError, match=r"reads .* tokens, and the policy writes 100000"):
        ModelTrunk(folders["qwen3"], vocabulary=100_000)
    with pytest.raises(HeadError, match="cannot be loaded"):
        ModelTrunk("/no/such/folder", vocabulary=10)
    with pytest.raises(HeadError, match="the policy has none"):
        AdapterTrunk(loaded(folders["qwen3"]), "critic")
    model = adapted(loaded(folders["qwen3"]))
    AdapterTrunk(model, "critic")
    with pytest.raises(HeadError, match="named 'critic' already"):
        AdapterTrunk(model, "critic")


def test_the_optimizer_is_adamw_and_goes_on_from_its_tensors():
    torch.manual_seed(0)
    start, gradients = torch.randn(5).to(DEVICE), torch.randn(6, 5).to(DEVICE)
    theirs = torch.nn.Parameter(start.clone())
    adamw = torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.1)
    ours = torch.nn.Parameter(start.clone())
    optimizer = OwnAdamW({"w": ours}, learning_rate=0.05, weight_decay=0.1, max_grad_norm=0.7)
    for number, gradient in enumerate(gradients):
        theirs.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([theirs], 0.7)
        adamw.step()
        ours.grad = gradient.clone()
        assert optimizer.step() == pytest.approx(float(norm))
        if number == 2:
            kept, weight = optimizer.tensors(), ours.detach().clone()
            ours = torch.nn.Parameter(weight)
            optimizer = OwnAdamW({"w": ours}, learning_rate=0.05, weight_decay=0.1, max_grad_norm=0.7)
            optimizer.load_tensors(kept)
    torch.testing.assert_close(ours, theirs)
    with pytest.raises(ValueError, match="other weights"):
        OwnAdamW({"v": ours}, learning_rate=0.1).load_tensors(kept)
    ours.grad = torch.full_like(ours, torch.nan)
    assert optimizer.step() != optimizer.step()  # NaN, and then a gradient of zero
    ours.grad = torch.full_like(ours, torch.inf)
    optimizer.step()
    assert torch.isfinite(ours).all()


def test_gradients_are_averaged_over_ranks(device):
    one, two = (torch.nn.Parameter(torch.zeros(size, device=device)) for size in (3, 2))
    other = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device)  # the other rank's
    optimizer = OwnAdamW(
        {"a": one, "b": two}, learning_rate=1.0, max_grad_norm=None, average=lambda flat: (flat + other) / 2
    )
    one.grad = torch.tensor([3.0, 0.0, 1.0], device=device)  # and none for b
    assert optimizer.step() == pytest.approx(float(torch.tensor([2.0, 1.0, 2.0, 2.0, 2.5]).norm()))


def test_weights_come_back_from_their_tensors_and_others_are_refused(folders):
    model = adapted(loaded(folders["qwen3"]))
    trunk = AdapterTrunk(model, "critic")
    perturb(trunk)
    kept = trunk.tensors()
    perturb(trunk)
    trunk.load_tensors(kept)
    assert all(torch.equal(p.cpu(), kept[name]) for name, p in trunk.named_parameters().items())
    with pytest.raises(ValueError, match="has the shape none there"):
        trunk.load_tensors(dict(list(kept.items())[1:]))
    head = ScalarHead(4)
    assert not head.weight.any()
    with pytest.raises(ValueError, match=r"'weight' has the shape \(5,\) there and \(4,\) here"):
        head.load_tensors(ScalarHead(5).tensors())


def test_a_bound_on_tokens_a_pass_gives_the_same_gradient(folders):
    rows = batch()
    gradients = []
    for bound in (None, 20):
        trunk = ModelTrunk(folders["qwen3"], vocabulary=90, device=DEVICE)
        found = passes(trunk, tokens_per_pass=bound, facts=Facts)
        with trunk.active():
            found.values(*rows_of(rows)).square().sum().backward()
        gradients.append([p.grad for p in trunk.named_parameters().values() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
