"""``grpo-plus reward-model``: train a reward model on preferences or labelled steps, and measure one."""

from collections.abc import Sequence

from grpo_plus.cli import UserError
from grpo_verifiers.errors import ConfigError, VerifierError
from grpo_verifiers.errors.messages import unknown

PROG = "grpo-plus reward-model"
USAGE = f"""\
usage: {PROG} train [config.yaml] [--model NAME] [--data FILE] [--any.option VALUE ...]
       {PROG} eval FOLDER --data FILE

Train a model that scores completions on pairs of a better and a worse one (columns chosen and rejected, with or
without prompt), or one that scores steps (columns prompt, completions and labels); or measure one.

{PROG} train --help and {PROG} eval --help say more."""


def run(arguments: Sequence[str]) -> int:
    """Run one of the two."""
    from grpo_plus.cli import _reward_model_eval, _reward_model_train
    from grpo_plus.reward_model.fit import FitError

    ways = {"train": _reward_model_train.run, "eval": _reward_model_eval.run}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        if arguments:
            raise SystemExit(0)
        return 2
    if arguments[0] not in ways:
        raise UserError(f"{unknown('command', arguments[0], ways)}")
    try:
        return ways[arguments[0]](list(arguments[1:]))
    except (ConfigError, VerifierError, FitError) as error:
        raise UserError(str(error)) from error
