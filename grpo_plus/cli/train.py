"""``grpo-plus train``: train a model from a YAML file."""

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.checkpoints.disk import FailedWrite
from grpo_plus.checkpoints.folder import last_checkpoint
from grpo_plus.cli import UserError
from grpo_plus.cli._parser import by_option, without
from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.check.finding import CheckFinding
    from grpo_plus.checkpoints.folder import Choice
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.trainer import GRPOPlusTrainer


PROG = "grpo-plus train"
STOPPED_BY_FINDING = 3
"""Exit code of a run ended by ``stop_on``."""
HOSTS = ("trl", "transformers", "accelerate", "peft", "torch", "tokenizers", "safetensors", "jinja2")


def run(arguments: Sequence[str]) -> int:
    """Check everything, then train in this process, or through ``accelerate launch`` if there are launch arguments."""
    if help_flags := {"-h", "--help", "--help-all", "--help_all"} & set(arguments):
        from grpo_plus.cli._help import text

        print(text(PROG, everything=bool(help_flags & {"--help-all", "--help_all"})))
        return 0
    if not arguments:
        raise UserError(f"give a config file: {PROG} config.yaml. grpo-plus init writes one.")
    from grpo_plus.cli._quick_checks import check_early, is_rank

    check_early(arguments, trains=True)
    from grpo_plus.cli._arguments import parse

    parsed = parse(PROG, arguments)
    if parsed.launch and not is_rank():
        from grpo_plus.cli._launch import launch

        return launch(parsed, arguments, plain_command(arguments))
    return _train(parsed, arguments)


def _train(parsed: "Parsed", arguments: Sequence[str]) -> int:
    import torch
    import transformers
    from packaging.version import Version

    from grpo_plus.cli._folder import claimed, clear, prepare, start_of
    from grpo_plus.cli._notes import adapter_notes, load_notes, slow_here
    from grpo_plus.cli._quick_checks import quiet_bars
    from grpo_plus.trl.ranks import broadcast_from_main
    from grpo_verifiers.errors import ConfigError, VerifierError

    args, script = parsed.training, parsed.script
    folder = Path(args.output_dir)
    command = plain_command(arguments)
    if parsed.filled:
        _print("For a quantised base, options that were left unset:", *(f"  {default}" for default in parsed.filled))
    _print(*adapter_notes(parsed))
    if slow := slow_here(parsed):
        raise UserError(slow)
    _print(*load_notes(parsed))
    quiet_bars()
    if script.torch_threads is not None:
        torch.set_num_threads(script.torch_threads)
    with claimed(folder):
        choice, messages, done = broadcast_from_main(lambda: start_of(args, parsed.folder))
        _print(*messages)
        if done:
            return 0
        resumes, value = choice.checkpoint is not None, args.resume_from_checkpoint
        old: list[Path] = []
        if _is_main():
            overwrite = args.overwrite_output_dir
            bare = plain_command(arguments, {"--output_dir"})
            old = prepare(folder, value=value, resumes=resumes, overwrite=overwrite, command=command, elsewhere=bare)
        try:
            trainer = build_trainer(parsed, choice.checkpoint)
        except (ConfigError, VerifierError) as error:
            raise UserError(str(error)) from error
        if _is_main():
            _print(*clear(folder, old, resumes=resumes))
        code = _run(trainer, parsed, choice, arguments)
    _leave_together(trainer, code)
    if Version(transformers.__version__) >= Version("5.18.0"):
        trainer.end()
    return code


