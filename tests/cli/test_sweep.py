"""Sweeps: what varies, one command for each run, nothing started before everything is checked, nothing left behind."""

import contextlib
import json
import os
import shutil
import signal
import string
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from grpo_plus.cli._arguments import parse
from grpo_plus.sweep.manifest import locked, open_manifest
from grpo_plus.sweep.plan import make_plan
from grpo_plus.sweep.runner import StopSignals, final, log_tail, run_all
from grpo_plus.sweep.show import SweepProgress, result_table
from grpo_plus.sweep.vary import SweepError, read_seeds, read_variants
from tests.cli.stand_in_runs import order, stand_in
from tests.waiting import gone

WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=6).filter(
    lambda word: word not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf")
)
VALUES = st.one_of(WORDS, st.integers(-9, 9), st.floats(-9, 9), st.dictionaries(WORDS, st.integers()))


def variants(*given):
    return [dict(variant.values) for variant in read_variants(given)]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(WORDS, st.lists(VALUES, min_size=1, max_size=3, unique_by=repr), min_size=1, max_size=3))
def test_every_combination_once_in_order_with_the_values_as_they_were(grid):
    grid = {f"option_{key}": values for key, values in grid.items()}
    given = [f"{key}={','.join(map(json.dumps, values))}" for key, values in grid.items()]
    found = read_variants(given)
    choices = [dict(zip(grid, choice, strict=True)) for choice in product(*grid.values())]
    assert [dict(variant.values) for variant in found] == choices
    assert len({variant.folder for variant in found}) == len(found)
    for variant in found:
        assert set(variant.folder) <= set(string.ascii_letters + string.digits + "_.=+-")
        assert not variant.folder.startswith(("-", "."))


def test_values_are_those_of_a_config_file():
    assert variants("beta=0,") == [{"beta": 0}]
    assert variants("beta=0,0.04,3e-4") == [{"beta": 0}, {"beta": 0.04}, {"beta": 3e-4}]
    assert variants("advantage=null,sign") == [{"advantage": None}, {"advantage": "sign"}]
    assert variants("save_strategy=no,steps") == [{"save_strategy": "no"}, {"save_strategy": "steps"}]
    assert variants("critic={lam: 0.5},{}") == [{"critic": each} for each in ({"lam": 0.5}, {})]
    exact = {"name": "exact", "weight": 2}
    assert variants("verifiers=[math],[math, {name: exact, weight: 2}]")[1] == {"verifiers": ["math", exact]}
    assert variants("advantage=./mine.py:mine,a.b:c") == [{"advantage": "./mine.py:mine"}, {"advantage": "a.b:c"}]


def test_what_cannot_vary_is_said():
    for wrong, expected in (
        (["advantage"], "expected an option and its values"),
        (["--advantage=sign"], "expected an option and its values"),
        (["advantage="], "has no values"),
        (["advantage={a"], "no valid YAML"),
        (["critic={lam: 1, lam: 2}"], "appears twice"),
        (["advantage=a,b", "advantage=c"], "advantage more than once"),
        (["advantage=sign,rloo,sign"], "'advantage=sign' more than once"),
        (["critic={lam: 1}", "critic.lam=1,2"], "vary one of the two"),
        (["beta=0,null"], "cannot be given on a command line"),
        (["seed=1,2"], "--seeds sets it"),
        (["output_dir=a,b"], "--out sets it"),
    ):
        with pytest.raises(SweepError, match=expected):
            read_variants(wrong)


def test_seeds_are_a_count_or_a_list():
    assert [read_seeds(given) for given in ("3", "7,8", "0,")] == [[1, 2, 3], [7, 8], [0]]
    many = "expected a number"
    for wrong, expected in {"0": "1 to 1000", "x": many, "1,1": "twice", "-1": many, "": many}.items():
        with pytest.raises(SweepError, match=expected):
            read_seeds(wrong)


