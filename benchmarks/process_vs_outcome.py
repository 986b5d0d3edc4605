"""Does a score for every step teach in fewer updates than the outcome alone? A tiny model on chains of sums, on a CPU.

The model is warm-started on worked solutions of which some lines are wrong, so that it slips as often itself. Then,
from each seed, it is trained in each arm with the same outcome reward (the ``math`` verifier) on the same questions:

* outcome: ``advantage: zscore``;
* process: ``advantage: process`` with ``outcome_weight: 1`` and the scores of ``math_steps``;
* with ``--arms``, process with a policy against padding: ``distinct``, ``capped`` (``max_steps: 3``).

Every update logs the step accuracy of its fresh samples: the share of lines whose equation holds, mean over
completions.
Printed: the curve of each arm (mean and standard deviation over seeds), and for each seed how many updates it takes
until the mean over the last five is at the goal. Whatever it shows.

    python benchmarks/process_vs_outcome.py                     # 5 seeds, 60 updates
    python benchmarks/process_vs_outcome.py --seeds 2 --updates 20
    python benchmarks/process_vs_outcome.py --arms process distinct capped
    python benchmarks/process_vs_outcome.py --padding           # no training: what easy lines earn under each policy
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.quickstart import Chain, chains
from grpo_plus.testing import make_tiny_model
from grpo_verifiers.steps import math_steps

SLIPS = 0.3
"""Share of the warm start's lines with a wrong result."""
POLICIES: dict[str, dict[str, Any]] = {"process": {}, "distinct": {"distinct": True}, "capped": {"max_steps": 3}}
"""Options of the ``math_steps`` that teaches; the one that measures has none."""
ARMS = ("outcome", *POLICIES)
SMOOTH = 5


def solution(chain: Chain, rng: random.Random) -> str:
    """A line for each move and the boxed result; a line may be wrong, and the rest follows from it."""
    value, lines = chain.start, []
    for sign, number in chain.moves:
        result = value + number if sign == "+" else value - number
        if rng.random() < SLIPS:
            result = max(0, result + rng.choice((-2, -1, 1, 2)))
        lines.append(f"{value}{sign}{number}={result}")
        value = result
    return "\n".join([*lines, f"\\boxed{{{value}}}"])


