"""``grpo-plus eval``: accuracy of a model on a dataset, by a verifier, with intervals."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.checkpoints.folder import read_json
from grpo_plus.cli import UserError
from grpo_plus.cli._data import local_data, local_model
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._quick_checks import print_status, quiet_bars
from grpo_plus.cli._tool_use import (
    DEFAULT_LENGTH,
    NOTHING,
    SAMPLING,
    TURN_FIELDS,
    RunSettings,
    add_tool_options,
    read_run_settings,
    run_folders,
    tool_use,
)
from grpo_plus.cli._verifiers import add_verifier_options, make_verifiers, require_columns
from grpo_plus.record import runs_near
from grpo_verifiers.errors import ConfigError, VerifierError
from grpo_verifiers.errors.messages import counted, unknown

if TYPE_CHECKING:
    from grpo_plus.evaluation.results import EvalSample, Evaluation
    from grpo_plus.evaluation.sample import SampleSettings
    from grpo_plus.evaluation.turns import ToolUse
    from grpo_verifiers import Verifier

PROG = "grpo-plus eval"
MANY_CUT_OFF = 0.05
"""Smallest share of cut-off completions that is reported."""
_PROMPT_FLAGS = {"prompt_column": "column", "user": "user", "system": "system", "template": "template"}


def run(arguments: Sequence[str]) -> int:
    """Run all checks that need no model, then load the model, sample, verify and print."""
    options = _options(arguments)
    ks = _ks(options.k, options.n)
    local_data(options.dataset, None, "--dataset")
    options.loaded = _base_and_adapter(options)
    settings = _adopt_run_settings(options)
    try:
        verifiers = make_verifiers(options)
    except (ConfigError, VerifierError) as error:
        raise UserError(str(error)) from error
    print_status("Loading torch and transformers.")
    from grpo_plus.evaluation.run import check_numbers
    from grpo_plus.evaluation.sample import SampleSettings
    from grpo_plus.evaluation.store import StoreError
    from grpo_verifiers.exec.runner import close_shared_runners

    quiet_bars()
    try:
        check_numbers(options.n, ks, options.batch)
        if options.n > 1 and options.temperature == 0:
            raise UserError(f"-n is {options.n} and --temperature 0, but greedy samples are alike: leave -n out.")
        drawing = SampleSettings(options.max_completion_length, **{name: getattr(options, name) for name in SAMPLING})
        return _evaluate(options, ks, drawing, verifiers, settings)
    except (VerifierError, StoreError, ValueError) as error:
        raise UserError(str(error)) from error
    finally:
        close_shared_runners()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog=PROG, usage=f"{PROG} MODEL --dataset DATASET --verifier NAME [options]", description=__doc__
    )
    parser.add_argument("model", help="a folder or a name on the hub; a folder with an adapter brings its base along")
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", required=True, help="a file, a folder, a name on the hub, or module:function")
    data.add_argument("--config", help="configuration of a hub dataset")
    data.add_argument("--split", help="split of the dataset (default: test, or the only one)")
    data.add_argument("--limit", type=int, help="only the first rows")
    data.add_argument("--prompt-column", help="column of the prompt (default: that of the run, or prompt)")
    data.add_argument("--user", help="the prompt's text, with {column} placeholders")
    data.add_argument("--system", help="a system message before every prompt")
    data.add_argument("--template", help="name of an answer format, as in train's prompt: {template: …}")
    data.add_argument(
        "--settings-from", metavar="RUN", help="prompt and sampling of this run, or none; default: of MODEL's run"
    )
    add_verifier_options(parser.add_argument_group("verifier"))
    add_tool_options(
        parser.add_argument_group("tools and environments; default: those of the run that trained the model")
    )
    draws = parser.add_argument_group("sampling")
    draws.add_argument("-n", type=int, default=1, help="completions of each row (default: 1)")
    draws.add_argument("-k", help="for pass@k, as 1,4,8 (default: 1 and n)")
    draws.add_argument("--temperature", type=float, help="0 is greedy (default: that of the run, or 1)")
    draws.add_argument("--top-p", type=float)
    draws.add_argument("--top-k", type=int, help="0 for no limit")
    draws.add_argument(
        "--max-completion-length", type=int, help=f"tokens, at most (default: that of the run, or {DEFAULT_LENGTH})"
    )
    draws.add_argument("--seed", type=int, default=0)
    draws.add_argument("--batch", type=int, default=64, help="completions drawn together (default: 64)")
    loading = parser.add_argument_group("loading")
    loading.add_argument("--adapter", help="folder of an adapter to put on the model")
    loading.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    loading.add_argument("--device", help="cpu, cuda, …; default: the accelerator, if any")
    loading.add_argument("--load-in-4bit", action="store_true", help="quantise the base with bitsandbytes (NF4)")
    loading.add_argument("--trust-remote-code", action="store_true", help="run the model's own code")
    parser.add_argument("--out", type=Path, help="file for the samples (.jsonl); resumed if unfinished")
    parser.add_argument("--overwrite", action="store_true", help="discard an existing --out")
    return parser.parse_args(arguments)


def _ks(text: str | None, n: int) -> list[int]:
    if text is None:
        return sorted({1, n}) if n >= 1 else [1]
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise UserError(f"-k is {text!r}, expected whole numbers separated by commas, like 1,4,8.") from error


def _adopt_run_settings(options: argparse.Namespace) -> RunSettings:
    """Fill unset ``options`` from the run of the model, and print the adopted settings."""
    named = options.settings_from
    settings = None
    if named != NOTHING:
        settings = read_run_settings(run_folders(named) if named else run_folders(options.adapter, options.model))
        if named and settings is None:
            raise UserError(f"--settings-from {named}: there is no run with a record in it.{runs_near(Path(named))}")
    run = settings or RunSettings(Path())
    own = _prompt_of(options)
    question = {"column", "user"} & own.keys()
    options.prompt = {
        key: value for key, value in run.prompt.items() if not (question and key in ("column", "user"))
    } | own
    if summary := run.summary():
        print_status(summary)
    if options.max_completion_length is None:
        options.max_completion_length = run.most or DEFAULT_LENGTH
        if run.most is None:
            print_status(f"Completions of at most {DEFAULT_LENGTH} tokens: set --max-completion-length to change this.")
    for name, default in SAMPLING.items():
        if getattr(options, name, None) is None:
            setattr(options, name, run.sampling.get(name, default))
    options.template_keywords = dict(run.template_keywords)
    return run


def _evaluate(
    options: argparse.Namespace, ks: list[int], drawing: "SampleSettings", verifiers: "list[Verifier]", run: RunSettings
) -> int:
    from rich.console import Console
    from tqdm import tqdm  # type: ignore[import-untyped]  # comes with transformers

    from grpo_plus.cli._prompts import with_prompts
    from grpo_plus.evaluation.results import WIDTH, results_table
    from grpo_plus.evaluation.run import evaluate
    from grpo_plus.evaluation.store import SampleStore

    rows = _rows(options)
    tools = tool_use(options, run_folders(options.adapter, options.model))
    if not verifiers and (
        tools is None or not any(part.rewards for part in tools.config().recipe.environments.values())
    ):
        raise UserError("nothing scores the completions: give --verifier, or an environment with get_reward.")
    base, adapter = options.loaded
    _check_columns(verifiers, rows, options, run)
    store = SampleStore(options.out, _settings(options, tools), overwrite=options.overwrite) if options.out else None
    try:
        model, tokenizer = _load_model(base, adapter, options)
        chat = tokenizer.chat_template is not None
        prompt = options.prompt or ({"column": "prompt"} if tools is not None and chat else {})  # texts become chats
        rows = with_prompts(rows, prompt, chat=chat)
        done = store.done if store else []
        total = len(rows) * options.n
        if done:
            print(f"{len(done)} of {total} samples are in {options.out} already.", file=sys.stderr)
        slow = 0.1 if sys.stderr.isatty() else 10.0  # seconds between two lines of a log
        with tqdm(total=total, initial=len(done), desc="sampling", mininterval=slow) as progress:

            def report(samples: "Sequence[EvalSample]") -> None:
                if store:
                    store.add(samples)
                progress.update(len(samples))

            evaluation = evaluate(
                model, tokenizer, rows, verifiers, tools=tools, n=options.n, ks=ks, drawing=drawing, seed=options.seed,
                batch=options.batch, done=done, report=report, template_keywords=options.template_keywords,
            )  # fmt: skip
        if store:
            store.finish(evaluation)
    except KeyboardInterrupt:
        if store:
            print(f"\nInterrupted; the same command resumes from {options.out}.", file=sys.stderr)
        raise
    finally:
        if store:
            store.close()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH, force_terminal=False)
    console.print(results_table({f"{counted(len(rows), 'row')}, {counted(options.n, 'sample')} each": evaluation}))
    _print_notes(evaluation, ks, options.max_completion_length)
    if store:
        print(f"samples: {store.path}\nresults: {store.results_path}")
    return 0


def _print_notes(evaluation: "Evaluation", ks: Sequence[int], most: int) -> None:
    if evaluation.cut_off >= MANY_CUT_OFF:
        print(
            f"{evaluation.cut_off:.0%} of the completions were cut off at {most} tokens, before they could end: raise "
            "--max-completion-length, unless the model never ends."
        )
    print("95% confidence intervals, over the choice of rows and samples.", *evaluation.notes, sep="\n")
    for label, results in evaluation.results.items():
        if max(ks) > 1 and not results.majorities:
            print(f"{label} has no majority: it does not return the answer of a completion (stated).")


def _rows(options: argparse.Namespace) -> Any:
    from grpo_plus.cli._data import load_rows, pick_split

    splits = load_rows(options.dataset, options.config)
    options.split = options.split or (next(iter(splits)) if len(splits) == 1 else "test")
    rows = pick_split(splits, options.split, "--split")
    if not hasattr(rows, "__len__"):
        raise UserError(f"--dataset {options.dataset!r} is a stream; an evaluation needs the number of rows.")
    if options.limit is not None:
        if options.limit < 1:
            raise UserError(f"--limit is {options.limit}, expected at least 1.")
        rows = rows.select(range(min(options.limit, len(rows))))
    if len(rows) == 0:
        raise UserError(f"--dataset {options.dataset!r} has no rows in the split {options.split!r}.")
    return rows


def _prompt_of(options: argparse.Namespace) -> dict[str, str]:
    return {key: value for flag, key in _PROMPT_FLAGS.items() if (value := getattr(options, flag)) is not None}


def _check_columns(verifiers: "Sequence[Verifier]", rows: Any, options: argparse.Namespace, run: RunSettings) -> None:
    from grpo_plus.cli._prompts import check_columns, prompt_problems

    if problems := prompt_problems(options.prompt):
        raise UserError(" ".join(problems))
    where = f"--split {options.split}"
    if options.prompt != _prompt_of(options):
        where += f", with the prompt of the run {run.folder}"
    check_columns(rows, options.prompt, where, {"column": "--prompt-column", "user": "--user"})
    needed = {verifier.label: verifier.required_columns for verifier in verifiers}
    require_columns(needed, rows.column_names, "--column PARAMETER=COLUMN")


def _base_and_adapter(options: argparse.Namespace) -> tuple[str, str | None]:
    """Return the base model and the adapter; a folder with an adapter names its base."""
    adapter, base = options.adapter, options.model
    if adapter is not None and not (Path(adapter) / "adapter_config.json").is_file():
        near = runs_near(Path(adapter))
        raise UserError(f"--adapter is {adapter!r}, but there is no adapter_config.json in it.{near}")
    config = Path(base).expanduser() / "adapter_config.json"
    if config.is_file() and not (config.parent / "config.json").is_file():
        if adapter is not None:
            raise UserError(f"{base} is an adapter itself: give its base model, or leave --adapter out.")
        named = read_json(config).get("base_model_name_or_path")
        if not named:
            raise UserError(f"{config} names no base model: {PROG} BASE --adapter {base}")
        print_status(f"{base} is an adapter on {named}.")
        return str(named), str(base)
    local_model(base, "MODEL", functions=False)
    return base, adapter


def _load_model(base: str, adapter: str | None, options: argparse.Namespace) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from grpo_plus.qlora.model import keep_layout

    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    device = options.device or str(present)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"--device is {device!r}, which this machine does not have: {reason}") from error
    dtypes = ("auto", "float32", "bfloat16", "float16")
    if options.dtype not in dtypes:
        raise UserError(f"--dtype: {unknown('type', options.dtype, dtypes)}")
    trust = options.trust_remote_code
    extra: dict[str, Any] = {"dtype": options.dtype, "device_map": {"": device}}
    if options.load_in_4bit:
        extra["quantization_config"] = _four_bits(options, torch.device(device))
    try:
        model = AutoModelForCausalLM.from_pretrained(base, trust_remote_code=trust, **extra)
        if options.load_in_4bit:
            keep_layout(model)
        # Prefer the adapter's tokenizer: training may have changed the template.
        own = adapter if adapter is not None and (Path(adapter) / "tokenizer_config.json").is_file() else base
        tokenizer = AutoTokenizer.from_pretrained(own, trust_remote_code=trust)
        if adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, adapter)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"the model {base!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return model.eval(), tokenizer


def _four_bits(options: argparse.Namespace, device: Any) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    from grpo_plus.qlora.defaults import Device

    present = Device.present(use_cpu=device.type == "cpu")
    best = "float32" if present.kind == "cpu" else "bfloat16" if present.bf16 else "float16"
    compute = getattr(torch, best if options.dtype == "auto" else options.dtype)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )


def _settings(options: argparse.Namespace, tools: "ToolUse | None") -> dict[str, Any]:
    excluded = {"batch", "out", "overwrite", "device", "k", "loaded", "prompt", *_PROMPT_FLAGS}
    excluded |= {"settings_from", "tools_from"}
    settings = {name: value for name, value in vars(options).items() if name not in excluded}
    settings |= {name: options.prompt.get(key) for name, key in _PROMPT_FLAGS.items()}
    if "chat" in options.prompt:
        settings["chat"] = options.prompt["chat"]
    if tools is not None:
        config = tools.config()
        settings |= {name: getattr(config, name) for name in (*TURN_FIELDS, "chat_template_kwargs")}
    return settings