def _run(trainer: "GRPOPlusTrainer", parsed: "Parsed", choice: "Choice", arguments: Sequence[str]) -> int:
    """Train, save, and print the output files, or how to resume an interrupted run."""
    from grpo_plus.advantages import EstimatorOutputError
    from grpo_plus.checkpoints.disk import UNSAVED, failed_write
    from grpo_plus.checkpoints.folder import seal_model
    from grpo_plus.cli._progress import ProgressLines
    from grpo_plus.memory.errors import StepTooLargeError
    from grpo_plus.objectives.objective import ObjectiveOutputError
    from grpo_plus.sampling.vllm_http import ServerError
    from grpo_plus.training.observers import EvaluationInterrupted, Interruption
    from grpo_plus.training.resume import StateError
    from grpo_plus.training.rollout import DriftError
    from grpo_plus.trl.logs import save_checkpoint_now
    from grpo_verifiers.errors import ConfigError, VerifierError

    args, folder = parsed.training, Path(parsed.training.output_dir)
    again = f"{plain_command(arguments)} --resume_from_checkpoint last"
    # A verifier that always fails, a column missing from a stream, an unusable result, a changed setting.
    refusals = (VerifierError, EstimatorOutputError, ObjectiveOutputError, StepTooLargeError, StateError, ConfigError)
    ProgressLines.instead_of_logs(trainer)
    end_record = None if trainer.pipeline.recorder is None else partial(trainer.pipeline.recorder.end, "interrupted")
    interruption = Interruption(stopped=end_record, leads=_is_main())
    trainer.add_callback(interruption)
    trainer.pipeline.diagnosis.logs_at_end = False
    try:
        if trainer.measure:
            trainer.measure.before(_print, resumes=choice.checkpoint is not None)
        with interruption.listening():
            try:
                trainer.train(resume_from_checkpoint=choice, allow_changes=parsed.script.allow_changes)
                stopped = interruption.stopped and trainer.state.global_step < trainer.state.max_steps
                stopped = stopped or trainer.pipeline.diagnosis.stopped_by is not None
            except EvaluationInterrupted:
                save_checkpoint_now(trainer)
                stopped = True
            model = None if stopped else trainer.pipeline.saving.save_model(folder)
            if not stopped:
                if trainer.measure:
                    trainer.measure.take("after")
                    trainer.card_facts["Accuracy"] = trainer.measure.fact()
                    if trainer.pipeline.recorder is not None:
                        # The first one has no accuracy after training.
                        trainer.pipeline.recorder.write_report(last=True)
                if model is None:
                    trainer.create_model_card(folder.resolve().name, _hub_dataset(parsed))
    except (*refusals, DriftError) as error:
        raise UserError(str(error)) from error
    except ServerError as error:
        hint = f" Resume with:\n  {again}" * (trainer.state.global_step > 0)
        raise UserError(f"{error}{hint}") from error
    except Exception as error:
        problem = failed_write(error, folder)
        refused = isinstance(error, ValueError | TypeError | KeyError | ImportError) and trainer.state.global_step == 0
        if problem is None and refused and (host_message := _host_message(error)):
            raise UserError(host_message) from error
        if problem is None:
            raise
        raise UserError(f"{problem}. {_resume_hint(folder, problem, again)}") from error
    if message := final_save_problem(trainer, model, again, stopped=stopped):
        _warn(message)
        return UNSAVED
    if stopped:
        finding = None if interruption.stopped else trainer.pipeline.diagnosis.stopped_by
        why = "" if finding is None else f" by stop_on {finding.name}"
        steps = f"step {trainer.state.global_step} of {trainer.state.max_steps}"
        _print(*_findings(trainer), f"Stopped after {steps}{why}. Resume with:\n  {again}")
        return interruption.exit_code if finding is None else STOPPED_BY_FINDING
    _print(*_closing(trainer, parsed, arguments))
    if args.push_to_hub and (message := push(trainer, parsed.script.dataset_name)):
        _warn(message)
        return UNSAVED
    if _is_main():
        with contextlib.suppress(OSError):  # the same command would save the model once more
            seal_model(folder, trainer.state.global_step)
    return 0


def _host_message(error: Exception) -> str:
    """Return the message for an error of TRL or its packages before the first step; empty for any other."""
    from grpo_verifiers.errors.frames import place

    if place(error):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    package = next((name for name in HOSTS if f"/{name}/" in last.filename), None)
    if package is None:
        return ""
    where = f"{package}, {last.name} in {Path(last.filename).name}, line {last.lineno}"
    return f"the model cannot be trained with this config: {type(error).__name__}: {error} ({where})."


def _closing(trainer: "GRPOPlusTrainer", parsed: "Parsed", arguments: Sequence[str]) -> list[str]:
    folder = Path(parsed.training.output_dir)
    diagnosis, report = trainer.pipeline.diagnosis, folder / "report.html"
    severe = any(one.severity == "severe" for one in diagnosis.at_end())
    shown = trainer.pipeline.recorder is not None and report.is_file()
    return [
        *(trainer.measure.summary() if trainer.measure else []),
        *filter(None, [diagnosis.reward_change()]),
        f"The model is in {parsed.training.output_dir}.",
        *([f"The report is {report}."] if shown else []),
        *_findings(trainer),
        *next_steps([] if severe else parsed.script.next_steps or [], arguments, parsed.folder, folder),
    ]


