"""Verifiers with `isolation: ray`, on a real cluster of two nodes on this machine: the contract is that of `process`."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import grpo_verifiers
from benchmarks import labelled
from grpo_verifiers import Status, get_verifier
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.exec.runner import close_shared_runners, shared_runner
from grpo_verifiers.exec.spec import make_spec
from tests.waiting import comes, gone

pytestmark = [pytest.mark.engine("ray"), pytest.mark.slow]
CASES = Path(__file__).parents[1] / "cases"
TASKS = {
    "func": [{"function": "add", "args": [1, 2], "expected": 3}, {"function": "add", "args": [10, 5], "expected": 15}],
    "stdio": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n{3 * n}"} for n in (3, 7)],
}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


def started(nodes, **node):
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    return cluster, [cluster.add_node(**NODE, **node) for _ in range(nodes)]


@pytest.fixture(scope="module")
def home():
    cluster, _ = started(2)
    yield cluster
    close_shared_runners()
    cluster.shutdown()


@pytest.fixture
def cluster(home, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", home.address)
    monkeypatch.setenv("GRPO_VERIFIERS_RAY_PATIENCE", "30")
    return home


def actors():
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any("ray::Station" in word for word in process.cmdline()):
                found.append(process)
    return found


def ask(fn, completions, timeout=10.0, isolation="ray", **options):
    spec = make_spec(fn, memory=2 << 30, elsewhere=isolation == "ray")
    runner = shared_runner(isolation)
    return runner.submit(spec, [(text, options, None) for text in completions], timeout).wait(150)


def told(outcomes):
    return [outcome.verdicts[0].score if outcome.verdicts else outcome.kind for outcome in outcomes]


def misbehave(completion, folder=""):
    import ctypes
    import os
    import signal
    import sys
    import time
    from pathlib import Path

    def parent_of(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    if completion == "sleep":
        time.sleep(1000)
    elif completion == "c loop":
        ctypes.CDLL(None).pause()
    elif completion == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif completion == "memory":
        return len(bytearray(8 << 30))
    elif completion == "sys.exit":
        sys.exit(3)
    elif completion == "os._exit":
        os._exit(0)
    elif completion == "flood":
        for _ in range(1 << 10):
            os.write(1, b"x" * (1 << 20))
    elif completion == "opens":

        class Float(float):
            def __reduce__(self):
                return Path.touch, (Path(folder, "opened"),)

        return Float(0.5)
    elif completion == "forks":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                Path(folder, f"child {os.getpid()}").touch()
                time.sleep(1000)
            os._exit(0)
        while not list(Path(folder).glob("child *")):
            time.sleep(0.01)
    elif completion == "raise":
        raise RuntimeError("as asked")
    elif completion == "text":
        return "no number"
    elif completion in {"actor", "actor once"}:
        mark = Path(folder) / "been here"
        if completion == "actor" or not mark.exists():
            if completion == "actor once":
                mark.touch()
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            time.sleep(1000)
    elif completion.startswith("wait"):
        time.sleep(1)
        Path(folder, completion).touch()
    elif completion.isdigit():
        return int(completion)
    return 1.0


def test_verdicts_on_maths_and_programs_are_those_of_this_machine(cluster):
    def verdicts(name, completions, isolation=None, **given):
        options = {"time_limit": 2.0} if name == "code" else {}
        return get_verifier(name, isolation=isolation, **options).verify_batch(None, completions, None, **given)

    rows = labelled.rows_of("code")[::9]
    hacks = [json.loads(line) for line in (CASES / "hacks_code.jsonl").read_text(encoding="utf-8").splitlines()][::3]
    programs = [labelled.completion(row) for row in rows] + [f"```python\n{row['code']}```" for row in hacks]
    tests = [row["tests"] for row in rows] + [TASKS[row["kind"]] for row in hacks]
    here, there = (verdicts("code", programs, isolation, tests=tests) for isolation in (None, "ray"))
    assert [verdict.score for verdict in there] == [verdict.score for verdict in here]
    assert [verdict.score == 1 for verdict in there[: len(rows)]].count(True) > 10
    assert {verdict.status for verdict in there} >= {Status.CORRECT, Status.WRONG}
    told_of_right = [[v.detail for v in found if v.status is Status.CORRECT] for found in (here, there)]
    assert told_of_right[0] == told_of_right[1]

    rows = labelled.rows_of("maths")[::4]
    asked = [labelled.completion(row) for row in rows]
    here, there = (verdicts("math", asked, way, answer=[row["gold"] for row in rows]) for way in ("process", "ray"))
    assert there == here
    assert shared_runner("ray").pids(), "nothing was asked of the cluster"
    patterns = get_verifier("regex", pattern="(a+)+$", timeout=1.0, isolation="ray")
    assert [v.status for v in patterns.verify_batch(None, ["aaa", "a" * 50 + "b"])] == [Status.CORRECT, Status.TIMEOUT]


def test_each_misbehaviour_costs_its_own_call_what_it_costs_in_a_worker_of_this_machine(cluster, tmp_path):
    costs = {
        "0": 0, "sleep": "timeout", "1": 1, "killed": "died", "raise": "raised", "2": 2, "memory": "died",
        "sys.exit": "raised", "os._exit": "died", "c loop": "timeout", "text": "raised", "flood": 1.0, "opens": 0.5,
        "forks": 1.0, "3": 3,
    }  # fmt: skip
    folders = [tmp_path / place for place in ("process", "ray")]
    for folder in folders:
        folder.mkdir()
    here, there = (ask(misbehave, costs, 5.0, folder.name, folder=str(folder)) for folder in folders)
    assert told(here) == told(there) == list(costs.values())
    assert [outcome.message for outcome in here] == [outcome.message for outcome in there]
    assert there[4].trace.rstrip().endswith("RuntimeError: as asked")
    for folder in folders:
        (left,) = folder.iterdir()  # nobody has unpickled what a check returned
        assert comes(lambda left=left: not psutil.pid_exists(int(left.name.split()[1])), 10)


def test_a_batch_function_is_asked_once_and_answers_in_order(cluster):
    def lengths(completions, answer):
        if "bad" in completions:
            raise ValueError("one of them")
        return [len(text) + gold for text, gold in zip(completions, answer, strict=True)]

    verifier = get_verifier(lengths, isolation="ray")
    texts = ["a" * (number % 7) for number in range(40)]
    found = verifier.verify_batch(None, texts, answer=list(range(40)))
    assert [verdict.score for verdict in found] == [number % 7 + number for number in range(40)]
    found = verifier.verify_batch(None, ["a", "bad", "ccc"], answer=[0, 0, 0])
    assert [(verdict.score, verdict.status) for verdict in found] == [(1, "correct"), (0, "error"), (3, "correct")]


def where(completion):
    """A number's own score, and which actor it ran at."""
    from grpo_verifiers import Verdict

    parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    time.sleep(0.01)
    return Verdict(float(completion), detail=parent)


