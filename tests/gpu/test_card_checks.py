"""The command that runs a card's checks: processes that go wrong, a file that is continued, and the stand-in for a card."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import page
from benchmarks.gpu.catalogue import CHECKS
from benchmarks.gpu.check import Check
from benchmarks.gpu.models import random_model
from benchmarks.gpu.results import ROOT, Origin, Result, Results, read
from benchmarks.gpu.schedule import Room, Schedule
from grpo_plus.memory.estimate import Settings, weights
from grpo_plus.memory.shape import shape_of
from grpo_plus.qlora.model import linear_4bit
from grpo_plus.testing import make_tiny_model

ORIGIN = Origin("abc", "cpu", "tiny")
PASSED = Result("one", "passed", 1.5, {"a": 1}, "fine", 0.5)


def check(name, seconds=1.0, **more):
    return Check(name, f"tests.gpu.faulty:{name.partition('-')[0]}", "", seconds, **more)


def planned(seconds):
    return Schedule(Room(2, None, 1.5), device="cpu", size="full", ends=time.monotonic() + seconds)


@pytest.mark.nightly
def test_a_check_that_goes_wrong_ends_no_other_and_says_how():
    names = ("hangs", "eats", "passes", "claims_too_much", "raises", "crashes", "skips", "passes-again")
    checks = [check(name, 15.0, cores=1, options={"number": 7} if name == "passes-again" else {}) for name in names[1:]]
    checks = [check("hangs", 3.0), *checks, check("passes-late", 10_000)]
    schedule, found = planned(60), {}
    late = list(schedule.run(checks, lambda one: found.update({one.name: one})))

    assert {name: one.status for name, one in found.items()} == {
        "hangs": "timeout", "eats": "memory", "passes": "passed", "claims_too_much": "failed", "raises": "error",
        "crashes": "crashed", "skips": "skipped", "passes-again": "passed",
    }  # fmt: skip
    assert found["passes-again"].figures == {"number": 7, "device": "cpu"}
    claims, raises = found["claims_too_much"], found["raises"]
    assert (claims.why, claims.figures) == ("one is not larger than two", {"after": "it goes on"})
    assert (raises.why, raises.figures) == ("ValueError: no such", {"before": 1})
    assert "ValueError" in found["raises"].log
    assert "what it said last" in found["crashes"].why
    assert "-11" in found["crashes"].why
    assert found["skips"].why == "there is nothing to do"
    assert found["hangs"].figures["before"] == 1
    assert not psutil.pid_exists(found["hangs"].figures["left"])
    assert [(one.name, "10000 s" in why) for one, why in late] == [("passes-late", True)]


@pytest.mark.slow
def test_a_check_that_the_last_minute_cuts_off_has_no_result_and_no_check_outlives_the_command(tmp_path):
    found = []
    ((late, why),) = planned(3).run([check("hangs", seconds=2.0)], found.append)
    assert (late.name, "time was over" in why, found) == ("hangs", True, [])

    starts = (
        "from tests.gpu.test_card_checks import check, planned\nlist(planned(60).run([check('hangs', 20.0)], print))"
    )
    run = subprocess.Popen([sys.executable, "-c", starts], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        until = time.monotonic() + 60
        while not (started := psutil.Process(run.pid).children(recursive=True))[1:] and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        run.kill()
        run.wait()
    assert len(started) == 2
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_a_timed_check_waits_until_it_is_alone_and_memory_bounds_what_runs_beside():
    schedule = Schedule(Room(8, 10.0, 1.0), device="cuda", size="full", ends=0.0)

    class Runs:
        def __init__(self, check):
            self.check = check

    timed, small, large = check("a", alone=True), check("b", gib=4.0), check("c", gib=8.0)
    assert schedule._next([timed, small]) is timed
    schedule._running = [Runs(small)]
    assert schedule._next([timed, small]) is None
    assert schedule._next([large, small]) is small
    assert schedule._next([large]) is None
    schedule._running = [Runs(timed)]
    assert schedule._next([small]) is None


def test_results_are_continued_and_those_of_another_origin_are_kept_aside(tmp_path):
    path = tmp_path / "card.jsonl"
    Results(path, ORIGIN, {"torch": "1"}).add(PASSED)
    with path.open("a") as file:
        file.write('{"name": "two", "sta')  # killed as it wrote
    again = Results(path, ORIGIN, {"torch": "1"})
    assert again.found == {"one": PASSED}
    assert "1 broken" in again.notes[0]
    again.add(Result("two", "failed", 2.0, why="no"))
    assert [result.name for _, result in read(path)[0]] == ["one", "two"]
    other = Results(path, Origin("abc", "cuda", "full", "a card"), {})
    assert other.found == {}
    assert "card.1.jsonl" in other.notes[-1]
    assert not path.exists()
    assert len(read(tmp_path / "card.1.jsonl")[0]) == 2
    assert "torch" in json.loads((tmp_path / "card.1.jsonl").read_text().splitlines()[0])["versions"]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"problem": "torch is broken", "versions": {}}, "torch is broken"),
        ({"versions": {"torch": "2", "trl": "missing", "peft": "missing"}}, "not installed: trl, peft"),
        ({"versions": {"torch": "2"}}, "sees no CUDA card"),
    ],
)
def test_what_cannot_begin_says_so_in_a_line(monkeypatch, capsys, there, said):
    monkeypatch.setattr(command, "_probe", lambda device: there)
    assert command.main([]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_card_that_is_in_use_too_small_or_too_old_is_told_of(monkeypatch, capsys, tmp_path):
    card = {"card": "Old", "total": 12.0, "free": 6.0, "taken": 6.0, "bf16": False, "versions": {}}
    checks = (check("large", gib=8.0), check("half", gib=1.0, bf16=True))
    monkeypatch.setattr(command, "_probe", lambda device: card)
    monkeypatch.setattr(command, "CHECKS", checks)
    handlers = [signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)]
    assert command.main(["--out", str(tmp_path / "out.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "hold 6.0 of 12.0 GiB" in out
    assert [signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)] == handlers
    assert command._impossible(check("a card of 8 GB", gib=8.0, least=5.0), card, "full") is None
    why = {"large": "needs 8.7 GiB of the card, 6.0 are free", "half": "the card does not compute in bfloat16"}
    assert {result.name: result.why for _, result in read(tmp_path / "out.jsonl")[0]} == why


WRONG = (
    "only nope,minutes 0,minutes nan,device cpu,page nowhere.jsonl,page pyproject.toml,out /,out /proc/no/card.jsonl"
)


@pytest.mark.parametrize("argument", [*WRONG.split(","), "out pyproject.toml"])
def test_wrong_arguments_end_with_2_and_leave_files_alone(argument, monkeypatch, capsys):
    arguments = f"--{argument}".split()
    before = (ROOT / "pyproject.toml").read_bytes()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "_probe", lambda device: {"versions": {}, "card": "Card"})
    assert command.main(arguments) == 2
    assert arguments[0] in capsys.readouterr().err
    assert (ROOT / "pyproject.toml").read_bytes() == before


def test_names_are_different_and_the_page_of_results_is_of_the_results_that_are_there(tmp_path):
    assert len({one.name for one in CHECKS}) == len(CHECKS)
    assert page.PAGE.read_text() == page.page(page.KEPT)
    results = Results(tmp_path / "r.jsonl", Origin("c", "cuda", "full", "Card 9000"), {"torch": "2.11"})
    points = {"train": [4.0, 5.0], "rollout": [3.0, 3.0]}
    for at, name in enumerate(("fit-a", "fit-b"), 1):
        figures = {"ratio": 1.3, "points": {key: [one * at for one in pair] for key, pair in points.items()}}
        results.add(Result(name, "failed", 1.0, figures, why="measured 1.30 | of the plan"))
    results.add(Result("card", "passed", 1.0, {"outside": 0.5}))
    results.add(Result("drawing", "passed", 1.0, headline="p 0.5"))
    text = page.page(tmp_path / "r.jsonl")
    assert "Card 9000" in text
    assert "| p 0.5 |" in text
    assert 'ASSUMED = {"train": (1.350, 0.500 * GIB), "rollout": (1.080, 0.500 * GIB)}' in text


@pytest.mark.slow
def test_the_stand_in_refuses_what_a_card_refuses_and_counts_memory(tmp_path, clean_environment):
    code = """
    from benchmarks.gpu import stand_in; stand_in.load()
    import torch
    one = torch.randn(4, 5, device="cuda", requires_grad=True)
    def refused(work):
        try:
            work()
        except (RuntimeError, TypeError) as error:
            return type(error).__name__
        return "taken"
    print(refused(lambda: one + torch.ones(4, 5)), refused(lambda: torch.cat([one, torch.ones(4, 5)])))
    print(refused(lambda: torch.rand(2, device="cuda", generator=torch.Generator())), refused(lambda: one.detach().numpy()))
    print(refused(lambda: one[torch.tensor([0, 1])] * torch.tensor(2.0)), refused(lambda: one.gather(0, torch.zeros(1, 5, dtype=torch.long))))
    layer = torch.nn.Linear(5, 3).cuda()
    layer(one).relu().sum().backward()
    torch.save(layer.state_dict(), "layer.pt")
    print(one.grad.device, torch.load("layer.pt")["weight"].device, one.view(5, 4)[1:].t().contiguous().is_cuda)
    cpu = torch.nn.Linear(5, 3); cpu.load_state_dict({k: v.cpu() for k, v in layer.state_dict().items()})
    print(torch.equal(cpu(one.detach().cpu()), layer(one).detach().cpu()))
    before = torch.cuda.memory_allocated(); held = torch.zeros(1 << 20, device="cuda")
    print(torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() >= 1 << 22); del held
    torch.cuda.set_per_process_memory_fraction((1 << 21) / torch.cuda.get_device_properties(0).total_memory)
    print(refused(lambda: torch.zeros(1 << 20, device="cuda")), torch.cuda.memory_allocated() == before)
    from grpo_plus.sampling.rollout import affordable_rows
    from grpo_plus.testing import make_tiny_model
    rows = []
    for share in (1.0, 0.5):
        torch.cuda.set_per_process_memory_fraction(share)
        rows.append(affordable_rows(make_tiny_model()[0], 100, torch.device("cuda")))
    print(round(rows[0] / rows[1], 2))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**clean_environment, "PYTHONPATH": f"{ROOT}:{ROOT}/verifiers"}, timeout=280,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "RuntimeError RuntimeError", "RuntimeError TypeError", "taken RuntimeError", "cuda:0 cuda:0 True", "True",
        f"{1 << 22} True", "OutOfMemoryError True", "2.0",
    ], done.stderr[-3000:]  # fmt: skip


@pytest.mark.parametrize(("architecture", "layers"), [("llama", 3), ("gpt2", 1), ("gemma2", 3), ("qwen3", 2)])
def test_random_models_take_the_memory_that_is_planned_for(architecture, layers):
    made, _ = make_tiny_model(architecture=architecture, hidden=128, layers=layers)
    model = random_model(made.config, torch.device("cpu"), torch.bfloat16, four_bit=True)
    stored = sum(parameter.nbytes for parameter in model.parameters())
    for layer in linear_4bit(model):
        stored += layer.weight.quant_state.absmax.nbytes + layer.weight.quant_state.state2.absmax.nbytes
    planned = weights(shape_of(made.config), Settings())
    assert stored == pytest.approx(planned, abs=4 * len(list(linear_4bit(model))))
    assert torch.isfinite(model(torch.arange(8)[None]).logits).all()
