"""Kill copies of a process at every file event while they save a checkpoint beside a torn one, of which one is kept."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from grpo_plus import GRPOPlusTrainer
from grpo_plus.checkpoints.folder import checkpoints, choose, is_intact, rotate
from tests.trainer.resumed_ranks import SPOKEN, made

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")


class Killer:
    """Ends this process with SIGKILL at the n-th event inside a folder."""

    def __init__(self, folder, at, note):
        self.folder, self.at, self.note, self.seen = str(folder), at, note, 0

    def __call__(self, event, arguments):
        if event not in EVENTS or not arguments or self.note is None:
            return
        path = arguments[0]
        if event == "open" and isinstance(path, int):
            return
        path = os.fspath(path) if isinstance(path, str | bytes | os.PathLike) else ""
        path = os.fsdecode(path)
        relative = not path.startswith("/") and event in {"os.remove", "os.rmdir"}  # rmtree works from inside
        if path.startswith(self.folder) or relative:
            self.seen += 1
            if self.seen == self.at:
                note, self.note = self.note, None
                note.write_text(f"{event} {path}")
                os.kill(os.getpid(), signal.SIGKILL)


def copies(out, save):
    """Let copies of this process save, each killed a little later, until one gets through: a line of JSON for each."""
    backup, note = out.with_name("backup"), out.with_name("event")
    os.truncate(shutil.copytree(out / "checkpoint-1", out / "checkpoint-2") / "model.safetensors", 99)
    shutil.copytree(out, backup)
    for at in range(1, 1000):
        note.write_text("")
        child = os.fork()
        if child == 0:
            sys.addaudithook(Killer(out, at, note))
            try:
                save()
                sys.stdout.flush()
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        found = choose(out)
        one = {
            "killed": killed, "event": note.read_text(), "chosen": found.checkpoint and found.checkpoint.name,
            "whole": [path.name for path in checkpoints(out) if is_intact(path)], "passed_over": found.passed_over,
            "began": (out / "checkpoint-2").exists(),
        }  # fmt: skip
        rotate(out, 1)
        one["after"] = sorted(path.name for path in out.iterdir() if "checkpoint" in path.name)
        print(json.dumps(one), flush=True)
        shutil.rmtree(out)
        shutil.copytree(backup, out)
        if not killed:
            break


class Copying(GRPOPlusTrainer):
    def _save_checkpoint(self, model, trial):
        save = super()._save_checkpoint
        if self.state.global_step == 2:
            copies(Path(self.args.output_dir), lambda: save(model, trial))
            os._exit(0)
        save(model, trial)


def main(folder, model):
    settings = {"save_total_limit": 1, "report": False, "optim": "adamw_torch"}
    made(model, Path(folder) / "out", kind=Copying, data=SPOKEN * 4, **settings).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
