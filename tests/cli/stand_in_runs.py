"""Sweeps whose runs are a script in the place of training, which starts in no time."""

import sys
import textwrap

from grpo_plus.sweep.plan import SweepPlan, make_plan
from grpo_plus.sweep.vary import read_seeds, read_variants

SCRIPT = """
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("--output_dir=")).partition("=")[2])
state = folder / "grpo_plus"
seen = pathlib.Path(SEEN)
resumes = any("resume" in word for word in sys.argv)
with (seen / "order").open("a") as file:
    file.write(f"{folder.parent.name}/{folder.name} {os.environ.get('MACHINE', 'here')} {os.getpid()} {resumes}\\n")
def end(status, code):
    (state / "run.json").write_text(json.dumps({"schema": 1, "status": status, "max_steps": 2}))
    rows = [{"kind": "train", "step": step, "values": {"reward": len(folder.parent.name) + step}} for step in (1, 2)]
    (state / "metrics.jsonl").write_text("\\n".join(map(json.dumps, rows)) + "\\n")
    sys.exit(code)
def save():
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    (folder / "checkpoint-2" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
def stop(*_):
    save()
    end("interrupted", 130)
print("begins", " ".join(word for word in sys.argv if "resume" in word), flush=True)
"""


def stand_in(folder, body, *, seeds, vary, out, options=(), before=""):
    """A plan of a sweep with such runs; ``options`` are those of Python."""
    config, script = folder / "c.yaml", folder / "script.py"
    script.write_text(before + SCRIPT.replace("SEEN", repr(str(folder))) + textwrap.dedent(body))

    class Stand(SweepPlan):
        def command(self, run):
            return [sys.executable, *options, str(script), *run.flags]

    made = make_plan(config, read_variants([vary]), read_seeds(seeds), [], out)
    return Stand(made.config, made.values, made.shared, made.out, made.runs)


def order(folder):
    """Of each run that was started: name, machine, process, and whether it resumes."""
    path = folder / "order"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
