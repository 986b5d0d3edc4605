"""A warm start from the config to GRPO: what it trains, what is kept, and what goes on."""

import json
import sys

import pytest
import torch
from peft import load_peft_weights
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from grpo_plus.cli._arguments import parse
from grpo_plus.trl.fields import supervised_trainer
from grpo_plus.warm_start.examples import SolutionRow, encode
from grpo_plus.warm_start.make import Base, train
from grpo_plus.warm_start.store import WarmStart
from grpo_verifiers.errors import ConfigError
from tests import started
from tests.warm_start.sums import QUESTIONS, kept_in, solutions, starts

COMPUTING = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear", "lora_dropout": 0.0}


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def run(cli):

    def run(path, *flags):
        code, said, err = cli("train", path, *flags)
        assert code == 0, err
        return said

    return run


SAVING = {"save_strategy": "steps", "save_steps": 1}
AGAIN = {"max_steps": 2, "resume_from_checkpoint": "last"}


def examples_of(tokenizer, count=8):
    solved = enumerate(solutions()[:count])
    rows = [
        SolutionRow([{"role": "user", "content": row["question"]}], row["solution"] * (1 + at % 3))
        for at, row in solved
    ]
    return encode(rows, tokenizer, column="solution")


@pytest.mark.slow
@pytest.mark.parametrize("passes", [8, 2])
def test_loss_and_gradient_of_the_first_step_are_those_of_a_plain_loop(tiny_model, tokenizer, monkeypatch, passes):
    found, real = {}, supervised_trainer

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_, model, **__):
            found.update({name: weight.grad.double().clone() for name, weight in model.named_parameters()})

    def watched(*given, **further):
        trainer = real(*given, **further)
        trainer.add_callback(Look())
        return trainer

    monkeypatch.setattr("grpo_plus.warm_start.make.supervised_trainer", watched)
    examples = examples_of(tokenizer)
    start = Base(tiny_model, {"dtype": "float32"}, computing=COMPUTING, micro_batch=passes)
    _, facts = train(start, examples, WarmStart(1, 8, 1e-3), tokenizer, lambda _: None)

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    total = 0.0
    for ids, first in zip(examples.ids, starts(examples), strict=True):
        logps = model(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0]
        total = total - sum(logps[place - 1, ids[place]] for place in range(first, len(ids)))
    loss = total / examples.tokens
    loss.backward()
    gradient = {name: weight.grad for name, weight in model.named_parameters()}
    norm = torch.stack([each.norm() for each in gradient.values()]).norm()
    assert facts["first_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, expected in gradient.items():
        clipped = expected * min(1.0, 1.0 / norm.item())
        assert (found[name] - clipped).norm() <= 1e-4 * clipped.norm() + 1e-9, name


@pytest.mark.slow
def test_prompts_have_the_ids_of_grpo_and_solutions_end_as_text_or_as_messages(build, tokenizer):
    trainer, _ = build(chat_template_kwargs={})
    prompts = [row["prompt"] for row in trainer.train_dataset]
    ids = trainer._tokenize_prompts(prompts)[0]
    rows = [SolutionRow(prompt, row["solution"]) for prompt, row in zip(prompts, solutions(), strict=True)]
    found = encode(rows, tokenizer, column="solution")
    assert [tokens[:start] for tokens, start in zip(found.ids, starts(found), strict=True)] == ids
    for tokens, start, row in zip(found.ids, starts(found), rows, strict=True):
        assert tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens[start:], skip_special_tokens=True) == row.solution
    text = encode([SolutionRow(QUESTIONS[0], "4")], tokenizer, column="solution")
    end = [*tokenizer("4", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert list(text.ids[0]) == list(tokenizer(text=[QUESTIONS[0]])["input_ids"][0]) + end
    asked, said = [{"role": "user", "content": "1+1"}], [{"role": "assistant", "content": "2"}]
    forms = [encode([SolutionRow(asked, form)], tokenizer, column="s") for form in ("2", said)]
    assert forms[0] == forms[1]


@pytest.mark.slow
def test_grpo_begins_with_the_warm_started_weights_and_a_second_run_reuses_them(build, tmp_path):
    trainer, said = build()
    (folder,) = kept_in(tmp_path / "out" / "_warm_start")
    assert "warm start: supervised training, 2 steps of 16 of 16 solutions" in said
    assert f"stored in {folder}." in said
    kept = load_file(folder / "model.safetensors")
    held = dict(trainer.model.named_parameters())
    assert all(torch.equal(held[name].cpu(), weight) for name, weight in kept.items())
    written = (folder / "model.safetensors").stat().st_mtime_ns
    _, said = build()
    assert "supervised training" not in said
    assert f"reused from {folder}." in said
    assert (folder / "model.safetensors").stat().st_mtime_ns == written

    _, said = build(warm_start={"steps": 3, "learning_rate": 1e-3})
    assert "none with these settings is there yet" in said
    (folder,) = kept_in(tmp_path / "out" / "_warm_start")  # in a run's own folder the former one is gone
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-8])
    _, said = build(warm_start={"steps": 3, "learning_rate": 1e-3})
    assert "is torn: model.safetensors has" in said
    assert (folder / "model.safetensors").read_bytes() == content

    shared = {"folder": str(tmp_path / "shared"), "learning_rate": 1e-3}
    for steps in (1, 2):
        build(warm_start={**shared, "steps": steps})
    assert len(kept_in(tmp_path / "shared")) == 2


