"""Checks beside the drawing: the time of a step where programs run while completions are drawn, and where they wait.

python -m benchmarks.overlap                    # two minutes on two cores
python -m benchmarks.overlap --seconds 0.2      # longer programs

One trainer draws with a small model and runs a program in a box of the ``code`` verifier for every completion; steps
with and without the overlap take turns. What is printed are medians of rollout and scoring, and of their ratio pair by
pair.
"""

# ruff: noqa: SLF001 - the overlap has no switch
import argparse
import json
import statistics
import tempfile
from typing import Any

from transformers import TrainerCallback

from grpo_verifiers import verifier
from grpo_verifiers.code import code

PROGRAM = """```python
import time
def add(a, b):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
    return a + b
```"""
TESTS = [{"function": "add", "args": [1, 2], "expected": 3}]


@verifier("overlap_program", isolation="inline", max_concurrency=4096, timeout=3600.0)
async def program(completion: str, *, seconds: float) -> Any:
    """Run the same program, whatever the completion says."""
    verdict = await code(PROGRAM.format(seconds=seconds), TESTS)
    assert verdict.score == 1.0, verdict
    return float(len(set(completion)) % 2)


class Turns(TrainerCallback):
    """Every other step without the overlap."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Switch it."""
        trainer = self.trainer
        trainer.rollouts._rollout._drawn = trainer.verification.drawn if trainer.state.global_step % 2 else None


def measure(seconds: float, pairs: int, rows: int, flying: int, tokens: int) -> dict[str, Any]:
    """Medians of the pairs."""
    from datasets import Dataset

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.testing import make_tiny_model

    model, tokenizer = make_tiny_model(layers=4, hidden=128)
    data = Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(64)])
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOPlusConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            max_steps=2 * pairs + 2,
            num_generations=8,
            per_device_train_batch_size=rows,
            max_completion_length=tokens,
            rollout="auto",
            rollout_rows=flying,
            record=False,
            advantage="zscore",
            verifiers=[{"name": "overlap_program", "kwargs": {"seconds": seconds}}],
        )
        turns = Turns()
        trainer = GRPOPlusTrainer(model, None, config, data, processing_class=tokenizer, callbacks=[turns])
        turns.trainer = trainer
        trainer.train()
    logs = [each for each in trainer.state.log_history if "time/rollout" in each][2:]  # the first ones start boxes
    waits, beside = logs[0::2], logs[1::2]

    def cost(each: dict[str, float]) -> float:
        return each["time/rollout"] + each["time/scoring"]

    return {
        "program_seconds": seconds,
        "rows": rows,
        "in_flight": flying,
        "pairs": len(beside),
        "waiting": statistics.median(map(cost, waits)),
        "waiting_scoring": statistics.median(each["time/scoring"] for each in waits),
        "beside": statistics.median(map(cost, beside)),
        "beside_rollout": statistics.median(each["time/rollout"] for each in beside),
        "waiting_rollout": statistics.median(each["time/rollout"] for each in waits),
        "ratio": statistics.median(cost(one) / cost(two) for one, two in zip(beside, waits, strict=False)),
        "checked_early": statistics.median(each["rollout/checked_early"] for each in beside),
        "checked_early_seconds": statistics.median(each["rollout/checked_early_seconds"] for each in beside),
    }


def main() -> None:
    """Measure, and print a line of JSON for each length of a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, nargs="*", default=[0.0, 0.1])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    chosen = parser.parse_args()
    for seconds in chosen.seconds:
        found = measure(seconds, chosen.pairs, chosen.rows, chosen.in_flight, chosen.tokens)
        print(json.dumps({name: round(value, 3) for name, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