def test_the_command_of_a_run_means_its_variant(config):
    path = config(reward_funcs=None, verifiers=["exact"])
    given = ["advantage={name: sign, band: 0.5},null", "beta=-0.0,1e-3", "use_peft=true,false"]
    given += ["verifiers=[exact],[think_format, {name: exact, weight: 2, label: right}]"]
    plan = make_plan(Path(path), read_variants(given), [3], ["--max_steps", "7"], None)
    first, second = (parse("sweep", [str(plan.config), *plan.runs[at].flags]) for at in (0, -1))
    assert (first.training.advantage, second.training.advantage) == ({"name": "sign", "band": 0.5}, None)
    assert first.training.verifiers == ["exact"]
    assert second.training.verifiers == ["think_format", {"name": "exact", "weight": 2, "label": "right"}]
    assert (first.training.beta, second.training.beta) == (0, 1e-3)
    assert (first.model.use_peft, second.model.use_peft) == (True, False)
    assert first.training.max_steps == second.training.max_steps == 7
    assert first.training.seed == 3
    assert first.training.report == {"record": True}
    assert first.training.run_name == f"{plan.runs[0].variant.label}, seed 3"
    assert first.training.output_dir.endswith("out-sweep/" + plan.runs[0].name)


def presser(folder, presses, most):
    """Interrupt this process once its run is ready, and note when."""
    if (folder / "ready").exists() and len(presses) < most:
        presses.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def fake(folder, tmp_path):
    """Makes a plan whose runs run a script; gives the plan and a function that runs it."""
    (tmp_path / "c.yaml").write_text("learning_rate: 1e-3\n")

    def fake(body, seeds="2", vary="advantage=zscore,sign", out="sweep"):
        plan = stand_in(tmp_path, body, seeds=seeds, vary=vary, out=tmp_path / out, options=["-S"])

        def go(tick=None, file=sys.stderr):
            with locked(plan.out) as hold:
                manifest = open_manifest(plan)
                manifest.save()
                line, stop = SweepProgress(manifest, file), StopSignals()
                if tick is not None:
                    paint, line.tick = line.tick, lambda live, signals: tick() or paint(live, signals)
                with stop.listening():
                    run_all(manifest, line, stop, environment=dict(os.environ), hold=hold)
            return [manifest.of(run).state for run in plan.runs]

        return plan, go

    return fake


@pytest.mark.slow
def test_runs_in_turn_and_what_failed_alone_is_run_again(fake, folder):
    body = """
    if "sign/seed-2" in str(folder) and not (seen / "mended").exists():
        print("something is wrong")
        sys.exit(3)
    end("done", 0)
    """
    plan, go = fake(body)
    assert go() == ["finished", "finished", "finished", "failed"]
    names = [run.name for run in plan.runs]
    assert [name for name, *_ in order(folder)] == names
    assert names == [f"advantage={name}/seed-{seed}" for name in ("zscore", "sign") for seed in (1, 2)]
    assert log_tail(plan.runs[3].log) == ["begins", "something is wrong"]
    manifest = json.loads((plan.out / "sweep.json").read_text())
    assert manifest["runs"][names[3]]["code"] == 3
    assert manifest["runs"][names[0]]["results"]["final reward"] == len("advantage=zscore") + 2
    (folder / "mended").touch()
    assert go() == ["finished"] * 4
    assert [name for name, *_ in order(folder)] == [*names, names[3]]
    mark = json.loads((plan.runs[3].folder / "grpo_plus" / "sweep.json").read_text())
    assert mark == {"variant": "advantage=sign", "seed": 2}


@pytest.mark.slow
def test_variants_and_seeds_may_be_added_and_runs_thrown_away(fake, folder):
    plan, go = fake('end("done", 0)', seeds="1")
    go()
    shutil.rmtree(plan.runs[1].folder)  # and what was thrown away is run again
    plan, go = fake('end("done", 0)', seeds="2", vary="advantage=sign,rloo")
    assert go() == ["finished"] * 4
    found = [name for name, *_ in order(folder)]
    assert found == ["advantage=zscore/seed-1", "advantage=sign/seed-1", *(run.name for run in plan.runs)]
    kept = json.loads((folder / "sweep" / "sweep.json").read_text())["runs"]
    assert "advantage=zscore/seed-1" in kept