def _findings(trainer: "GRPOPlusTrainer") -> list[str]:
    diagnosis = trainer.pipeline.diagnosis
    title = f"This run is done, but: {diagnosis.outcome}." if diagnosis.outcome else ""
    return list(filter(None, [title, diagnosis.closing_text()]))


def plain_command(arguments: Sequence[str], more: Collection[str] = ()) -> str:
    """Return the command without secrets, the options for the start of a run, and ``more``."""
    left_out = {"--resume_from_checkpoint", "--allow_changes", "--overwrite_output_dir", *more}
    program = sys.argv[0]  # with its path if it is not on PATH
    by_path = Path(program).name == "grpo-plus" and shutil.which("grpo-plus") is None
    return shlex.join([program if by_path else "grpo-plus", "train", *redact(without(arguments, left_out))])


def next_steps(lines: Sequence[str], arguments: Sequence[str], folder: Path, output: Path) -> list[str]:
    """Fill the lines of ``next_steps``, without a bare title and commands that set only options of this run."""
    own = set(by_option(arguments))
    filled = []
    for line in lines:
        after = line.partition("{command}")[2]
        options = {pair for pair in by_option(after.split()) if pair[0] not in ("", "--output_dir")}
        if not options or not options <= own:
            filled.append(next_step(line, arguments, folder, output))
    return filled[:-1] if filled and filled[-1].endswith(":") else filled


def next_step(line: str, arguments: Sequence[str], folder: Path, output: Path) -> str:
    """Fill ``{command}`` with the command, without the options that the line sets itself.

    ``{folder}`` is the config's, relative to the working directory, and ``{output_dir}`` the run's.
    """
    line = line.replace("{folder}", os.path.relpath(folder)).replace("{output_dir}", shlex.quote(str(output)))
    before, command, after = line.partition("{command}")
    replaced = {option for option, _ in by_option(after.split())} - {""}
    return f"{before}{plain_command(arguments, replaced)}{after}" if command else line


def _is_main() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _print(*lines: str) -> None:
    if lines and _is_main():
        with contextlib.suppress(OSError):  # a log on a full disk, or a closed pipe
            print("\n".join(lines), flush=True)


def _warn(text: str) -> None:
    if _is_main():
        print(redact_text(f"{PROG}: {text}"), file=sys.stderr, flush=True)


def _hub_dataset(parsed: "Parsed") -> str | None:
    """Return the dataset's name on the hub for the card's metadata; None for a file or a function."""
    name = parsed.script.dataset_name
    is_name = name and not is_reference(name) and not Path(name).suffix and name.count("/") <= 1
    local = is_name and ((parsed.folder / name).exists() or Path(name).exists())
    return name if is_name and not local and not name.startswith((".", "~")) else None


