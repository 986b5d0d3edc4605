"""Sweeps on a real Ray cluster of two workers on this machine: same results, lost machines, signals, what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_plus
from grpo_plus.cli import naming_us
from grpo_plus.ray import sweep as on_ray
from grpo_plus.sweep.manifest import locked, open_manifest
from grpo_plus.sweep.runner import StopSignals, log_tail
from grpo_plus.sweep.show import SweepProgress
from grpo_plus.sweep.vary import SweepError
from tests.cli.stand_in_runs import order, stand_in
from tests.two_steps import TRAINING, write_data
from tests.waiting import comes, gone

pytestmark = [pytest.mark.engine("ray"), pytest.mark.slow]

STARTED = 120
"""Seconds that a run may take until it has started: two cores, and Ray starts Python for it first."""

REWARDS = '''
import os

def digits(completions, **columns):
    """Share of digits; tells on which machine it was asked."""
    with open(os.path.join(os.path.dirname(__file__), "machines"), "a") as file:
        file.write(os.environ.get("MACHINE", "here") + "\\n")
    return [sum(c.isdigit() for c in str(text)) / 8 for text in completions]
'''

SWEEP = (sys.executable, "-m", "grpo_plus.cli", "sweep")
BEFORE = "from grpo_plus.cli import end_with_parent\nend_with_parent()\n"


@pytest.fixture(scope="module")
def cluster():
    """A head that holds no run, and workers "one" and "two" of one CPU each, in processes of their own."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for name in ("one", "two"):
            made.add_node(num_cpus=1, env_vars={"MACHINE": name})
        yield made
    finally:
        made.shutdown()


@pytest.fixture(autouse=True)
def in_its_folder(cluster, tmp_path, monkeypatch):
    """Every sweep is started in the test's folder, and finds the cluster by its address; it soon says what it lacks."""
    monkeypatch.setattr(on_ray, "PATIENCE", 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)


@pytest.fixture
def config(tmp_path, tiny_model):
    write_data(tmp_path, REWARDS)
    (tmp_path / "config.yaml").write_text(TRAINING.format(model=tiny_model, folder=tmp_path))
    return tmp_path / "config.yaml"


@pytest.fixture
def fake(tmp_path):
    """Makes a plan whose runs run a script; gives the plan and a function that runs it in the cluster."""
    (tmp_path / "c.yaml").write_text("learning_rate: 1e-3\n")

    def fake(body, seeds="2", vary="advantage=zscore"):
        plan = stand_in(tmp_path, body, seeds=seeds, vary=vary, out=Path("sweep"), before=BEFORE)

        def go(tick=None, **changes):
            share = on_ray.TaskContext(plan, naming_us, **changes)
            with locked(plan.out), on_ray.connected() as ray:
                manifest = open_manifest(plan)
                line, stop = SweepProgress(manifest), StopSignals()
                if tick is not None:
                    paint, line.tick = line.tick, lambda live, signals: tick() or paint(live, signals)
                with stop.listening():
                    on_ray.RaySweep(ray, share).run_all(manifest, line, stop)
            return [manifest.of(run).state for run in plan.runs]

        return plan, go

    return fake


def sweep(*arguments, **keywords):
    told = {"capture_output": True, "text": True, "timeout": 280}
    return subprocess.run([*SWEEP, *map(str, arguments)], check=False, **told, **keywords)


def entries(folder):
    return json.loads((folder / "sweep.json").read_text())["runs"]


