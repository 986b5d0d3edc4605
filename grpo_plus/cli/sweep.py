"""``grpo-plus sweep``: the same config with several settings and seeds, and one comparison at the end."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._parent import naming_us
from grpo_plus.cli._parser import Parser
from grpo_verifiers.errors.messages import nearest

if TYPE_CHECKING:
    from grpo_plus.sweep.check import Checked
    from grpo_plus.sweep.manifest import Manifest
    from grpo_plus.sweep.plan import Plan, Run

PROG = "grpo-plus sweep"
INTERRUPTED = 130
CHECKER = (sys.executable, "-m", "grpo_plus.cli._variants")
EXAMPLES = """\
examples:
  grpo-plus sweep config.yaml --vary advantage=zscore,sign,rloo --seeds 3
  grpo-plus sweep config.yaml --vary advantage=zscore,sign --vary objective=grpo,dapo     every combination
  grpo-plus sweep config.yaml --vary 'advantage=zscore,sign; beta=0,0.04'                 side by side: two variants
  grpo-plus sweep config.yaml --vary advantage_kwargs.band=0,0.25 --max_steps 50          other options reach every run
  grpo-plus sweep config.yaml --vary 'advantage_kwargs={band: 0},{band: 0.25}'            values are YAML

The same command goes on where a sweep stopped; more variants and seeds may be added to one."""


def run(arguments: Sequence[str]) -> int:
    """Check every variant, run the unfinished ones, compare; the exit code is 1 if a run failed."""
    from grpo_plus.sweep.vary import SweepError

    try:
        return _sweep(arguments)
    except SweepError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"the sweep's folder cannot be written or read: {error}. The same command goes on.") from error


def _sweep(arguments: Sequence[str]) -> int:
    from grpo_plus.sweep.check import check
    from grpo_plus.sweep.manifest import locked, open_manifest
    from grpo_plus.sweep.plan import make_plan
    from grpo_plus.sweep.runner import Place, Stop, Watch, run_all, threads
    from grpo_plus.sweep.show import Line, console, plan_table
    from grpo_plus.sweep.vary import read_seeds, read_variants

    options, shared = _options(arguments)
    slots = _slots(options.jobs, options.devices, os.environ)
    plan = make_plan(
        Path(options.config).expanduser(), read_variants(options.vary), read_seeds(options.seeds), shared, options.out
    )
    environment = naming_us({**os.environ, "PYTHONUNBUFFERED": "1", **threads(len(slots))})
    with locked(plan.out) as hold:
        manifest = open_manifest(plan)
        console(sys.stdout).print(plan_table(plan, manifest))
        if any(manifest.of(run).state != "finished" for run in plan.runs):
            print("checking every variant before the first run starts", flush=True)
            checked = check(plan, {**environment, **_all_devices(slots)}, CHECKER)
            _check_devices(slots, checked)
            if options.dry_run:
                return 0
            line = Line(plan, manifest)
            watch = Watch(began=line.began, ended=line.ended, tick=line.tick, stopping=line.stopping)
            place = Place(slots, environment, hold, ports=checked.processes > 1 and len(slots) > 1)
            manifest.save()
            stop = Stop()
            with stop.listening():
                run_all(plan, manifest, place, stop, watch)
        return _compare(plan, manifest, arguments)


def _compare(plan: "Plan", manifest: "Manifest", arguments: Sequence[str]) -> int:
    """Print tables and report of the finished runs, and the command that resumes the rest."""
    from grpo_plus.sweep.runner import log_tail
    from grpo_plus.sweep.show import console, result_table

    states = {run: manifest.of(run).state for run in plan.runs}
    finished = [run for run, state in states.items() if state == "finished"]
    code = 0
    if finished:
        console(sys.stdout).print(result_table(plan, manifest))
        code = _report(plan, [run.folder for run in finished])
    failed = [run for run, state in states.items() if state == "failed"]
    if failed:
        print(f"{len(failed)} of {len(plan.runs)} runs failed:", file=sys.stderr)
        ends: dict[tuple[str, ...], list[Run]] = {}
        for run in failed:
            ends.setdefault(tuple(log_tail(run.log)), []).append(run)
        for tail, runs in ends.items():  # one mistake in the config ends every run with the same lines
            titles = "; ".join(f"{run.title} (code {manifest.of(run).code})" for run in runs)
            print(f"\n  {titles}\n  the end of {runs[0].log}:", file=sys.stderr)
            print("\n".join(f"    {line}" for line in tail), file=sys.stderr)
    left = len(plan.runs) - len(finished)
    if left:
        print(f"\n{left} of {len(plan.runs)} runs are not finished. To go on:", file=sys.stderr)
        print(f"  {PROG} {shlex.join(arguments)}", file=sys.stderr)
    if failed:
        return 1
    return INTERRUPTED if left else code


def _report(plan: "Plan", folders: Sequence[Path]) -> int:
    from grpo_plus.record import RunError
    from grpo_plus.report import write_report

    try:
        path = write_report(folders, plan.out / "report.html")
    except (RunError, OSError) as error:
        print(f"{PROG}: the report was not written: {error}", file=sys.stderr)
        return 1
    print(f"report: {path}")
    return 0


def _options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own options, and all others, which every run gets."""
    parser = Parser(
        prog=PROG,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROG} config.yaml --vary OPTION=A,B,… [--seeds 3] [--any.option VALUE …]",
    )
    parser.add_argument("--vary", action="append", default=[], metavar="OPTION=A,B", help="an option and its values")
    parser.add_argument("--seeds", default="1", help="how many (3: seeds 1, 2, 3) or which (7,8); default: 1")
    parser.add_argument("--out", type=Path, help="the sweep's folder; default: the config's output_dir and -sweep")
    parser.add_argument("--jobs", type=int, help="runs at a time, on the same device or on CPU cores; default: 1")
    parser.add_argument("--devices", help="one run at a time on each of these (0,1), or on each set (0+1,2+3)")
    parser.add_argument("--dry-run", action="store_true", help="check and show the plan, and stop there")
    given = list(arguments)
    if any(word in ("-h", "--help") for word in given):
        parser.print_help()
        raise SystemExit(0)
    if not given or given[0].startswith("-"):
        raise UserError("the config file comes first: grpo-plus sweep config.yaml --vary advantage=zscore,sign")
    config = given.pop(0)
    options, shared = parser.parse_known_args(given)
    options.config = config
    if not options.vary:
        meant = next((word for word in shared if nearest(word.partition("=")[0], ["--vary"])), None)
        hint = (
            f"unknown option {meant}, did you mean --vary?" if meant else "say what, as in --vary advantage=zscore,sign"
        )
        raise UserError(f"nothing varies: {hint}")
    if shared and not shared[0].startswith("-"):  # a value of no option
        raise UserError(
            f"what is {shared[0]!r}? Give each option that varies its own --vary: --vary A=1,2 --vary B=3,4"
        )
    return options, shared