@pytest.mark.slow
def test_a_run_that_finds_its_warm_start_trains_as_the_one_that_made_it(config, run, tmp_path):
    weights = []
    for _ in range(2):
        said = run(config(max_steps=2, learning_rate=1e-3, advantage="raw", beta=0.1))
        weights.append(load_file(tmp_path / "out" / "model.safetensors"))
    assert "reused" in said
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())
    assert "loss " in (tmp_path / "out" / "README.md").read_text().split("Warm start")[1]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 4])
def test_a_warm_started_adapter_goes_on_bit_for_bit_and_is_the_reference(build, tmp_path, bits):
    quantised = {"load_in_4bit": True} if bits else {}
    warm = {"steps": 4, "learning_rate": 1e-2}
    trainer, _ = build(**LORA, **quantised, beta=0.1, learning_rate=1e-3, warm_start=warm)
    (folder,) = kept_in(tmp_path / "out" / "_warm_start")
    kept = load_peft_weights(str(folder), device="cpu")
    model, held = trainer.model, dict(trainer.model.named_parameters())
    for name, weight in kept.items():
        for adapter in ("default", "ref"):
            mine = held[name.replace(".weight", f".{adapter}.weight")]
            assert mine.dtype == weight.dtype == torch.float32
            assert torch.equal(mine.cpu(), weight)
            assert mine.requires_grad is (adapter == "default")
    assert any(weight.abs().max() > 1e-3 for name, weight in kept.items() if "lora_B" in name)
    ids = torch.arange(5, 25).unsqueeze(0)
    with torch.no_grad():
        policy = model.eval()(input_ids=ids).logits
        with model.disable_adapter():
            base = model(input_ids=ids).logits
    assert (policy - base).abs().max() > 1e-3
    trainer.train()
    (first,) = (row for row in trainer.state.log_history if "kl" in row)
    assert abs(first["kl"]) < 1e-6  # against the warm-started model: the base is farther off


@pytest.mark.slow
def test_full_trains_all_weights_where_the_run_trains_an_adapter_on_rows_that_are_not_measured(build, tmp_path):
    trainer, said = build(**LORA, warm_start={"steps": 1, "full": True}, measure={"split": "train", "limit": 3})
    (folder,) = kept_in(tmp_path / "out" / "_warm_start")
    kept = load_file(folder / "model.safetensors")
    base = trainer.accelerator.unwrap_model(trainer.model).get_base_model().model.embed_tokens.weight
    assert torch.equal(base.cpu(), kept["model.embed_tokens.weight"])
    assert "ref" not in trainer.model.peft_config
    assert "3 rows are left out: their prompts are measured or evaluated" in said
    assert json.loads((folder / "warm_start.json").read_text())["facts"]["rows"] == 13