def judges(calls=8):
    found = ask(where, [str(number) for number in range(calls)])
    assert told(found) == list(range(calls))
    return {outcome.verdicts[0].detail for outcome in found}


def test_hundreds_of_calls_come_back_in_order_from_both_nodes(cluster):
    pids = judges(300)
    assert len(pids) == 2
    assert pids <= {str(process.pid) for process in actors()}


def test_a_call_that_kills_its_actor_has_died_and_those_beside_it_have_not(cluster, tmp_path):
    asked = [*"01234567", "actor", *"01234567", "actor once", *"0123"]
    found = ask(misbehave, asked, 60.0, folder=str(tmp_path))
    assert told(found) == [*range(8), "died", *range(8), 1.0, *range(4)]
    assert "3 actors were lost" in found[8].message
    assert [v.status for v in get_verifier(misbehave, isolation="ray").verify_batch(None, ["actor"])] == ["error"]


def test_a_node_that_goes_away_in_mid_batch_costs_no_verdict(cluster, tmp_path):
    assert told(ask(misbehave, ["1"] * 8)) == [1] * 8  # actors are there
    spec = make_spec(misbehave, elsewhere=True)
    names = [f"wait {number}" for number in range(16)]
    batch = shared_runner("ray").submit(spec, [(name, {"folder": str(tmp_path)}, None) for name in names], 60.0)
    assert comes(lambda: len(list(tmp_path.iterdir())) >= 3)
    victim = min(cluster.worker_nodes, key=str)
    cluster.remove_node(victim, allow_graceful=False)
    found = batch.wait(150)
    cluster.add_node(**NODE)
    assert told(found) == [1.0] * 16
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert comes(lambda: len(actors()) == 2, 60), "the new node got no actor"


def test_where_the_process_that_speaks_ray_is_killed_its_calls_fail_and_the_next_start_another(cluster, tmp_path):
    assert told(ask(misbehave, ["1"])) == [1]
    spec = make_spec(misbehave, elsewhere=True)
    batch = shared_runner("ray").submit(spec, [("wait", {"folder": str(tmp_path)}, None)] * 6, 60.0)
    (bridge,) = shared_runner("ray").pids()
    os.kill(bridge, signal.SIGKILL)
    found = batch.wait(100)
    assert found[-1].kind == "broken"
    assert "the process that speaks Ray ended" in found[-1].message
    assert told(ask(misbehave, ["1"])) == [1]
    assert shared_runner("ray").pids() != [bridge]