def logged(folder):
    found = {}
    for path in sorted(folder.glob("*/seed-*/grpo_plus/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[f"{path.parts[-4]}/{path.parts[-3]}"] = [
            {key: row["values"].get(key) for key in ("reward", "loss", "kl", "grad_norm", "entropy", "learning_rate")}
            for row in rows
            if row["kind"] == "train"
        ]
    return found


def test_two_workers_give_what_one_machine_gives_one_by_one(config, tmp_path):
    given = (config, "--vary", "beta=0,0.1", "--seeds", "2")
    alone = sweep(*given, "--out", "alone")
    assert alone.returncode == 0, alone.stderr
    (tmp_path / "machines").unlink()
    spread = sweep(*given, "--out", "spread", "--on", "ray")
    assert spread.returncode == 0, spread.stderr
    assert set((tmp_path / "machines").read_text().split()) == {"one", "two"}
    assert len(logged(tmp_path / "alone")) == 4
    assert logged(tmp_path / "spread") == logged(tmp_path / "alone")
    kept = [
        {name: entry["results"]["final reward"] for name, entry in entries(tmp_path / each).items()}
        for each in ("alone", "spread")
    ]
    assert kept[0] == kept[1]
    assert len(set(kept[0].values())) > 1
    assert "report: spread/report.html" in spread.stdout
    again = sweep(*given, "--out", "spread", "--on", "ray", env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"})
    assert again.returncode == 0, "nothing is left, so the cluster is not even asked"
    assert [entry["attempts"] for entry in entries(tmp_path / "spread").values()] == [1] * 4


@pytest.fixture
def large(cluster):
    """Adds workers of two CPUs, which hold the runs that need two; gives those that are there by name."""
    nodes = {}

    def add(name):
        nodes[name] = cluster.add_node(num_cpus=2, env_vars={"MACHINE": name})
        return nodes

    yield add
    for node in nodes.values():
        cluster.remove_node(node)


def test_runs_of_a_worker_that_dies_go_on_from_their_checkpoints_on_another(fake, cluster, large, tmp_path, capsys):
    plan, go = fake("""
    if resumes:
        end("done", 0)
    save()
    (seen / "ready").touch()
    time.sleep(1000)
    """, seeds="1")  # fmt: skip
    large("large")
    nodes = large("other")

    def kill():
        if (tmp_path / "ready").exists() and len(nodes) == 2:
            cluster.remove_node(nodes.pop(order(tmp_path)[0][1]), allow_graceful=False)

    assert go(kill, cpus=2) == ["finished"]
    first, second = order(tmp_path)
    assert {first[1], second[1]} == {"large", "other"}
    assert [first[3], second[3]] == ["False", "True"]
    assert entries(plan.out)[plan.runs[0].name]["attempts"] == 2
    assert comes(lambda: gone(int(first[2])), 30)
    assert "seed 1: its machine was lost" in capsys.readouterr().err


def test_a_run_whose_machine_is_lost_each_time_is_left_and_goes_on_later(fake, tmp_path, capsys):
    """The script takes Ray's process with it, and a run's own signal ends it with that process."""
    plan, go = fake("""
    if resumes and (seen / "mended").exists():
        end("done", 0)
    if not resumes:
        save()
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(0)
    """, seeds="1")  # fmt: skip
    assert go() == ["stopped"]
    assert len(order(tmp_path)) == on_ray.STARTS == entries(plan.out)[plan.runs[0].name]["attempts"]
    assert "start 3 of 3)\n" in capsys.readouterr().err
    (tmp_path / "mended").touch()
    assert go() == ["finished"]
    assert order(tmp_path)[-1][3] == "True"


def test_runs_wait_for_machines_that_are_yet_to_come(fake, cluster, large, tmp_path, capsys):
    """No machine holds a run at first, as in a cluster that grows on demand; later the only one that does is lost."""
    plan, go = fake("""
    if resumes or (seen / "ready").exists():
        end("done", 0)
    save()
    (seen / "ready").touch()
    time.sleep(1000)
    """)  # fmt: skip
    said, nodes = [], None
    waits = "the cluster has 1 with 0 CPUs and 0 GPUs, 2 with 1 CPUs and 0 GPUs, of which 2 CPUs and 0 GPUs are free"

    def change():
        nonlocal nodes
        said.append(capsys.readouterr().err)
        if (tmp_path / "ready").exists() and "first" in nodes:
            said.clear()
            cluster.remove_node(nodes.pop("first"), allow_graceful=False)
        elif waits in "".join(said):  # the lost one may be in it at first
            said.clear()
            nodes = large("first" if nodes is None else "second")

    assert go(change, cpus=2) == ["finished", "finished"]
    assert [line[1] for line in order(tmp_path)] == ["first", "second", "second"]
    assert sorted(line[3] for line in order(tmp_path)) == ["False", "False", "True"]
    assert [entry["attempts"] for entry in entries(plan.out).values()] == [2, 1]


def test_a_sweep_that_waits_in_vain_ends_with_ctrl_c(fake, tmp_path, capsys):
    _, go = fake('end("done", 0)')
    said = []

    def press():
        said.append(capsys.readouterr().err)
        if "".join(said).count("still waiting for resources: a run needs 64 CPUs") == 2:
            os.kill(os.getpid(), signal.SIGINT)
            said.append("\n")

    assert go(press, cpus=64) == ["waiting", "waiting"]
    assert order(tmp_path) == []


def test_ctrl_c_lets_runs_save_starts_no_more_and_the_same_command_goes_on(fake, tmp_path, capsys):
    plan, go = fake("""
    signal.signal(signal.SIGINT, stop)
    if (seen / "pressed").exists():
        end("done", 0)
    (seen / f"ready-{os.environ['MACHINE']}").touch()
    time.sleep(1000)
    """, seeds="4")  # fmt: skip
    pressed = []

    def press():
        if len(list(tmp_path.glob("ready-*"))) == 2 and not pressed:
            (tmp_path / "pressed").touch()
            pressed.append(os.kill(os.getpid(), signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    states = go(press)
    assert sorted(states) == ["stopped", "stopped", "waiting", "waiting"]
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping: 2 runs may save and exit" in capsys.readouterr().err
    assert {machine for _, machine, *_ in order(tmp_path)} == {"one", "two"}
    codes = {entry["state"]: entry["code"] for entry in entries(plan.out).values()}
    assert codes == {"stopped": 130, "waiting": None}
    assert go() == ["finished"] * 4
    for run, state in zip(plan.runs, states, strict=True):
        assert [each[3] for each in order(tmp_path) if each[0] == run.name][-1] == str(state == "stopped")


def test_a_second_ctrl_c_ends_what_does_not_listen_with_all_it_started(fake, tmp_path):
    _, go = fake("""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    below = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"], start_new_session=True)
    (seen / "below").write_text(str(below.pid))
    (seen / "ready").touch()
    time.sleep(1000)
    """, seeds="1")  # fmt: skip
    presses = []

    def press():
        if (tmp_path / "ready").exists() and len(presses) < 2:
            presses.append(os.kill(os.getpid(), signal.SIGINT))

    assert go(press) == ["stopped"]
    assert gone(int(order(tmp_path)[0][2]))
    assert gone(int((tmp_path / "below").read_text()))


def test_an_error_of_ours_leaves_no_run_behind(fake, tmp_path):
    plan, go = fake("time.sleep(1000)", seeds="1")

    def fail():
        if order(tmp_path):
            raise RuntimeError("painting failed")

    with pytest.raises(RuntimeError, match="painting"):
        go(fail)
    assert gone(int(order(tmp_path)[0][2]))
    assert entries(plan.out)[plan.runs[0].name]["state"] == "stopped"


def test_runs_end_with_a_sweep_that_is_killed(config, tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def digits(completions, **_):\n    import os, time\n    open('told', 'a').write(f'{os.getpid()}\\n')\n    time.sleep(1000)\n"
    )
    command = [*SWEEP, str(config), "--vary", "beta=0", "--on", "ray"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert comes(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text().endswith("\n"), STARTED)
        pid = (tmp_path / "told").read_text()
        assert not gone(int(pid))
    finally:
        process.kill()
        process.wait()
    assert comes(lambda: gone(int(pid)), 60)


def test_a_run_that_fails_and_a_config_that_is_edited_meanwhile(fake, tmp_path):
    plan, go = fake('print("something is wrong")\nsys.exit(3)', seeds="1")
    assert go() == ["failed"]
    assert log_tail(plan.runs[0].log) == ["begins", "something is wrong"]
    assert entries(plan.out)[plan.runs[0].name]["code"] == 3
    plan, go = fake("""
    (seen / "c.yaml").write_text("learning_rate: 2e-3\\n")
    end("done", 0)
    """, seeds="4")  # fmt: skip
    with pytest.raises(SweepError, match="was changed while the sweep was running"):
        go()
    states = [entry["state"] for entry in entries(plan.out).values()]
    assert set(states) == {"finished", "waiting"}
    assert 1 <= states.count("finished") <= 2, "each worker holds one"
    assert len(order(tmp_path)) == 1 + states.count("finished")


def test_machines_that_lack_something_are_named_with_what_they_lack(fake, cluster, large, tmp_path):
    plan, go = fake('end("done", 0)', seeds="1")
    share = on_ray.TaskContext(plan, naming_us, folder="/nowhere")
    assert "the folder /nowhere, where the sweep was started, is not there" in on_ray.lacks(share)
    with pytest.raises(SweepError, match=r"(?s)cannot take part in the sweep: \S+: the folder /nowhere.*Resume with"):
        go(folder="/nowhere")

    large("large")
    lock = "(pathlib.Path('sweep') / '.lock').write_text('f' * 32 + ' 0')"
    other, go_on = fake(f"{lock}\nend('done', 0)", seeds="2")
    with pytest.raises(SweepError, match=r"sweep's folder /\S*/sweep is not there, or is another one"):
        go_on(cpus=2)
    assert [entry["state"] for entry in entries(other.out).values()] == ["finished", "waiting"]
    (tmp_path / "order").unlink()
    ours = Path(grpo_plus.__file__).parent
    shutil.copytree(ours, tmp_path / "old/grpo_plus", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bare/grpo_plus").mkdir(parents=True)
    for name, expected in (("old", r"grpo_plus is 0\.0\.9 there and \S+ here"), ("bare", "No module named 'grpo_plus")):
        (tmp_path / name / "grpo_plus/__init__.py").write_text('__version__ = "0.0.9"\n')
        node = cluster.add_node(num_cpus=3, env_vars={"PYTHONPATH": str(tmp_path / name)})
        try:
            said = f"(?s)cannot take part in the sweep: .*{expected}.*the same grpo_plus"
            with pytest.raises(SweepError, match=said):
                go_on(cpus=3)
        finally:
            cluster.remove_node(node)
    assert order(tmp_path) == []
    assert go_on() == ["finished", "finished"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://somewhere"])
def test_a_cluster_that_does_not_answer_is_said_at_once(config, tmp_path, address):
    done = sweep(config, "--vary", "beta=0,0.1", "--on", "ray", env=os.environ | {"RAY_ADDRESS": address})
    assert done.returncode == 2
    assert f"no Ray cluster answers at RAY_ADDRESS={address}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("out-sweep/beta*"))


@pytest.mark.parametrize(
    ("given", "needed"), [(["--cpus", "64"], "64 CPUs and 0 GPUs"), (["--gpus", "1"], "1 CPUs and 1 GPUs")]
)
def test_what_no_machine_has_is_said_and_waited_for_until_ctrl_c(config, tmp_path, given, needed):
    command = [*SWEEP, str(config), "--vary", "beta=0,0.1", "--on", "ray", *given]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    try:
        assert comes(
            lambda: f"a run needs {needed} on one machine; the cluster has 1 with 0" in (tmp_path / "said").read_text()
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert not (tmp_path / "out-sweep").exists(), "the same command, or another one, starts from nothing"


def test_a_device_holds_one_run_at_a_time(fake, cluster, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray adds no GPUs where it is empty
    _, go = fake("""
    device = seen / f"device-{os.environ['CUDA_VISIBLE_DEVICES']}"
    device.touch(exist_ok=False)
    while not (seen / "both").exists():
        if len(list(seen.glob("device-*"))) == 2:
            (seen / "both").touch()
        time.sleep(0.01)
    device.unlink()
    with (seen / "devices").open("a") as file:
        file.write(device.name + "\\n")
    end("done", 0)
    """, seeds="5")  # fmt: skip
    node = cluster.add_node(num_cpus=8, num_gpus=2, env_vars={"MACHINE": "with GPUs"})
    try:
        assert go(gpus=1) == ["finished"] * 5
    finally:
        cluster.remove_node(node)
    assert set((tmp_path / "devices").read_text().split()) == {"device-0", "device-1"}


def test_runs_of_two_ranks_side_by_side_and_what_ranks_cannot_do_there(config, cluster, large, tmp_path):
    """Two launchers on one machine: each needs a port of its own."""
    ranks = (config, "--vary", "beta=0,0.1", "--on", "ray", "--num_processes", "2")
    done = sweep(*ranks, "--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "127.0.0.1")
    assert done.returncode == 2
    assert "spread over 2 machines, but with --on ray each uses one: set num_machines to 1" in done.stderr
    large("large")
    large("other")
    done = sweep(*ranks)
    assert done.returncode == 0, done.stderr
    starts = [line.partition("]")[2] for line in done.stderr.splitlines() if line.startswith("[")]
    assert ["started on" in line for line in starts] == [True, True, False, False], "side by side"
    assert set((tmp_path / "machines").read_text().split()) == {"large", "other"}
    for entry in entries(tmp_path / "out-sweep").values():
        assert entry["state"] == "finished"
