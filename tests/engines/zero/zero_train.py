"""Runs on the ranks there are, one after the other in one process: `zero_train.py FOLDER MODEL JOBS`.

JOBS is a JSON list of `{"name": ..., "stage": 1, 2, 3 or null, ...}` with keys of `run`. What each gave is in
FOLDER/NAME.json. Completions depend on their place in the whole batch and on the step, unless a job draws.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import transformers.training_args
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.engine import facts_of
from grpo_plus.evaluation.measure import Measure
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers import verifier

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
PROMPTS = ["1+2=", "12+34+5=", "4=", "90-12=", "7*8=", "123+4=", "5-5=", "66="]
SUFFIX = "ab3d5fghij"


def completion(row, step):
    return SUFFIX[: 2 + (5 * row + step) % 9] + "xyz"[(row + step) % 3] * (row % 4)


def rollout(prompts, trainer):
    tokenizer, step = trainer.processing_class, trainer.state.global_step
    rows = range(RANK * len(prompts), (RANK + 1) * len(prompts))
    return {
        "prompt_ids": [tokenizer.encode(prompt) for prompt in prompts],
        "completion_ids": [
            tokenizer.encode(completion(row, step)) + [tokenizer.eos_token_id] * (row % 2) for row in rows
        ],
        "logprobs": None,
        "row": list(rows),
    }


def mixed(completions, row, **_):
    return [None if r == 2 else len(set(text)) / 5 for r, text in zip(row, completions, strict=True)]


def first_half_only(completions, row, **_):
    """The groups of the second rank are without contrast: it has nothing to train on."""
    return [len(set(text)) / 5 if r < 8 else 1.0 for r, text in zip(row, completions, strict=True)]


def drawn(completions, **_):
    return [float(sum(map(ord, text)) % 5) for text in completions]


def steps(completion_ids, row, **_):
    return [
        [(at, min(at + 2, len(ids)), float((r * 7 + at) % 3)) for at in range(0, len(ids) - 1, 2)]
        for r, ids in zip(row, completion_ids, strict=True)
    ]


@verifier("even", isolation="inline")
def even(completion: str) -> bool:
    return sum(map(ord, completion)) % 2 == 0


MEASURED = {"n": 3, "limit": 5, "batch": 4, "max_completion_length": 9}
ROWS = Dataset.from_dict({"prompt": [f"{number}+{number * 7 % 10}=" for number in range(16)]})
REWARDS = {"mixed": mixed, "half": first_half_only, "drawn": drawn}


def enter(stage, precision):
    """Make the next trainer run under this stage; None for DDP, or a single process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage is not None).lower()
    if stage is None:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
    else:
        os.environ.pop("ACCELERATE_USE_CPU", None)
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = str(stage)
        for name in ("ZERO3_INIT", "ZERO3_SAVE_16BIT_MODEL"):
            os.environ[f"ACCELERATE_DEEPSPEED_{name}"] = str(stage == 3).lower()


FLAGS = ("lora", "four", "draws", "scorer", "evaluates", "measures")
SETTINGS = {"report_to": "none", "max_steps": 3, "num_generations": 4, "gradient_accumulation_steps": 2, "optim": "sgd"}
SETTINGS |= {"max_completion_length": 16, "learning_rate": 0.5, "lr_scheduler_type": "constant", "logging_steps": 1}
SETTINGS |= {"save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False, "shuffle_dataset": False}
SETTINGS |= {"temperature": 1.0, "beta": 0.0, "seed": 3, "report": False, "per_device_train_batch_size": 8 // WORLD}


def run(folder, name, model, *, stage=None, reward="mixed", precision="no", environment=None, resume=None, **settings):
    os.environ.update(environment or {})
    enter(stage, precision)
    lora, four, draws, scorer, evaluates, measures = (settings.pop(flag, False) for flag in FLAGS)
    own = {"output_dir": str(folder / name), "use_cpu": stage is None, "bf16": precision == "bf16"}
    values = {**own, **SETTINGS, **settings}
    if stage is not None:
        values["ddp_backend"] = "gloo"
        transformers.training_args.is_torch_bf16_gpu_available = lambda: True  # asked for where use_cpu is false
    config = GRPOPlusConfig(**values)
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="float32")
    torch.manual_seed(7)
    trainer = GRPOPlusTrainer(
        model,
        [REWARDS[reward]],
        config,
        Dataset.from_dict({"prompt": PROMPTS}),
        Dataset.from_dict({"prompt": PROMPTS[:4]}) if evaluates else None,
        rollout_func=None if draws else rollout,
        step_scorer=steps if scorer else None,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
        quantization_config=quantised if four else None,
    )
    if lora:
        known_start(trainer)
    seen = []
    inner = trainer._generate_and_score_completions

    def noted(inputs):
        output = inner(inputs)
        mask = output["completion_mask"].bool()
        seen.append([ids[kept].tolist() for ids, kept in zip(output["completion_ids"], mask, strict=True)])
        return output

    trainer._generate_and_score_completions = noted
    measure, said = Measure(MEASURED, trainer, ROWS) if measures else None, []
    if measure:
        measure.before(said.append, resumes=resume is not None)
    trainer.train(resume_from_checkpoint=resume and str(folder / resume))
    problem = trainer.pipeline.saving.save_model(folder / name)
    assert problem is None, problem
    if measure:
        said.append(measure.take("after"))
    kept = measure.evaluations.items() if measure else ()
    measured = {when: [one.as_json() for one in found.samples] for when, found in kept}
    every = gather_objects([seen])
    metrics = gather_objects([trainer.engine.metrics])
    return {
        "kind": facts_of(trainer, trainer.objective).kind,
        "wrapper": type(trainer.model_wrapped).__name__,
        "in_pieces": sum(hasattr(weight, "ds_id") for weight in trainer.model.parameters()),
        "dtype": str(next(trainer.model.parameters()).dtype),
        "drawn": every,
        "engine": metrics,
        "lean": trainer.pipeline.lean.rollout is not None,
        "stock_drew": getattr(trainer.pipeline.lean.rollout, "stock", None),
        "logs": [entry for entry in trainer.state.log_history if "loss" in entry],
        "evaluations": [entry for entry in trainer.state.log_history if "eval_reward" in entry],
        "said": said,
        "measured": measured,
        "reference": getattr(reference_of(trainer), "refreshed", None),
    }


def known_start(trainer):
    """An adapter that is not nothing, the same everywhere: B begins at zero, which would leave A without a gradient."""
    from grpo_plus.trl.ranks import whole

    named = [(name, weight) for name, weight in trainer.model.named_parameters() if "lora_" in name]
    with whole([weight for _, weight in named], change=True), torch.no_grad():
        for name, weight in named:
            made = torch.Generator().manual_seed(sum(map(ord, name.replace(".ref", ".default"))))
            weight.copy_(torch.randn(weight.shape, generator=made) * 0.1)


def reference_of(trainer):
    named = (hook for hook in trainer.pipeline.stages if hook.name in ("reference", "reference_model") and hook._active)
    return next(named, None)


def main(folder, model, jobs):
    for job in jobs:
        name = job.pop("name")
        try:
            found = run(folder, name, model, **job)
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        if RANK == 0:
            (folder / f"{name}.json").write_text(json.dumps(found))
            print(name, json.dumps(found)[:600], flush=True)
        gc.collect()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
