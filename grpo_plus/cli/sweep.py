"""``grpo-plus sweep``: train a config with several settings and seeds, and compare the results."""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError, naming_us
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._quick_checks import check_early
from grpo_plus.sweep import ELSEWHERE
from grpo_verifiers.errors.messages import nearest

if TYPE_CHECKING:
    from grpo_plus.sweep.manifest import SweepManifest

PROG = "grpo-plus sweep"
INTERRUPTED = 130
CHECKER = ("-m", "grpo_plus.cli._variants")
EXAMPLES = """\
examples:
  grpo-plus sweep config.yaml --vary advantage=zscore,sign,rloo --seeds 3
  grpo-plus sweep config.yaml --vary advantage=zscore,sign --vary objective=grpo,dapo     every combination
  grpo-plus sweep config.yaml --vary advantage.band=0,0.25 --max_steps 50          other options reach every run
  grpo-plus sweep config.yaml --vary 'advantage=zscore,{name: sign, band: 0.25}'              values are YAML

  grpo-plus sweep config.yaml --vary beta=0,0.04 --on ray --gpus 1                        side by side, a GPU each

The same command resumes a sweep; more variants and seeds may be added to it.
--on ray takes the cluster of RAY_ADDRESS or of this machine, else it starts one here: docs/machines.md."""


def run(arguments: Sequence[str]) -> int:
    """Check every variant, run the unfinished ones, compare; the exit code is 1 if a run failed."""
    from grpo_plus.sweep.vary import SweepError

    try:
        return _sweep(arguments)
    except SweepError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"the sweep's folder cannot be used: {error}. Resume with the same command.") from error


def _sweep(arguments: Sequence[str]) -> int:
    from grpo_plus.sweep.manifest import locked, open_manifest
    from grpo_plus.sweep.plan import check, make_plan
    from grpo_plus.sweep.runner import StopSignals, run_all
    from grpo_plus.sweep.show import SweepProgress, plan_line
    from grpo_plus.sweep.vary import read_seeds, read_variants

    options, shared = _options(arguments)
    connect = ELSEWHERE.get(options.on) if options.on else None
    plan = make_plan(
        Path(options.config).expanduser(), read_variants(options.vary), read_seeds(options.seeds), shared, options.out
    )
    for variant in plan.variants:
        check_early([options.config, *shared, *variant.flags()])
    environment = naming_us({**os.environ, "PYTHONUNBUFFERED": "1"})
    with locked(plan.out) as hold, contextlib.ExitStack() as stack:
        manifest = open_manifest(plan)
        print(plan_line(manifest))
        if manifest.unfinished():
            resources = plan, naming_us, options.cpus, options.gpus
            elsewhere = stack.enter_context(connect(*resources)) if connect else None
            print("checking every variant before the first run starts", flush=True)
            if elsewhere:
                elsewhere.check(CHECKER)
            else:
                check(plan, environment, CHECKER)
            if options.dry_run:
                print("dry run: no problems; no run was started, no model loaded or trained.")
                return 0
            manifest.save()
            progress, stop = SweepProgress(manifest), StopSignals()
            with stop.listening():
                if elsewhere:
                    elsewhere.run_all(manifest, progress, stop)
                else:
                    run_all(manifest, progress, stop, environment=environment, hold=hold)
        return _compare(manifest, arguments)


def _compare(manifest: "SweepManifest", arguments: Sequence[str]) -> int:
    from rich.console import Console

    from grpo_plus.record import RunError
    from grpo_plus.report.write import write_report
    from grpo_plus.sweep.runner import log_tail
    from grpo_plus.sweep.show import result_table, verdict_lines

    plan = manifest.plan
    states = {run: manifest.of(run).state for run in plan.runs}
    finished = [run for run, state in states.items() if state == "finished"]
    code = 0
    if finished:
        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else 120, force_terminal=terminal, highlight=False)  # wide for labels
        console.print(result_table(manifest))
        print("\n".join(verdict_lines(manifest)))
        try:
            path = write_report([run.folder for run in finished], plan.out / "report.html")
        except (RunError, OSError) as error:
            print(f"{PROG}: the report was not written: {error}", file=sys.stderr)
            code = 1
        else:
            print(f"report: {path}")
    if failed := [run for run, state in states.items() if state == "failed"]:
        print(f"{len(failed)} of {len(plan.runs)} runs failed; the end of {failed[0].log}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in log_tail(failed[0].log)), file=sys.stderr)
    if left := len(plan.runs) - len(finished):
        print(f"\n{left} of {len(plan.runs)} runs are not finished. To resume:", file=sys.stderr)
        print(f"  {PROG} {shlex.join(arguments)}", file=sys.stderr)
    if failed:
        return 1
    return INTERRUPTED if left else code


def _options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = CommandParser(
        prog=PROG,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROG} config.yaml --vary OPTION=A,B,… [--seeds 3] [--any.option VALUE …]",
    )
    parser.add_argument("--vary", action="append", default=[], metavar="OPTION=A,B", help="an option and its values")
    parser.add_argument("--seeds", default="1", help="how many (3: seeds 1, 2, 3) or which (7,8); default: 1")
    parser.add_argument("--out", type=Path, help="the sweep's folder; default: the config's output_dir and -sweep")
    parser.add_argument("--on", choices=[*ELSEWHERE], help="run side by side in a Ray cluster; unset: one by one, here")
    parser.add_argument("--cpus", type=float, help="with --on ray: CPUs of each run; default: one for each process")
    parser.add_argument("--gpus", type=float, help="with --on ray: GPUs of each run; default: one for each process")
    parser.add_argument(
        "--dry-run", action="store_true", help="check all runs, load no model, start nothing; exit code 2 for a problem"
    )
    words = list(arguments)
    if any(word in ("-h", "--help") for word in words):
        parser.print_help()
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        raise UserError("the config file comes first: grpo-plus sweep config.yaml --vary advantage=zscore,sign")
    config = words.pop(0)
    options, shared = parser.parse_known_args(words)
    options.config = config
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep starts its own processes: start it once, without accelerate launch or torchrun.")
    for option, value, least in (("--cpus", options.cpus, "above 0"), ("--gpus", options.gpus, "0 or above")):
        if value is None:
            continue
        if options.on is None:
            raise UserError(f"{option} counts with --on ray only: one by one, each run has the machine to itself.")
        if not 0 <= value < float("inf") or (value == 0 and least == "above 0") or (value > 1 and value % 1):
            raise UserError(f"{option} is {value:g}, expected a number {least}; above 1 an integer.")
    if not options.vary:
        typo = next((word for word in shared if nearest(word.partition("=")[0], ["--vary"])), None)
        hint = f"unknown option {typo}, did you mean --vary?" if typo else "give --vary advantage=zscore,sign, say"
        raise UserError(f"nothing varies: {hint}")
    if shared and not shared[0].startswith("-"):  # a value of no option
        raise UserError(
            f"unexpected argument {shared[0]!r}. Give each option that varies its own --vary: --vary A=1,2 --vary B=3,4"
        )
    return options, shared
