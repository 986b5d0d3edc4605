"""A run that writes down what it does: prompts, completions, rewards, micro-batches, log entries, and its end."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from benchmarks.resume.places import Kill, Places
from benchmarks.resume.scenarios import Scenario, make_trainer
from grpo_plus.checkpoints.folder import last_checkpoint
from grpo_plus.record import open_run

TIMES = ("time", "runtime", "per_second", "seconds", "latency", "memory/")
"""Parts of the names of metrics that tell of the machine."""


def untimed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without those of the clock."""
    return {name: value for name, value in values.items() if not any(part in name for part in TIMES)}


def digest(value: Any) -> str:
    """A hash of tensors and plain values, bit for bit."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()[:16]


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            found.update(str(key).encode())
            _feed(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(b"[")
        for item in value:
            _feed(found, item)
    else:
        found.update(repr(value).encode())


class Trace:
    """A file of events: a kind, the step and the micro-step where it happened, and a value that can be compared."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, kind: str, step: int, index: int, value: Any) -> None:
        """Write one line at once."""
        os.write(self._file, (json.dumps([kind, step, index, value]) + "\n").encode())


def watching(trace: Trace, places: Places) -> Callable[[type], type]:
    """Make of a trainer's class one that tells what happens, and dies where it is to."""

    def watched(kind: type) -> type:
        class Watched(kind):  # type: ignore[misc]
            """The trainer, watched."""

            _at = (0, 0)
            _trains = False
            _evaluations = 0

            def _where(self) -> tuple[str, int, int]:
                if self._trains:
                    return "", *self._at
                return "evaluation's ", self.state.global_step, self._evaluations

            def training_step(self, *given: Any, **keywords: Any) -> Any:
                step = self.state.global_step
                self._at = (step, self._at[1] + 1 if self._at[0] == step and places.counts["micro"] else 0)
                self._trains = True
                loss = super().training_step(*given, **keywords)
                self._trains = False
                trace.add("loss", *self._at, digest(loss))
                places.reached("micro")
                return loss

            def _prepare_inputs(self, *given: Any) -> Any:
                inputs = super()._prepare_inputs(*given)
                name, step, index = self._where()
                trace.add(f"{name}micro-batch", step, index, digest(dict(inputs) if inputs else None))
                return inputs

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                self._evaluations += not self._trains
                name, step, index = self._where()
                trace.add(f"{name}prompts", step, index, [row["prompt"] for row in inputs])
                self._rewards: list[Any] = []  # of each round of drawing
                output = super()._generate_and_score_completions(inputs)
                trace.add(f"{name}completions", step, index, digest(output["completion_ids"]))
                trace.add(f"{name}rewards", step, index, self._rewards)
                return output

            def evaluation_loop(self, *given: Any, **keywords: Any) -> Any:
                self._evaluations = 0
                return super().evaluation_loop(*given, **keywords)

            def _generate_single_turn(self, *given: Any, **keywords: Any) -> Any:
                forwards = 0

                def count(*_: Any) -> None:
                    nonlocal forwards
                    forwards += 1
                    if forwards == 2:
                        places.reached("rollout" if self._trains else "evaluation")

                embedding = self.accelerator.unwrap_model(self.model).get_input_embeddings()
                handle = embedding.register_forward_hook(count)
                try:
                    return super()._generate_single_turn(*given, **keywords)
                finally:
                    handle.remove()

            def _calculate_rewards(self, *given: Any, **keywords: Any) -> Any:
                rewards = super()._calculate_rewards(*given, **keywords)
                self._rewards.append(digest(rewards))
                return rewards

            def _save_checkpoint(self, *given: Any, **keywords: Any) -> None:
                with places.writing():
                    super()._save_checkpoint(*given, **keywords)
                places.reached("saved")

        return Watched

    return watched


class Seams(TrainerCallback):
    """The places and events that callbacks see."""

    def __init__(self, trace: Trace, places: Places) -> None:
        self._trace, self._places = trace, places

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are there, weights as before."""
        self._places.reached("gradients")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Weights have moved, nothing else has."""
        self._places.reached("moved")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """A log entry; the last one tells of this call of `train`: its time, and the mean loss of its steps."""
        del args, control
        if "train_runtime" not in logs:
            kind = "evaluation's log" if "eval_loss" in logs else "log"
            self._trace.add(kind, state.global_step, 1000 if "eval_loss" in logs else 0, untimed(logs))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Nothing more is trained."""
        self._places.reached("end")


def train(scenario: Scenario, folder: Path, model: Path, kill: Kill | None, *, stock: bool, rank: int) -> None:
    """Train in ``folder`` until the end or the kill, resuming where something can be resumed."""
    torch.set_num_threads(1)
    trace, places = Trace(folder / f"trace_{rank}.jsonl"), Places(kill)
    places.watch_files()

    def letters(completions: list[str], **_: Any) -> list[float]:
        places.reached("reward")
        return [sum(map(ord, text)) % 11 / 11 for text in completions]

    out = folder / "out"
    trainer = make_trainer(scenario, model, out, letters, stock=stock, watched=watching(trace, places))
    trainer.add_callback(Seams(trace, places))
    if stock:
        found: Any = bool(out.exists() and get_last_checkpoint(str(out)))
    else:
        checkpoint = last_checkpoint(out)
        found = None if checkpoint is None else str(checkpoint)
    trainer.train(resume_from_checkpoint=found)
    places.reached("returned")
    torch.save(_end(trainer, out if rank == 0 and not stock else None), folder / f"end_{rank}.pt")
    (folder / f"places_{rank}.json").write_text(json.dumps(places.counts))


def _lasting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the record without those that tell of one call of `train`."""
    return {name: value for name, value in untimed(values).items() if name not in ("train_loss", "total_flos")}


def _end(trainer: Any, record: Path | None) -> dict[str, Any]:
    """What a run ends with."""
    reference = getattr(trainer, "ref_model", None)
    end = {
        "weights": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
        "reference model": {} if reference is None else trainer.accelerator.unwrap_model(reference).state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
    }
    if trainer.is_world_process_zero():  # the others take it over from there when they resume
        end["log history"] = [untimed(one) for one in trainer.state.log_history if "train_runtime" not in one]
    if record is not None:
        run = open_run(record)
        entries = [[one["kind"], one["step"], _lasting(one["values"])] for one in run.entries]
        groups = [{key: value for key, value in one.items() if key != "time"} for one in run.groups()]
        end |= {"record": entries, "record's groups": groups}
    return end | {"random state": [repr(random.getstate()), repr(np.random.get_state()), torch.get_rng_state()]}  # noqa: NPY002
