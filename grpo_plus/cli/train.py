"""``grpo-plus train``: from a YAML file to a trained model."""

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

PROG = "grpo-plus train"


def run(arguments: Sequence[str]) -> int:
    """Check everything, then train here, or through ``accelerate launch`` when launch arguments ask for it."""
    from grpo_plus.cli._arguments import is_rank, make_parser, parse

    if any(argument in ("-h", "--help") for argument in arguments):
        make_parser(PROG).print_help()
        return 0
    parsed = parse(PROG, arguments)
    if parsed.launch and not is_rank():
        return _launch(parsed, arguments)
    return _train(parsed)


def _launch(parsed: "Parsed", arguments: Sequence[str]) -> int:
    """Start the ranks; each comes back here without launch arguments."""
    from accelerate.commands.launch import launch_command, launch_command_parser

    from grpo_plus.cli._arguments import LAUNCHED

    os.environ[LAUNCHED] = "1"
    given = [*parsed.launch, "--module", "grpo_plus.cli", "train", *arguments]
    launch = launch_command_parser().parse_args(given)
    if (parsed.processes or 1) > 1:
        _spread_over_cpu(launch)
    launch_command(launch)
    return 0


def _spread_over_cpu(launch: Any) -> None:
    """Have several CPU ranks started as several GPU ranks are: accelerate's own way is MPI, and one rank without it."""
    import torch

    from grpo_plus.options import read_yaml

    kind = read_yaml(Path(launch.config_file)).get("distributed_type") if launch.config_file else None
    other = (launch.tpu, launch.use_deepspeed, launch.use_fsdp, launch.use_megatron_lm, launch.mpirun_hostfile)
    if any(other) or kind not in (None, False, "NO", "MULTI_CPU", "MULTI_GPU"):  # YAML reads a bare NO as false
        return
    if launch.cpu or kind == "MULTI_CPU" or not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
        launch.cpu, launch.multi_gpu = False, True


def _train(parsed: "Parsed") -> int:
    import transformers
    from packaging.version import Version

    from grpo_plus.problems import ConfigError
    from grpo_verifiers.errors import VerifierError

    if parsed.filled and int(os.environ.get("RANK", "0")) == 0:
        print("For a 4-bit base, options that were left unset:")
        print("\n".join(f"  {default}" for default in parsed.filled))
    try:
        trainer = build_trainer(parsed)
    except (ConfigError, VerifierError) as error:
        raise UserError(str(error)) from error
    args = parsed.training
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(args.output_dir)
    trainer.accelerator.print(f"The model is in {args.output_dir}.")
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=parsed.script.dataset_name)
    _leave_gloo(trainer)
    if Version(transformers.__version__) >= Version("5.18.0"):
        trainer.end()
    return 0


def build_trainer(parsed: "Parsed") -> Any:
    """The trainer that a command line describes."""
    from trl import get_dataset, get_peft_config, get_quantization_config

    from grpo_plus.cli._data import load_rows, pick_split, with_prompts
    from grpo_plus.cli._rewards import resolve_rewards
    from grpo_plus.trainer import GRPOPlusTrainer

    script, args, model = parsed.script, parsed.training, parsed.model
    if not model.model_name_or_path:
        raise UserError("model_name_or_path is missing: name a model on the hub or a folder.")
    rewards = resolve_rewards(script.reward_model_name_or_path, script.reward_funcs or [], parsed.folder)
    if not rewards and not args.verifiers:
        raise UserError("nothing rewards the completions: set verifiers, reward_funcs or reward_model_name_or_path.")
    if parsed.mixture.datasets:
        if script.dataset_name:
            raise UserError("dataset_name and datasets are both set: keep one.")
        splits = get_dataset(parsed.mixture)
    elif script.dataset_name:
        splits = load_rows(
            script.dataset_name, script.dataset_config, streaming=script.dataset_streaming, base=parsed.folder
        )
    else:
        raise UserError("no data: set dataset_name (a file, a folder or a name on the hub) or datasets.")
    prompt = script.prompt if isinstance(script.prompt, dict) else {}
    train = with_prompts(pick_split(splits, script.dataset_train_split, "dataset_train_split"), prompt)
    evaluation = None
    if args.eval_strategy != "no":
        evaluation = with_prompts(pick_split(splits, script.dataset_test_split, "dataset_test_split"), prompt)
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": _trusts_code(args, model),
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    return GRPOPlusTrainer(
        model=_model_path(model.model_name_or_path, parsed.folder),
        reward_funcs=rewards or None,
        args=args,
        train_dataset=train,
        eval_dataset=evaluation,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )


def _model_path(name: str, base: Path) -> str:
    """A folder or a name on the hub; or what the function returns that a reference names."""
    from grpo_plus.cli._data import call_reference

    if not is_reference(name) or Path(name).exists():
        return name
    made = call_reference("model_name_or_path", name, base)
    if not isinstance(made, str | Path):
        raise UserError(f"model_name_or_path: the function {name!r} returned {made!r}, expected the path of a folder.")
    return str(made)


def _trusts_code(args: Any, model: Any) -> bool:
    """TRL moved the switch from the model's group to the training group."""
    return bool(getattr(args, "trust_remote_code", False) or getattr(model, "trust_remote_code", False))


def _leave_gloo(trainer: Any) -> None:
    """End a CPU rank here and now: gloo's own goodbye can wait forever for a rank that has left already."""
    from torch import distributed

    if not distributed.is_initialized() or distributed.get_backend() != "gloo":
        return
    trainer.accelerator.wait_for_everyone()
    atexit._run_exitfuncs()  # noqa: SLF001 - trackers and worker processes say goodbye there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