@pytest.mark.slow
def test_killed_while_it_is_written_it_is_made_anew(config, build, tmp_path, clean_environment):
    path = config()
    code = """
import os, signal, sys
import transformers
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
transformers.PreTrainedTokenizerBase.save_pretrained = kill
from grpo_plus.cli import main
main(["train", sys.argv[1]])
"""
    done = started.run([sys.executable, "-c", code, path], env=clean_environment, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    home = tmp_path / "out" / "_warm_start"
    assert kept_in(home) == []
    assert [each for each in home.iterdir() if each.is_dir()]  # the draft
    _, said = build()
    assert "none with these settings is there yet" in said
    (folder,) = kept_in(home)
    assert [each for each in home.iterdir() if each.is_dir()] == [folder]


@pytest.mark.slow
def test_two_ranks_make_the_one_of_one_process(config, build, tmp_path, two_ranks, monkeypatch):
    monkeypatch.setenv("GRPO_PLUS_FORK", "0")  # forked, a sixth of the runs waits for ever in an all-reduce of gloo
    script = tmp_path / "rank_of_two.py"
    script.write_text("""
import sys
import torch
from accelerate import PartialState
from grpo_plus.cli._arguments import parse
from grpo_plus.cli.train import build_trainer
trainer = build_trainer(parse("grpo-plus train", [sys.argv[1], "--output_dir", sys.argv[2]]))
rank = PartialState().process_index
assert PartialState().num_processes == 2
torch.save({n: w.detach() for n, w in trainer.model.named_parameters()}, f"{sys.argv[2]}/rank{rank}.pt")
""")
    out = tmp_path / "two"
    warm = {"steps": 3, "learning_rate": 1e-3, "batch_size": 8}
    with two_ranks(script, config(warm_start=warm, per_device_train_batch_size=2), out, log=tmp_path / "log"):
        trainer, _ = build(warm_start=warm)
    ranks = [torch.load(out / f"rank{rank}.pt") for rank in range(2)]
    before = load_file(f"{trainer.model.config._name_or_path}/model.safetensors")
    assert {*dict(trainer.model.named_parameters())} <= before.keys()
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(ranks[0][name], ranks[1][name])
        assert torch.allclose(ranks[0][name], weight.detach().cpu(), atol=2e-5), name
    assert (tmp_path / "log").read_text().count("supervised training, 3 steps of 8 of 16") == 1
    keys = [folder.name for home in ("out", "two") for folder in kept_in(tmp_path / home / "_warm_start")]
    assert len(keys) == 2
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_a_resumed_run_keeps_the_warm_start_that_it_began_with_where_it_was_moved(config, cli, run, tmp_path):
    saving = {**SAVING, "beta": 0.1, **LORA}
    run(config(**saving))
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    (folder,) = kept_in(moved / "_warm_start")
    on = saving | AGAIN | {"output_dir": str(moved)}
    for more, changed in enumerate(({"steps": 2, "learning_rate": 1e-3}, {"steps": 5}, None)):
        said = run(config(**{**on, "max_steps": 2 + more, "warm_start": changed}))
        assert f", from {folder}." in said
        assert kept_in(moved / "_warm_start") == [folder]
    (folder / "adapter_model.safetensors").unlink()
    code, _, err = cli("train", config(**{**on, "max_steps": 5, "warm_start": {"steps": 5}}))
    assert code == 2
    assert "is not complete (adapter_model.safetensors is missing). Repeat it" in err


@pytest.mark.slow
def test_a_run_without_a_warm_start_gets_none_by_resuming(config, run, tmp_path):
    run(config(**SAVING, warm_start=None))
    said = run(config(**SAVING, **AGAIN))
    assert "a resumed run makes none: it has no effect" in said
    assert not (tmp_path / "out" / "_warm_start").exists()


def test_an_empty_mapping_asks_for_a_warm_start_and_null_for_none(config):
    def given(*flags, **changes):
        return parse("grpo-plus train", [config(**changes), *flags])

    assert given(warm_start={}).script.warm_start == {}
    assert given("--warm_start", "{}", warm_start=None).script.warm_start == {}
    assert given(warm_start=None).script.warm_start is None
    assert given("--warm_start", "null").script.warm_start is None
    assert given("--reward_model", "null", reward_model={}).training.reward_model is None


@pytest.mark.slow
def test_a_resumed_run_with_other_shapes_of_the_adapter_says_so(config, cli, run):
    path = config(**SAVING, use_peft=True)
    run(path)
    changes = {
        ("--lora_r", "4"): "whose shapes are not this config's",
        ("--use_peft", "false"): "this config trains none: put use_peft",
    }
    for flags, told in changes.items():
        code, _, err = cli("train", path, "--resume_from_checkpoint", "last", "--max_steps", "2", *flags)
        assert code == 2
        assert told in err


@pytest.mark.slow
def test_weights_that_the_last_step_broke_are_not_kept(tiny_model, tokenizer):
    start = Base(tiny_model, {"dtype": "float32"}, computing=COMPUTING, micro_batch=8)
    with pytest.raises(ConfigError, match="not finite after the last step"):
        train(start, examples_of(tokenizer), WarmStart(1, 8, 1e39), tokenizer, lambda _: None)