def test_a_plug_in_file_and_the_module_beside_it_travel(cluster, tmp_path):
    (tmp_path / "beside_the_check.py").write_text("def double(text):\n    return 2 * len(text)\n")
    (tmp_path / "my_check.py").write_text(
        "import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\nimport beside_the_check\n"
        "def check(completion):\n    return beside_the_check.double(completion)\n"
    )
    verifier = get_verifier("./my_check.py:check", base=tmp_path, isolation="ray")
    assert verifier.check() == []
    for path in tmp_path.glob("*.py"):  # nodes on other machines do not have them
        path.unlink()
    try:
        assert [v.score for v in verifier.verify_batch(None, ["a", "abc"])] == [2, 6]
    finally:
        sys.path.remove(str(tmp_path))


def test_a_check_that_a_node_cannot_import_stops_the_run_and_names_what_is_missing(cluster):
    spec = make_spec(misbehave, elsewhere=True)
    gone = type(spec)(target="only_on_the_trainers_machine:check")
    (outcome,) = shared_runner("ray").submit(gone, [("x", {}, None)], 10.0).wait(100)
    assert outcome.kind == "broken"
    assert "only_on_the_trainers_machine" in outcome.message


def test_a_confined_worker_on_a_node_reaches_nothing_of_ray(cluster):
    def reach(completion):
        import socket

        try:
            if completion.startswith("/"):
                with socket.socket(socket.AF_UNIX) as made:
                    made.connect(completion)
            else:
                host, _, port = completion.rpartition(":")
                socket.create_connection((host, int(port)), timeout=3).close()
        except OSError:
            return 0.0
        return 1.0

    # A listener that anybody on this machine reaches, as the raylet's are.
    with socket.socket(socket.AF_UNIX) as listener:
        path = f"/tmp/reach-{os.getpid()}"
        listener.bind(path)
        listener.listen()
        try:
            doors = [cluster.address, path]
            assert told(ask(reach, doors)) == [1, 1]  # a check of the user's own has the network
            confined = make_spec(reach, confined=True, elsewhere=True)
            found = shared_runner("ray").submit(confined, [(door, {}, None) for door in doors], 10.0).wait(100)
        finally:
            Path(path).unlink()
    assert told(found) == [0, 0]


RANK = """
import os, sys, time
from grpo_verifiers import get_verifier
from grpo_verifiers.exec.runner import close_shared_runners
def where(completion):
    import os, time
    from grpo_verifiers import Verdict
    time.sleep(0.2)
    return Verdict(float(completion), detail=open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
if __name__ == "__main__":
    verdicts = get_verifier(where, isolation="ray").verify_batch(None, [str(n) for n in range(12)])
    assert [v.score for v in verdicts] == list(range(12)), verdicts
    assert "ray" not in sys.modules
    print(*{v.detail for v in verdicts}, flush=True)
    open(sys.argv[1], "w").close()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
"""


def test_ranks_share_the_cluster_and_leave_nothing_behind(cluster, tmp_path, clean_environment):
    close_shared_runners()
    assert comes(lambda: not actors())
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    marks = [tmp_path / "done 0", tmp_path / "done 1"]
    ranks = []
    for rank in range(2):
        env = {**clean_environment, "RAY_ADDRESS": cluster.address, "WORLD_SIZE": "2", "RANK": str(rank)}
        words = [sys.executable, script, marks[rank], marks[1 - rank]]
        ranks.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
    used = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert [len(pids) for pids in used] == [1, 1], "each has its half of two CPUs"
    assert used[0] != used[1]
    assert comes(lambda: not actors())


def test_a_trainer_that_is_killed_leaves_neither_bridge_nor_actors(cluster, tmp_path, clean_environment):
    close_shared_runners()
    assert comes(lambda: not actors())
    script, mark = tmp_path / "rank.py", tmp_path / "done"
    script.write_text(RANK)
    trainer = subprocess.Popen(
        [sys.executable, script, mark, tmp_path / "never"], env={**clean_environment, "RAY_ADDRESS": cluster.address}
    )
    assert comes(mark.exists)
    (bridge,) = [each for each in psutil.Process(trainer.pid).children() if "ray.bridge" in " ".join(each.cmdline())]
    below = [each for actor in actors() for each in actor.children(recursive=True)]
    assert below
    trainer.kill()
    trainer.wait()
    assert comes(lambda: all(map(gone, (bridge, *below))) and not actors())