def build_trainer(parsed: "Parsed", resumed: Path | None = None) -> "GRPOPlusTrainer":
    """Build the trainer of a command line; ``resumed`` is its checkpoint."""
    from trl import get_peft_config, get_quantization_config

    from grpo_plus.cli._data import model_path
    from grpo_plus.cli._gather import gather
    from grpo_plus.cli._prompts import with_prompts
    from grpo_plus.cli._warm_start import begin
    from grpo_plus.evaluation.measure import Measure
    from grpo_plus.trainer import GRPOPlusTrainer
    from grpo_plus.training.update import load_adapter
    from grpo_plus.warm_start.make import Base, computing_of
    from grpo_verifiers.errors import ConfigError, VerifierError

    script, args, model = parsed.script, parsed.training, parsed.model
    rewards, splits, sets = gather(parsed)
    prompt, measure = parsed.prompt, parsed.measure
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": parsed.trusts_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    path = model_path(model.model_name_or_path, parsed.folder)
    tokenizer = _tokenizer(path, args.model_init_kwargs) if prompt or parsed.warm_start is not None else None
    chat = getattr(tokenizer, "chat_template", None) is not None
    if prompt.get("chat") and not chat:
        raise UserError(f"prompt has chat: true, but the model {path} has no chat template: remove it, or set false.")
    sets = {field: with_prompts(rows, prompt, chat=chat) for field, rows in sets.items()}
    if prompt:
        _show_prompt(next(iter(sets["dataset_train_split"])), tokenizer, args, prompt)
    _check_data(parsed, path, sets, tokenizer)
    init, quantisation, adapter = args.model_init_kwargs, get_quantization_config(model), get_peft_config(model)
    start = Base(path, init, quantisation, adapter, computing_of(args), args.per_device_train_batch_size)
    initial, trained, fact = begin(parsed, start, tokenizer, splits, sets, resumed, _print)
    if initial != path:
        path, args.model_init_kwargs = initial, init | {"revision": None}
    try:
        trainer = GRPOPlusTrainer(
            model=path,
            reward_funcs=rewards or None,
            args=args,
            train_dataset=sets["dataset_train_split"],
            eval_dataset=sets.get("dataset_test_split"),
            quantization_config=quantisation,
            peft_config=adapter,
        )
    except hub_errors() as error:
        raise UserError(trainer_failure(path, args, error)) from error
    except (ConfigError, VerifierError):
        raise
    except (ValueError, ImportError) as error:  # TRL checks combinations with the model, transformers its arguments
        raise UserError(f"the trainer cannot be built: {error}") from error
    except Exception as error:
        strange = [key for key in args.model_init_kwargs if f"unexpected keyword argument '{key}'" in str(error)]
        if isinstance(error, TypeError) and strange:
            text = f"model_init_kwargs has {strange[0]}: {args.model_init_kwargs[strange[0]]!r}"
            raise UserError(f"{text}, which the model {path!r} does not take: remove it.") from error
        if message := _host_message(error):  # a folder with weights of another shape, or torn ones
            raise UserError(message) from error
        raise
    if trained is not None:
        load_adapter(trainer, trained)
    facts = {
        "Base model": model.model_name_or_path,
        "Dataset": script.dataset_name or "a mixture",
        "Prompt": prompt,
        "Warm start": fact,
    }
    trainer.card_facts |= {name: value for name, value in facts.items() if value}
    trainer.command = {
        "prompt": dict(prompt),
        "model_name_or_path": model.model_name_or_path,
        "dataset_name": script.dataset_name,
        "load_in_4bit": bool(model.load_in_4bit),
    }
    trainer.measure = Measure(measure, trainer, sets["measure"]) if measure is not None else None
    return trainer


def _check_data(parsed: "Parsed", path: str, sets: Mapping[str, Any], tokenizer: Any) -> None:
    """Raise `UserError` for data that make the run worthless, before the warm start; print the rest about its golds."""
    from grpo_plus.check.data import SAMPLE, DataCheck, check_arguments, read_data
    from grpo_plus.check.finding import guarded, settle
    from grpo_plus.trl.ranks import broadcast_from_main
    from grpo_verifiers.errors import ConfigError

    args, rows = parsed.training, sets["dataset_train_split"]
    if args.check == "off":
        return
    parts = [*args.recipe.verifiers, *args.recipe.eval_verifiers]

    def golds() -> "Iterator[CheckFinding]":
        data = read_data(rows, parts, lambda row: row.get("prompt"), SAMPLE)
        yield from DataCheck(args, data, parts).golds(quickly=True)

    def check() -> tuple[list[str], list[str]]:
        problems, lines = settle(guarded("golds", golds()), args.check)
        if parsed.warm_start is None:  # the trainer does the quick checks
            return problems, lines
        quick = check_arguments(path, args, rows, sets.get("dataset_test_split"), tokenizer)
        return [*settle(guarded("data", quick), args.check)[0], *problems], lines

    problems, lines = broadcast_from_main(check)
    _print(*(f"note: {line}" for line in lines))
    if problems:
        raise UserError(str(ConfigError(problems)))


def _tokenizer(path: str, init: Mapping[str, Any]) -> Any:
    from transformers import AutoTokenizer

    keywords = {key: init[key] for key in ("revision", "trust_remote_code") if init.get(key) is not None}
    try:
        return AutoTokenizer.from_pretrained(path, **keywords)
    except (OSError, ValueError) as error:
        raise UserError(f"model_name_or_path: the tokenizer of {path!r} cannot be loaded: {error}") from error


