"""Tokens a second of our decode loop beside the model's own `generate`.

    python -m benchmarks.decode                              # both models, 8, 32 and 128 rows
    python -m benchmarks.decode --model quickstart --rows 64 --rounds 9 --json decode.json
    python -m benchmarks.decode --short                      # does it run

Two models: the quickstart's, and one of 20 million parameters with a BPE vocabulary of 8,000, trained for some three
minutes on the sources of Python's standard library and kept in ``--home`` for the next time. Groups of 8 completions;
each round has prompts of its own, and the two draw in turn. Medians over the rounds, in seconds of the processor, or of
the clock on a GPU.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks import small_model
from grpo_plus.cli import quickstart
from grpo_plus.sampling.decode import decode
from grpo_plus.sampling.sampler import Sampling

GROUP = 8
VOCABULARY = 8000
CONTEXT = 96
PROMPT = 24
ROUNDS = {"quickstart": 40, "text": 6}


def library_text() -> list[str]:
    """The sources of the standard library, at most 200 kB a file."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [file.read_text("utf-8", "replace")[:200_000] for file in files]


def text_model(folder: Path, steps: int) -> tuple[Any, Any]:
    """The model over program text with its tokenizer, trained where it is not there yet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    from grpo_plus.testing import make_tiny_model

    folder = folder / f"text-{steps}"
    if (folder / "config.json").exists():
        return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    texts = library_text()
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>")
    shape = {"layers": 6, "hidden": 448, "num_attention_heads": 7, "num_key_value_heads": 7, "intermediate_size": 1200}
    model, _ = make_tiny_model(
        **shape, vocab_size=len(tokenizer), initializer_range=0.03, eos_token_id=0, pad_token_id=0
    )
    ids = torch.tensor([token for text in texts for token in [*tokenizer(text)["input_ids"], 0]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for step in range(1, steps + 1):
        starts = torch.randint(len(ids) - CONTEXT, (4,), generator=generator)
        batch = ids[starts[:, None] + torch.arange(CONTEXT)]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"text model: step {step}, loss {loss.item():.2f}", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def text_prompts(tokenizer: Any) -> Iterator[list[int]]:
    """Pieces of the standard library."""
    rng = random.Random(1)
    texts = [tokenizer(text)["input_ids"] for text in library_text()]
    texts = [text for text in texts if len(text) > PROMPT]
    while True:
        text = rng.choice(texts)
        start = rng.randrange(len(text) - PROMPT)
        yield text[start : start + PROMPT]


def quickstart_model(steps: int) -> tuple[Any, Any]:
    """The quickstart's model, warm-started where it is not there yet."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if steps:
        folder = quickstart.FOLDER / f"short-{steps}"
        if not (folder / "config.json").exists():
            small_model.warm_start(folder, steps=steps)
    else:
        folder = Path(quickstart.model())
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def quickstart_prompts(tokenizer: Any) -> Iterator[list[int]]:
    """Questions of the quickstart."""
    for chain in quickstart.chains(1):
        row = quickstart.row(chain)["prompt"]
        yield tokenizer.apply_chat_template(row, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]


def generated(model: Any, prompts: list[list[int]], sampling: Sampling) -> list[list[int]]:
    """Completions by the model's own `generate`."""
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    ids = torch.tensor([[sampling.pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = GenerationConfig(
        max_new_tokens=sampling.most, do_sample=True, top_k=0, temperature=sampling.temperature,
        pad_token_id=sampling.pad, eos_token_id=list(sampling.stops), disable_compile=True,
    )  # fmt: skip
    where = model.device
    with torch.no_grad():
        output = model.generate(input_ids=ids.to(where), attention_mask=mask.to(where), generation_config=config)
    rows = []
    for row in output[:, width:].tolist():
        end = next((place for place, token in enumerate(row) if token in sampling.stops), len(row) - 1)
        rows.append(row[: end + 1])
    return rows


def measure(model: Any, source: Iterator[list[int]], sampling: Sampling, rows: int, rounds: int) -> dict[str, Any]:
    """Median tokens a second of the two."""
    found: dict[str, list[float]] = {"generate": [], "ours": []}
    clock = time.perf_counter if model.device.type == "cuda" else time.process_time
    for at in range(rounds + 1):
        prompts = [
            prompt for prompt in itertools.islice(source, max(1, rows // GROUP)) for _ in range(min(GROUP, rows))
        ]
        for name in [*found, *found][at % 2 : at % 2 + 2]:
            torch.manual_seed(at)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            start = clock()
            if name == "generate":
                drawn = generated(model, prompts, sampling)
            else:
                drawn = decode(model, prompts, sampling, device=model.device).completions
            if at:  # the first round warms up
                found[name].append(sum(map(len, drawn)) / (clock() - start))
    ratios = [ours / theirs for ours, theirs in zip(found["ours"], found["generate"], strict=True)]
    speeds = {name: statistics.median(each) for name, each in found.items()}
    return {"rows": rows, **speeds, "ours_by_generate": statistics.median(ratios)}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["quickstart", "text", "both"], default="both")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument(
        "--rounds", type=int, help=f"default: {ROUNDS['quickstart']} and, for the text, {ROUNDS['text']}"
    )
    parser.add_argument("--most", type=int, default=96, help="tokens of a completion, at most")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=200, help="training of the text model")
    parser.add_argument("--home", type=Path, default=Path("runs/decode"), help="folder for the trained text model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--short", action="store_true", help="few rows, steps and rounds: it runs")
    options = parser.parse_args()
    if options.short:
        options.rows, options.rounds, options.most, options.steps = [8], 2, 24, 4
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print("| model | rows | generate | ours | ours / generate |")
    print("|---|---:|---:|---:|---:|")
    results = []
    for name in ("quickstart", "text") if options.model == "both" else (options.model,):
        if name == "text":
            model, tokenizer = text_model(options.home, options.steps)
            source = text_prompts(tokenizer)
        else:
            model, tokenizer = quickstart_model(20 if options.short else 0)
            source = quickstart_prompts(tokenizer)
        model = model.to(options.device)
        stop, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        sampling = Sampling(stops=(stop,), most=options.most, pad=pad, temperature=options.temperature)
        rounds = ROUNDS[name] if options.rounds is None else options.rounds
        for rows in options.rows:
            result = {"model": name, **measure(model, source, sampling, rows, rounds)}
            results.append(result)
            speeds = f"{result['generate']:,.0f} | {result['ours']:,.0f} | {result['ours_by_generate']:.2f}"
            print(f"| {name} | {rows} | {speeds} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