def test_a_cluster_that_goes_away_ends_in_one_clear_error_and_no_hang(monkeypatch, tmp_path):
    close_shared_runners()
    monkeypatch.setenv("GRPO_VERIFIERS_RAY_PATIENCE", "6")
    cluster, _ = started(1)
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        verifier = get_verifier(misbehave, isolation="ray", timeout=300, folder=str(tmp_path))
        pending = verifier.start(None, ["1", "wait 0", "sleep"])
        assert comes((tmp_path / "wait 0").exists)
    finally:
        cluster.shutdown()
    with pytest.raises(VerifierFailedError, match=r"cannot run: the Ray cluster does not run its calls: .*ray start"):
        pending.result()
    # And so at once when it never was there.
    with pytest.raises(VerifierFailedError, match="no Ray cluster answers at"):
        get_verifier(misbehave, isolation="ray").verify("1")
    close_shared_runners()


def test_a_cluster_without_room_says_what_was_asked_for(cluster, monkeypatch):
    close_shared_runners()
    monkeypatch.setenv("GRPO_VERIFIERS_RAY_PATIENCE", "4")
    monkeypatch.setenv("GRPO_VERIFIERS_RAY_RESOURCE", "box")
    asked = "each asks for 1 CPUs and the resource 'box' of one node"
    with pytest.raises(VerifierFailedError, match=asked):
        get_verifier(misbehave, isolation="ray").verify("1")
    close_shared_runners()


def test_a_node_with_other_code_of_ours_is_named_before_it_judges(monkeypatch, tmp_path):
    close_shared_runners()
    package = tmp_path / "old" / "grpo_verifiers"
    shutil.copytree(Path(grpo_verifiers.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "text" / "_exact.py").open("a") as file:
        file.write("# an older version\n")
    cluster, _ = started(1, env_vars={"PYTHONPATH": str(package.parent)})
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        with pytest.raises(VerifierFailedError, match=r"has another grpo_verifiers than the trainer .* on every node"):
            get_verifier(misbehave, isolation="ray").verify("1")
    finally:
        close_shared_runners()
        cluster.shutdown()


def test_a_process_that_stands_still_inside_ray_fails_its_calls_and_is_replaced(cluster, monkeypatch):
    close_shared_runners()
    monkeypatch.setenv("GRPO_VERIFIERS_RAY_PATIENCE", "8")
    assert told(ask(misbehave, ["1"])) == [1]
    (bridge,) = shared_runner("ray").pids()
    os.kill(bridge, signal.SIGSTOP)
    found = ask(misbehave, ["2", "3"])
    assert told(found) == ["broken", "broken"]
    assert "was silent for 8 s" in found[0].message
    assert comes(lambda: not psutil.pid_exists(bridge))
    assert told(ask(misbehave, ["2", "3"])) == [2, 3]
    close_shared_runners()


def test_a_training_run_with_its_checks_on_the_cluster_is_the_run_without(cluster, tiny_model, tmp_path):
    import torch
    from datasets import Dataset

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    (tmp_path / "rewards.py").write_text(
        "def spread(completion):\n    return sum(map(ord, completion[::2])) % 17 / 17\n"
    )
    data = Dataset.from_list([{"prompt": f"{number}+{number}=", "tests": TASKS["func"][:1]} for number in range(8)])

    def train(isolation):
        place = {"isolation": isolation} if isolation else {}
        verifiers = [
            {"name": f"{tmp_path}/rewards.py:spread", **place},
            {"name": "regex", "pattern": "[a-m]", "weight": 0.5, **place},
            {"name": "code", **place},
        ]
        config = GRPOPlusConfig(
            output_dir=str(tmp_path / str(isolation)), use_cpu=True, bf16=False, report_to="none", max_steps=3,
            num_generations=4, per_device_train_batch_size=8, max_completion_length=12, optim="sgd", learning_rate=0.05,
            save_strategy="no", logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, seed=7,
            verifiers=verifiers, advantage="center",
        )  # fmt: skip
        trainer = GRPOPlusTrainer(model=tiny_model, reward_funcs=None, args=config, train_dataset=data)
        trainer.train()
        kept = ("loss", "reward", "grad_norm", "rewards/spread/mean", "rewards/regex/mean", "rewards/code/mean")
        logs = [{key: entry[key] for key in kept} for entry in trainer.state.log_history if "loss" in entry]
        return logs, {name: value.clone() for name, value in trainer.model.state_dict().items()}

    here, there = train(None), train("ray")
    assert len(here[0]) == 3
    assert here[0] == there[0]
    assert any(entry["grad_norm"] > 0 for entry in here[0])
    assert all(torch.equal(value, there[1][name]) for name, value in here[1].items())