def _show_prompt(row: Mapping[str, Any], tokenizer: Any, args: Any, prompt: Mapping[str, Any]) -> None:
    """Print one prompt as the model reads it, since most mistakes are visible there, with notes about it."""
    from grpo_plus.cli._notes import template_notes
    from grpo_plus.cli._prompts import sample
    from grpo_plus.recipe.recipe import schemas_of

    tools = schemas_of(args.recipe, row)
    keywords = {**(args.chat_template_kwargs or {}), **({"tools": tools} if tools else {})}
    try:
        text = sample(row["prompt"], tokenizer, keywords)
    except Exception:  # noqa: BLE001 - the check of the template reports it
        return
    _print("A prompt, as the model reads it:", text)
    name = str(getattr(tokenizer, "name_or_path", "") or "the model")
    _print(*(f"note: {note}" for note in template_notes(args, prompt, name, tokenizer, text)))


def _leave_together(trainer: "GRPOPlusTrainer", code: int) -> None:
    """Wait for all ranks: torch stops the remaining ones after the first that ends with an error.

    A CPU rank exits at once: gloo's shutdown can wait forever for a rank that has exited.
    """
    from torch import distributed

    if not distributed.is_initialized():
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trainer.accelerator.wait_for_everyone()
    if distributed.get_backend() != "gloo":
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - trackers and worker processes shut down there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the hub, for any HTTP library of huggingface_hub, and of the disk."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple({OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))})


def trainer_failure(path: str, args: "GRPOPlusConfig", error: Exception) -> str:
    """Return the message for a failure of the disk or the hub while the trainer is built."""
    request = str(error)
    with contextlib.suppress(AttributeError, RuntimeError):  # an error of the disk has no request
        request += str(error.request.url)  # type: ignore[attr-defined]
    if args.push_to_hub and "/api/repos/create" in request:
        return (
            f"push_to_hub: cannot create the repository {args.hub_model_id or Path(args.output_dir).name!r}: {error}. "
            "Log in (hf auth login, or HF_TOKEN) with a token that may write there, or correct hub_model_id; or set "
            "push_to_hub: false, train, and push the folder later (hf upload)."
        )
    return f"model_name_or_path: loading {path!r} failed: {error}"


def push(trainer: "GRPOPlusTrainer", dataset: str | None) -> str:
    """Push the model with TRL's own method; return a message if that fails. The model stays in its folder."""
    try:
        trainer.push_to_hub(dataset_name=dataset)
    except hub_errors() as error:
        folder = trainer.args.output_dir
        later = shlex.join(["hf", "upload", str(trainer.hub_model_id), folder, "--exclude", "checkpoint-*", "_*"])
        return f"the model is in {folder}, but was not pushed to the Hub ({error}). Push it later:\n  {later}"
    return ""


def final_save_problem(
    trainer: "GRPOPlusTrainer", model: FailedWrite | None, command: str, *, stopped: bool
) -> str | None:
    """Return the message for a failed write of ``model`` or a checkpoint, or None; ``command`` resumes the run."""
    folder, at, checkpoint = Path(trainer.args.output_dir), trainer.state, trainer.pipeline.saving.failed
    if model is not None:
        message = f"trained to step {at.global_step}, but the model could not be written to {folder}: {model}"
        return f"{message}. {_resume_hint(folder, model, command)}"
    if checkpoint is None:
        return None
    if stopped:
        message = f"stopped after step {at.global_step} of {at.max_steps}, whose checkpoint could not be written"
        return f"{message}: {checkpoint}. {_resume_hint(folder, checkpoint, command)}"
    last = last_checkpoint(folder, hashes=False)
    return (
        f"the model is in {folder}, but the checkpoint of step {at.global_step} could not be written: {checkpoint}. "
        + (f"A longer run resumes from {last.name}." if last else "There is no complete one to resume from.")
    )


def _resume_hint(folder: Path, problem: FailedWrite, command: str) -> str:
    last = last_checkpoint(folder)
    if last is None:
        return (
            f"There is no complete checkpoint to resume from. {problem.remedy} and start again; save_strategy: steps "
            "keeps checkpoints on the way."
        )
    return f"The last complete checkpoint is {last.name}. {problem.remedy}, and resume with:\n  {command}"
