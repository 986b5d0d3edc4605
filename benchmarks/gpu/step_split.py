"""Where the seconds of a 4-bit GRPO step go: rollout, scoring, update; stock TRL and grpo_plus in one run.

    python -m benchmarks.gpu.step_split --size 8B
    python -m benchmarks.gpu.step_split --size tiny --device cpu --completion-length 16    # that it runs at all

Needs nothing from the network. Random weights never end a completion early; ``--end-after`` makes a share of the
vocabulary end one, so that lengths differ as they do in training.
"""

import argparse
import gc
import sys
import tempfile
import time
from typing import Any

from benchmarks.gpu.random_model import SHAPES, config_of, device_problem, random_4bit_model, tokenizer


def main() -> int:
    """Time both trainers, turn about."""
    options = _parser().parse_args()
    problem = device_problem(options.device)
    if problem is not None:
        sys.exit(f"step_split: {problem}")
    import torch
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    print(f"{'':>10} {'rollout':>9} {'scoring':>9} {'update':>9} {'step':>9}   seconds a step, without the first")
    kinds = {"TRL": (GRPOTrainer, GRPOConfig, {}), "grpo_plus": (GRPOPlusTrainer, GRPOPlusConfig, {"rollout": "auto"})}
    totals = {}
    for name, (trainer, config, more) in kinds.items():
        spent = _measure(options, trainer, config, more)
        gc.collect()  # a trainer and its model hold each other, and the next one needs their place
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        totals[name] = spent["step"]
        update = spent["step"] - spent["rollout"] - spent["scoring"]
        print(
            f"{name:>10} {spent['rollout']:>9.2f} {spent['scoring']:>9.2f} {update:>9.2f} {spent['step']:>9.2f}",
            flush=True,
        )
    print(f"TRL / grpo_plus: {totals['TRL'] / totals['grpo_plus']:.2f}")
    return 0


def _measure(options: argparse.Namespace, kind: type[Any], config: type[Any], more: dict[str, Any]) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig

    device = torch.device(options.device)
    cuda = device.type == "cuda"
    times: dict[str, list[float]] = {"rollout": [], "scoring": [], "step": []}

    def timed(name: str, run: Any) -> Any:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = run()
        if cuda:
            torch.cuda.synchronize()
        times[name].append(time.perf_counter() - start)
        return result

    class Timed(kind):  # type: ignore[misc,valid-type]  # stock or ours
        def _generate_single_turn(self, *arguments: Any, **keywords: Any) -> Any:
            return timed("rollout", lambda: super(Timed, self)._generate_single_turn(*arguments, **keywords))

        def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
            def run() -> Any:
                return super(Timed, self)._get_per_token_logps_and_entropies(*arguments, **keywords)

            return run() if torch.is_grad_enabled() else timed("scoring", run)

        def training_step(self, *arguments: Any, **keywords: Any) -> Any:
            return timed("step", lambda: super(Timed, self).training_step(*arguments, **keywords))

    torch.manual_seed(0)
    model = random_4bit_model(options.size, device, torch.bfloat16 if cuda else torch.float32)
    if options.end_after:
        share = max(1, round(model.config.vocab_size / options.end_after))
        model.generation_config.eos_token_id = list(range(1, 1 + share))
    prompt = " ".join(str(number % 100) for number in range(options.prompt_length))
    with tempfile.TemporaryDirectory() as folder:
        args = config(
            output_dir=folder, max_steps=options.steps + 1, num_generations=8, beta=0.01,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=options.rows // options.micro_batch,
            max_completion_length=options.completion_length, gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=2e-5, report_to="none",
            save_strategy="no", optim="paged_adamw_8bit" if cuda else "adamw_torch", bf16=cuda, use_cpu=not cuda,
            **more,
        )  # fmt: skip
        run = Timed(
            model,
            _reward,
            args,
            Dataset.from_list([{"prompt": f"{number} {prompt}"} for number in range(64)]),
            processing_class=tokenizer(config_of(options.size).vocab_size),
            peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        run.train()
    parts = len(times["step"]) // (options.steps + 1)
    first = {"step": parts, "rollout": 1, "scoring": max(1, len(times["scoring"]) // (options.steps + 1))}
    return {name: sum(values[first[name] :]) / options.steps for name, values in times.items()}


def _reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="1.5B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32, help="completions of a generation batch")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--prompt-length", type=int, default=256)
    parser.add_argument("--completion-length", type=int, default=512)
    parser.add_argument(
        "--end-after", type=float, default=0, help="mean length of a completion in tokens; 0: never ends"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
