"""Two ranks: a run that is killed, or runs that go on from what it left, beside whole ones."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from fixed import WORLD, build, sharded, weights
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from grpo_plus import GRPOPlusTrainer
from grpo_plus.checkpoints import manifest
from grpo_plus.training.resume.state import StateError

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "rollout": "auto", "seed": 11}
REFERENCE = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2}
INSIDE = {"steps_per_generation": 4, "num_iterations": 2}
RUNS = {
    "FULL_STATE_DICT": {**SAVED, **REFERENCE, **INSIDE, "ref_model_mixup_alpha": 0.6},
    "SHARDED_STATE_DICT": {**SAVED, **REFERENCE, "ref_model_mixup_alpha": 1.0, "lora": True},
    "SHARDED_STATE_DICT, full": {**SAVED, **REFERENCE, **INSIDE, "ref_model_mixup_alpha": 0.6},
    "FULL_STATE_DICT, LoRA": {**SAVED, **REFERENCE, "ref_model_mixup_alpha": 1.0, "lora": True},
}
LAST = 3


class Killed(TrainerCallback):
    """The second rank dies within the step after the last checkpoint."""

    def on_pre_optimizer_step(self, _args, state, _control, **_):
        if state.global_step == LAST and int(os.environ["RANK"]) == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Steps(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_step_end(self, _args, state, _control, **_):
        self.seen.append(state.global_step)


def made(model, folder, name, **changed):
    os.environ["FSDP_STATE_DICT_TYPE"] = name.split(",")[0]
    os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(name != "SHARDED_STATE_DICT, full").lower()
    return build(model, folder, kind=GRPOPlusTrainer, **{**RUNS[name], **changed})


def ended(trainer):
    kept = {f"model {name}": weight for name, weight in weights(trainer.model).items()}
    if trainer.ref_model is not None:
        kept |= {f"reference {name}": weight for name, weight in weights(trainer.ref_model).items()}
    for number, state in enumerate(trainer.optimizer.state.values()):
        kept |= {
            f"{number} {key}": value.to_local() if isinstance(value, DTensor) else value for key, value in state.items()
        }
    return kept


def history(trainer):
    left_out = ("time", "runtime", "per_second", "latency", "verification")
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in left_out)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]


def refusal(trainer, checkpoint):
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except StateError as error:
        return str(error)
    return None


def main(folder, model, *killed):
    torch.set_num_threads(1)
    folder = Path(folder)
    if WORLD == 1:
        name = "FULL_STATE_DICT"
        alone = made(model, folder / "alone", name)
        (folder / "alone.txt").write_text(refusal(alone, folder / "killed" / name / f"checkpoint-{LAST}"))
        return
    if killed:
        trainer = made(model, folder / "killed" / killed[0], killed[0])
        trainer.add_callback(Killed())
        trainer.train()
        raise SystemExit("it was not killed")
    found = {}
    for name in RUNS:
        whole = made(model, folder / "whole" / name, name)
        whole.train()
        rank = whole.accelerator.process_index
        at = folder / ("killed" if (folder / "killed" / name).exists() else "whole") / name
        files = sorted(manifest.read(at / f"checkpoint-{LAST}").files)
        again = made(model, folder / "again" / name, name)
        again.train(resume_from_checkpoint=str(at / f"checkpoint-{LAST}"))
        sharded(again)
        mine, truth = ended(again), ended(whole)
        assert mine.keys() == truth.keys()
        found[name] = {
            "killed": at.parent.name == "killed",
            "unlike": [key for key, value in truth.items() if not torch.equal(value, mine[key])],
            "history": [history(again), history(whole)] if rank == 0 else [],
            "files": files,
        }
    other = made(model, folder / "other", "SHARDED_STATE_DICT, full")
    found["other layout"] = refusal(other, folder / "killed/FULL_STATE_DICT" / f"checkpoint-{LAST}")
    torn = folder / "whole/SHARDED_STATE_DICT, full"
    if rank == 0:
        os.truncate(torn / "checkpoint-4/pytorch_model_fsdp_0/__1_0.distcp", 100)
    other.accelerator.wait_for_everyone()
    last = made(model, torn, "SHARDED_STATE_DICT, full")
    steps = Steps()
    last.add_callback(steps)
    last.train(resume_from_checkpoint="last")
    found["torn"] = steps.seen
    assert last.pipeline.saving.save_model(folder / "final") is None
    truth = weights(last.model)
    if rank == 0:
        saved = load_file(folder / "final/model.safetensors")
        found["final"] = [name for name, weight in saved.items() if not torch.equal(weight, truth[name])]
        found["final"] += sorted(truth.keys() - saved.keys() - {"lm_head.weight"})
    Path(folder, f"rank {rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
