"""The objective `target` on a CPU, in seconds: probabilities move to their targets, arrive, and training stops there.

A tiny model is made on the spot and rewarded for digits. One batch of completions is trained on for up to 60 inner
iterations; once 95% of the tokens that have a target are within 0.01 nats of it, the rest is skipped.
"""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

ITERATIONS = 60


def digits(completions: Sequence[str], **_: Any) -> list[float]:
    """The share of digits in each completion."""
    return [sum(character.isdigit() for character in text) / max(1, len(text)) for text in completions]


def train(folder: str) -> Any:
    """Train on one generation batch; returns the trainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.testing import make_tiny_model

    class Progress(TrainerCallback):
        """One line for each iteration."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            """Print how far the tokens are."""
            if "target/at_target" in logs and (state.global_step < 6 or state.global_step % 5 == 0):
                share, left = logs["target/at_target"], logs["target/distance"]
                print(f"iteration {state.global_step:3}: {share:6.1%} at their target, {left:.3f} nats left on average")

    make_tiny_model(folder, vocab="0123456789+= ")
    config = GRPOPlusConfig(
        output_dir=f"{folder}/out",
        objective={"name": "target", "stop_fraction": 0.95},
        advantage="sign",
        num_iterations=ITERATIONS,
        max_steps=ITERATIONS,
        num_generations=8,
        per_device_train_batch_size=32,
        max_completion_length=8,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=3,
    )
    prompts = Dataset.from_dict({"prompt": ["1+1=", "2+2=", "30+4=", "5+50="]})
    trainer = GRPOPlusTrainer(folder, digits, config, prompts, callbacks=[Progress()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def report(trainer: Any, prompt: str = "1+1=") -> None:
    """How likely the model's next token is, for the first token of the sampled completions of one prompt."""
    import torch

    tokenizer, model = trainer.processing_class, trainer.model.eval()
    with torch.no_grad():
        now = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1].softmax(-1)
    (batch,) = trainer._buffered_inputs  # noqa: SLF001 - only to show what training looked at
    seen = set()
    print(f"\nafter {prompt!r:22}before   target      now")
    for row in range(len(batch["prompt_ids"])):
        text = tokenizer.decode(batch["prompt_ids"][row], skip_special_tokens=True)
        token, sign = int(batch["completion_ids"][row, 0]), float(batch["target_sign"][row, 0])
        if text != prompt or token in seen or not sign:
            continue
        seen.add(token)
        before, goal = (batch[name][row, 0].exp() for name in ("old_per_token_logps", "target_logps"))
        word = repr(tokenizer.decode([token]))
        print(f"  {'up  ' if sign > 0 else 'down'} {word:16} {before:7.4f}  {goal:7.4f}  {now[token]:7.4f}")


def main() -> None:
    """Train, and say what happened."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(folder)
        skipped = sum("inner/skipped" in entry for entry in trainer.state.log_history)
        print(f"\n{ITERATIONS - skipped} iterations ran, {skipped} were skipped")
        report(trainer)


if __name__ == "__main__":
    main()