@pytest.mark.slow
def test_another_config_is_refused_with_the_difference(fake, folder):
    plan, go = fake('end("done", 0)')
    go()
    (folder / "c.yaml").write_text("learning_rate: 2e-3\nbeta: 0.1\n")
    changed = make_plan(plan.config, read_variants(["advantage=sign"]), [1], ["--max_steps", "5"], plan.out)
    with pytest.raises(SweepError) as raised:
        open_manifest(changed)
    then = ("learning_rate: 0.001 then, 0.002 now", "beta: not set then, 0.1 now", "none then, --max_steps 5 now")
    assert all(line in str(raised.value) for line in then)
    (plan.out / "sweep.json").write_text('{"schema": 1, "runs"')
    with pytest.raises(SweepError, match="cannot be read"):
        open_manifest(changed)


@pytest.mark.slow
def test_a_config_that_is_edited_meanwhile_stops_the_rest(fake, folder):
    _, go = fake('(seen / "c.yaml").write_text("learning_rate: 2e-3\\n")\nend("done", 0)', seeds="3")
    with pytest.raises(SweepError, match="was changed while the sweep was running"):
        go()
    assert len(order(folder)) == 1
    (folder / "c.yaml").write_text("learning_rate: 1e-3\n# a comment changes nothing\n")
    (folder / "script.py").write_text((folder / "script.py").read_text().replace("2e-3", "0.001"))
    assert go() == ["finished"] * 6
    assert len(order(folder)) == 6