def warm_start(folder: Path, steps: int) -> None:
    """Train a small model on solutions with slips, and save it with its tokenizer."""
    model, tokenizer = make_tiny_model(layers=3, hidden=96, initializer_range=0.02, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    source, rng = chains(seed=2), random.Random(0)
    model.train()
    for step in range(1, steps + 1):
        texts = [(f"{chain.question}=\n", solution(chain, rng)) for chain in islice(source, 64)]
        pairs = [(tokenizer(p)["input_ids"], [*tokenizer(s)["input_ids"], tokenizer.eos_token_id]) for p, s in texts]
        width = max(len(prompt) + len(answer) for prompt, answer in pairs)
        ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
        labels = torch.full((len(pairs), width), -100)
        for row, (prompt, answer) in enumerate(pairs):
            ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  warm start, step {step}: loss {loss.item():.3f}", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def settings(arm: str) -> dict[str, Any]:
    """The advantage estimator and the verifiers of an arm."""
    measure = {"name": "math_steps", "label": "measure", "weight": 0, "kwargs": {"aggregate": "mean"}}
    if arm == "outcome":
        return {"advantage": "zscore", "verifiers": ["math", measure]}
    taught = {"name": "math_steps", "weight": 0, "kwargs": POLICIES[arm]}
    keywords = {"outcome_weight": 1.0, "steps_from": "math_steps"}
    return {"advantage": "process", "advantage_kwargs": keywords, "verifiers": ["math", measure, taught]}


def padding(samples: int = 200) -> None:
    """Print what samples with slips score, bare and with easy lines before them, by aggregate and policy."""
    rng = random.Random(0)
    texts = [solution(chain, rng) for chain in islice(chains(seed=3), samples)]
    columns = (0, 10, 100)
    print(f"mean score of {samples} solutions with wrong lines ({SLIPS:.0%} of all), and with easy lines before them")
    print(f"{'aggregate, policy':32s}" + "".join(f"{f'+{easy} lines':>12s}" for easy in columns))
    policies: list[dict[str, Any]] = [*POLICIES.values(), {"distinct": True, "max_steps": 3}]
    for options in [{"aggregate": how, **policy} for how in ("mean", "last", "min", "product") for policy in policies]:
        means = []
        for easy in columns:
            pad = "".join(f"{k}+{k + 1}={2 * k + 1}\n" for k in range(1, easy + 1))
            scores = [math_steps("", f"{pad}{text}\n", **options).score for text in texts]
            means.append(statistics.fmean(score for score in scores if score is not None))
        name = ", ".join([options["aggregate"], *(f"{key} {options[key]}" for key in options if key != "aggregate")])
        print(f"{name:32s}" + "".join(f"{mean:12.3f}" for mean in means))


def train(model: Path, arm: str, seed: int, updates: int, rate: float) -> dict[str, list[float]]:
    """Step accuracy and outcome of the samples of every update."""
    rows = [
        {"prompt": f"{chain.question}=\n", "answer": str(chain.answer)}
        for chain in islice(chains(seed=100 + seed), 8 * updates)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOPlusConfig(
            output_dir=folder,
            objective="dapo",
            max_steps=updates,
            num_generations=8,
            per_device_train_batch_size=64,
            max_completion_length=48,
            learning_rate=rate,
            lr_scheduler_type="constant",
            beta=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=seed,
            **settings(arm),
        )
        trainer = GRPOPlusTrainer(str(model), None, config, Dataset.from_list(rows))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "rewards/measure/mean" in log]
    return {
        "steps": [log["rewards/measure/mean"] for log in logs],
        "outcome": [log["rewards/math/mean"] for log in logs],
    }


def smoothed(values: list[float]) -> list[float]:
    """Mean of each value with those right before it."""
    return [statistics.fmean(values[max(0, at + 1 - SMOOTH) : at + 1]) for at in range(len(values))]


def reached(values: list[float], goal: float) -> int | None:
    """The first update whose smoothed value is at the goal; None if none is."""
    return next((at for at, value in enumerate(smoothed(values), 1) if at >= SMOOTH and value >= goal), None)


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def main() -> None:
    """Run the arms from every seed, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--warm-steps", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--goal", type=float, default=0.7, help="step accuracy to reach")
    parser.add_argument("--model", type=Path, help="folder that keeps the warm-started model from run to run")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["outcome", "process"])
    parser.add_argument("--padding", action="store_true", help="print what easy lines earn, and train nothing")
    parser.add_argument("--out", type=Path, help="JSON file for every number")
    given = parser.parse_args()
    if given.padding:
        padding()
        return
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or Path(folder)
        if not (model / "config.json").is_file():
            warm_start(model, given.warm_steps)
        found: dict[str, list[dict[str, list[float]]]] = {arm: [] for arm in given.arms}
        for seed in range(given.seeds):
            for arm in given.arms:
                started = time.perf_counter()
                found[arm].append(train(model, arm, seed, given.updates, given.learning_rate))
                took = time.perf_counter() - started
                steps, outcome = (smoothed(found[arm][-1][what])[-1] for what in ("steps", "outcome"))
                print(
                    f"seed {seed}, {arm}: {took:.0f} s, at the end: steps {steps:.3f}, outcome {outcome:.3f}",
                    flush=True,
                )
    print(f"\nstep accuracy, mean of {SMOOTH} updates, ± standard deviation over {given.seeds} seeds")
    print("update   " + "   ".join(f"{arm:15s}" for arm in given.arms))
    for at in range(SMOOTH - 1, given.updates, SMOOTH):
        cells = [spread([smoothed(run["steps"])[at] for run in found[arm]]) for arm in given.arms]
        print(f"{at + 1:6d}   " + "   ".join(f"{cell:15s}" for cell in cells))
    print(f"\nupdates until step accuracy {given.goal} (-: not within {given.updates}), seed by seed")
    for arm in given.arms:
        marks = [reached(run["steps"], given.goal) for run in found[arm]]
        print(f"{arm:8s} {'  '.join('-' if mark is None else str(mark) for mark in marks)}")
    print("\noutcome reward at the end")
    for arm in given.arms:
        print(f"{arm:8s} {spread([smoothed(run['outcome'])[-1] for run in found[arm]])}")
    if given.out is not None:
        arguments = {name: str(value) for name, value in vars(given).items()}
        given.out.write_text(json.dumps({"arguments": arguments, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