def _slots(jobs: int | None, devices: str | None, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """The slots for runs, each as its environment variables."""
    if int(environment.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep starts its own processes: start it once, without accelerate launch or torchrun.")
    if jobs is not None and devices is not None:
        raise UserError("--jobs and --devices are both given: --devices already runs one job on each device.")
    if devices is None:
        if jobs is not None and not 1 <= jobs <= 256:
            raise UserError(f"--jobs is {jobs}, expected 1 to 256.")
        return [{} for _ in range(jobs or 1)]
    sets = [[word.strip() for word in group.split("+")] for group in devices.split(",")]
    flat = [word for group in sets for word in group]
    if not all(flat):
        raise UserError(f"--devices is {devices!r}, expected device numbers such as 0,1 or sets such as 0+1,2+3.")
    twice = next((word for word in flat if flat.count(word) > 1), None)
    if twice is not None:
        raise UserError(f"--devices is {devices!r}, which names {twice} twice.")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        allowed = [word.strip() for word in visible.split(",") if word.strip()]
        strange = [word for word in flat if word not in allowed]
        if strange:
            raise UserError(
                f"--devices names {', '.join(strange)}, but CUDA_VISIBLE_DEVICES allows "
                f"{', '.join(allowed) or 'none'}: name some of those."
            )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in sets]


def _all_devices(slots: Sequence[Mapping[str, str]]) -> dict[str, str]:
    named = [slot["CUDA_VISIBLE_DEVICES"] for slot in slots if slot]
    return {"CUDA_VISIBLE_DEVICES": ",".join(named)} if named else {}


def _check_devices(slots: Sequence[Mapping[str, str]], checked: "Checked") -> None:
    named = _all_devices(slots).get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return
    if checked.devices < len(named.split(",")):
        raise UserError(
            f"--devices names {named}, but {checked.devices} such devices can be seen: "
            "name those that nvidia-smi lists, or use --jobs."
        )
    for slot in slots:
        devices = slot["CUDA_VISIBLE_DEVICES"]
        if len(devices.split(",")) < checked.processes:
            raise UserError(
                f"a run of this config starts {checked.processes} processes, and --devices gives it {devices}: "
                f"give each run a set of {checked.processes}, such as {'+'.join(map(str, range(checked.processes)))}."
            )