@pytest.mark.slow
def test_ctrl_c_lets_a_run_save_and_the_next_start_goes_on_from_there(fake, folder, capsys):
    body = """
    signal.signal(signal.SIGINT, stop)
    if any("resume" in word for word in sys.argv):
        end("done", 0)
    (seen / "ready").touch()
    time.sleep(1000)
    """
    plan, go = fake(body, seeds="1")
    presses, before = [], signal.getsignal(signal.SIGINT)
    assert go(lambda: presser(folder, presses, 1)) == ["stopped", "waiting"]
    assert "stopping: 1 run may save and exit" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    (folder / "script.py").write_text((folder / "script.py").read_text().replace("time.sleep(1000)", 'end("done", 0)'))
    assert go() == ["finished", "finished"]
    assert log_tail(plan.runs[0].log) == ["begins", "begins --resume_from_checkpoint=auto"]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_what_does_not_listen_with_all_it_started(fake, folder):
    body = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    below = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    (seen / "below").write_text(str(below.pid))
    (seen / "ready").touch()
    time.sleep(1000)
    """
    _, go = fake(body, seeds="1")
    presses = []
    assert go(lambda: presser(folder, presses, 2)) == ["stopped", "waiting"]
    assert time.monotonic() - presses[0] < 100
    assert gone(int(order(folder)[0][2]))
    assert gone(int((folder / "below").read_text()))


def test_an_error_of_ours_leaves_no_run_behind(fake, folder):
    def fail():
        if (folder / "order").exists() and order(folder):
            raise RuntimeError("painting failed")

    plan, go = fake("time.sleep(60)", seeds="1")
    with pytest.raises(RuntimeError, match="painting"):
        go(fail)
    assert gone(int(order(folder)[0][2]))
    assert json.loads((plan.out / "sweep.json").read_text())["runs"][plan.runs[0].name]["state"] == "stopped"


def test_one_sweep_in_a_folder_also_when_only_its_run_is_left(fake, folder):
    """A killed sweep leaves its run behind: a new one must not start the same run beside it."""
    plan, _ = fake("time.sleep(60)", seeds="1")
    with locked(plan.out) as hold:
        open_manifest(plan).save()
        with pytest.raises(SweepError, match="still uses"), locked(plan.out):
            pass
        orphan = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], pass_fds=(hold,))
    try:
        with pytest.raises(SweepError, match="still uses"), locked(plan.out):
            pass
    finally:
        orphan.kill()
        orphan.wait()
    with locked(plan.out):
        pass


@pytest.mark.slow
def test_a_run_that_was_killed_with_its_sweep_starts_anew_or_goes_on(fake, folder):
    plan, go = fake('end("done", 0)', seeds="1")
    go()
    manifest = json.loads((plan.out / "sweep.json").read_text())
    for entry in manifest["runs"].values():
        entry["state"] = "running"
    (plan.out / "sweep.json").write_text(json.dumps(manifest))
    for run, text in zip(plan.runs, ('{"global_step": 4}', '{"global_'), strict=True):  # the second one is half written
        (run.folder / "checkpoint-4").mkdir()
        (run.folder / "checkpoint-4" / "trainer_state.json").write_text(text)
        (run.folder / "checkpoint-4" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (plan.runs[1].folder / "leftover").touch()
    assert go() == ["finished", "finished"]
    assert log_tail(plan.runs[0].log)[-1] == "begins --resume_from_checkpoint=auto"
    assert log_tail(plan.runs[1].log) == ["begins"]
    assert not (plan.runs[1].folder / "leftover").exists()


@pytest.mark.slow
def test_a_full_disk_starts_no_more_runs_and_the_same_command_goes_on(fake, small_disk, folder):
    disk = small_disk(256 * 1024)
    body = f"""
    if "zscore" in str(folder) and not (seen / "filled").exists():
        (seen / "filled").touch()
        try:
            end("done", 0)
        except SystemExit:
            pass
        with open({str(disk / "other")!r}, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                sys.exit(0)
    end("done", 0)
    """
    plan, go = fake(body, seeds="1", out=disk / "sweep")
    with pytest.raises(SweepError, match=r"sweep cannot be written \(.*No space left.*resume with the same command"):
        go()
    assert len(order(folder)) == 1
    (disk / "other").unlink()
    assert go() == ["finished", "finished"]
    with locked(plan.out):
        pass  # nobody holds it any more


@pytest.mark.slow
def test_a_run_that_could_not_write_its_end_goes_on_from_its_last_checkpoint(fake, folder):
    body = """
    if any("resume" in word for word in sys.argv):
        end("done", 0)
    try:
        stop()
    except SystemExit:
        end("done", 74)
    """
    _, go = fake(body, seeds="1", vary="advantage=zscore")
    assert go() == ["stopped"]
    assert go() == ["finished"]


@pytest.mark.slow
def test_a_terminal_that_is_gone_ends_nothing(fake, folder):
    """The sweep was started with nohup, or its pipe was closed: it goes on, and signals that were ignored stay so."""
    _, go = fake('end("done", 0)', seeds="1")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    read, write = os.pipe()
    os.close(read)
    pressed = []

    def hang_up():
        if not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGHUP))

    try:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write, "w") as closed:
            states = go(hang_up, closed)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert states == ["finished", "finished"]
    assert pressed


@pytest.mark.slow
def test_markup_in_a_config(fake, capsys):
    plan, go = fake('end("done", 0)', seeds="1", vary="run_name='a[b]c',[/d]")
    assert go() == ["finished"] * 2
    again = make_plan(plan.config, read_variants(["run_name='a[b]c',[/d]"]), [1], [], plan.out)
    Console(width=120, highlight=False).print(result_table(open_manifest(again)))
    out = capsys.readouterr().out
    assert "run_name=a[b]c" in out
    assert 'run_name=["/d"]' in out


def measured(folder, rows):
    record = folder / "grpo_plus"
    record.mkdir()
    (record / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


MEASURED = '{"results": {"verifiers": {"math": {"pass_at": {"1": {"value": 0.75, "low": 0.5, "high": 0.9}}}}}}'


def test_final_figures_are_means_of_the_last_tenth(tmp_path):
    rows = [{"kind": "train", "step": step, "values": {"reward": float(step)}} for step in range(1, 41)]
    held = {"eval_reward": 0.5, "eval_verifiers/math/status/correct": 0.25}
    rows += [{"kind": "eval", "step": 40, "values": held}]
    rows += [{"kind": "train", "step": 40, "values": {"train_runtime": 12.5}}]
    measured(tmp_path, rows)
    held = {"held-out reward": 0.5, "held-out accuracy, math": 0.25}
    assert final(tmp_path) == {"final reward": (37 + 38 + 39 + 40) / 4, **held, "seconds": 12.5}
    (tmp_path / "measure").mkdir()
    for text, accuracy in (('{"results": null}', 0.25), ('{"results"', 0.25), (MEASURED, 0.75)):
        (tmp_path / "measure" / "after.json").write_text(text)
        assert final(tmp_path)["held-out accuracy, math"] == accuracy


@pytest.mark.slow
def test_tables_show_mean_and_spread_and_what_is_missing(fake, capsys):
    plan, go = fake("sys.exit(1) if 'sign/seed-2' in str(folder) else end('done', 0)")
    go()
    manifest = open_manifest(plan)
    for seed, run in enumerate(plan.runs[:2]):
        manifest.of(run).results = {"final reward": 0.25 + 0.5 * seed, "seconds": 2.0}
    manifest.of(plan.runs[2]).results = {"final reward": 1.0, "held-out accuracy, math": 0.5, "seconds": 1.0}
    Console(width=120, highlight=False).print(result_table(manifest))
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "advantage=" in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == ["advantage=zscore", "2", "0.500 ± 0.354", "-", "2.0 ± 0.0"]
    assert cells[1:] == [["advantage=sign", "1 of 2", "1.000", "0.500", "1.0"]]


@pytest.mark.slow
def test_all_that_training_would_refuse_is_refused_before_the_first_run(cli, config, folder):
    assert "Did you mean 'sign'?" in cli.refused("sweep", config(), "--vary", "advantage=zscore,sgn", "--dry-run")
    vary = ["advantage=zscore,process", "dataset_name=./data.jsonl,./missing.jsonl"]
    flags = [word for each in vary for word in ("--vary", each)]
    path = config(verifiers=["exact"])
    code, out, err = cli("sweep", path, *flags, "--seeds", "2", "--dry-run")
    assert code == 2
    text = " ".join(err.split())
    for problem in ("needs step scores", "'./missing.jsonl' does not exist"):
        assert text.count(problem) == 1, "said once, with the variants that have it"
    assert "no run was started" in text
    assert "advantage=process, dataset_name=./data.jsonl" in text
    assert "8 runs in" in out
    assert not (folder / "out-sweep").exists()


@pytest.mark.slow
def test_a_dry_run_makes_no_model_and_ends_with_a_verdict(cli, config, folder):
    (folder / "made.py").write_text("def model():\n    raise RuntimeError('a model was made')\n")
    made = config(verifiers=["exact"], model_name_or_path="./made.py:model")
    code, out, err = cli("sweep", made, "--vary", "beta=0,0.1", "--seeds", "2", "--dry-run")
    assert (code, err) == (0, "")
    told = "dry run: no problems; no run was started, no model loaded or trained."
    assert out.splitlines()[-1] == told
    assert not (folder / "out-sweep" / "sweep.json").exists()


@pytest.mark.nightly
def test_a_sweep_from_the_command_line(cli, config, folder):
    (folder / "broken.py").write_text("def breaks(completions, **_):\n    raise ValueError('it breaks')\n")
    vary = ("--vary", "reward_funcs=[./rewards.py:digits],[./broken.py:breaks]")
    code, out, err = cli("sweep", config(verifiers=["exact"]), *vary, "--max_steps", "1")
    assert code == 1
    assert "1 of 2 runs failed" in err
    assert "it breaks" in err
    assert "To resume:\n  grpo-plus sweep " in err
    good = folder / "out-sweep" / next(path.name for path in (folder / "out-sweep").glob("*digits*") if path.is_dir())
    assert (good / "seed-1" / "model.safetensors").exists()
    found = json.loads((folder / "out-sweep" / "sweep.json").read_text())["runs"]
    assert sorted(entry["state"] for entry in found.values()) == ["failed", "finished"]
    results = next(entry["results"] for entry in found.values() if entry["state"] == "finished")
    assert results["seconds"] > 0
    assert 0 <= results["final reward"] <= 2
    assert "final reward" in out
    html = (folder / "out-sweep" / "report.html").read_text(encoding="utf-8")
    assert "rewards.py:digits" in html


@pytest.mark.slow
def test_ray_is_imported_by_a_sweep_on_it_alone_which_says_what_to_install(config, folder):
    code = "import sys; sys.modules['ray'] = None; from grpo_plus.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["sweep", config(), "--vary", "beta=0,1", "--on", "ray"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'ray>=2.40'" in done.stderr
    assert not (folder / "out-sweep").exists()
    code = "import sys, grpo_plus.cli.sweep, grpo_plus.ray.sweep; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
