"""What a command has started ends with it when it is killed: ranks with their launcher, runs with their sweep."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import comes, gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends a process with its parent")

WAITING = """
def waiting(completions, **_):
    import os, time
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
    return [0.0 for _ in completions]
"""

CHILD = "import time; from grpo_plus.cli import end_with_parent; end_with_parent(); print('goes on', flush=True); time.sleep(600)"
PARENT = """
import os, subprocess, sys, time
from grpo_plus.cli import naming_us
how, child = sys.argv[1:]
environment = dict(os.environ)
if how == "rank of another launcher":
    environment["TORCHELASTIC_RUN_ID"] = "none"
elif how != "run of a shell":
    environment = naming_us(environment)
command = [sys.executable, "-c", child]
if how == "launcher of another in between":
    command = [sys.executable, "-S", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *command]
elif how == "parent that died before":
    environment["GRPO_PLUS_PARENT"] = str(2**22 + 1)  # no process has so high a number
print(subprocess.Popen(command, env=environment).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree():
    known = set()

    def tree(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            known.update([process, *process.children(recursive=True)])
        return [each for each in known if not gone(each)]

    yield tree
    for each in known:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


HOWS = {"run of a sweep": True, "rank of another launcher": True, "parent that died before": True}
HOWS |= {"run of a shell": False, "launcher of another in between": False}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "ends"), HOWS.items())
def test_a_process_ends_with_its_sweep_or_launcher_and_not_with_a_shell(how, ends, tree):
    with subprocess.Popen([sys.executable, "-c", PARENT, how, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        if how != "parent that died before":  # which its child does not wait for
            assert parent.stdout.readline() == "goes on\n"
        tree(psutil.Process(parent.pid))
        if how != "parent that died before":
            parent.kill()
        assert comes(lambda: gone(child), 30 if ends else 0.3) == ends
        parent.kill()


LAUNCHERS = {
    "ours": "grpo_plus.cli train CONFIG --num_processes 2",
    "accelerate": "accelerate.commands.launch --num_machines 1 --mixed_precision no --dynamo_backend no --multi_gpu "
    "--num_processes 2 --main_process_port PORT --module grpo_plus.cli train CONFIG",
    "torchrun": "torch.distributed.run --nproc_per_node 2 --master_port PORT --module grpo_plus.cli train CONFIG",
    "a sweep": "grpo_plus.cli sweep CONFIG --vary beta=0,0.1",
    "a sweep of two ranks each": "grpo_plus.cli sweep CONFIG --vary beta=0,0.1 --num_processes 2",
}


WAYS = [*((launcher, False) for launcher in LAUNCHERS), ("ours", True), ("a sweep", True)]


@pytest.mark.parametrize(("launcher", "whole_group"), WAYS)
@pytest.mark.nightly
def test_nothing_stays_of_a_launcher_or_sweep_that_is_killed(launcher, whole_group, config, port, tree):
    path = config("reward_funcs: [./waiting.py:waiting]\nverifiers: [math]\nper_device_train_batch_size: 4")
    folder = Path(path).parent
    (folder / "waiting.py").write_text(WAITING)
    told, temporary = folder / "told", folder / "temporary"
    temporary.mkdir()
    words = {"CONFIG": str(path), "PORT": str(port())}
    command = [sys.executable, "-m", *(words.get(word, word) for word in LAUNCHERS[launcher].split())]
    env = os.environ | {"TOLD": str(told), "TMPDIR": str(temporary), "ACCELERATE_USE_CPU": "true"}
    silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, env=env, start_new_session=True, cwd=folder, **silent)
    top = psutil.Process(process.pid)
    wanted = 1 if launcher == "a sweep" else 2
    assert comes(lambda: told.exists() and len(told.read_text().split()) == wanted, 240)
    assert len(tree(top)) > 1 + wanted, "workers, too"
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()

    def left():
        # The next process of ours removes the folder of a launcher that was killed.
        theirs = ("torchinductor_", "torchelastic_" if launcher in ("accelerate", "torchrun") else "grpo-plus.")
        return [*tree(top), *(path for path in temporary.iterdir() if not path.name.startswith(theirs))]

    comes(lambda: not left(), 30)
    assert left() == []
