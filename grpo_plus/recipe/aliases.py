"""Names of options in other projects, older TRL and earlier versions, and the options with their meaning here."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from grpo_plus.trl.fields import RENAMED_FIELDS
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import nearest

_COMMAND = (
    "it is an option of the command line; in Python, arguments of GRPOPlusTrainer take model, data, rewards and adapter"
)


@lru_cache
def aliases() -> tuple[dict[str, str], dict[str, str]]:
    """The option, and the remedy in words, of each name in ``aliases.txt``."""
    options, remedies = dict(RENAMED_FIELDS), dict[str, str]()
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        names, is_remedy, text = line.partition(" = ")
        if is_remedy:
            remedies |= dict.fromkeys(names.split(), text)
        elif not line.startswith("#"):
            option, _, names = line.partition(": ")
            options |= dict.fromkeys(names.split(), option)
    return options, remedies


class UnknownOptionError(ConfigError, TypeError):
    """Keywords that are no fields of a config; also the error that Python raises for them."""


def remedy(name: str, names: Collection[str], form: str = "{!r}", *, elsewhere: Collection[str] = ()) -> str:
    """The end of a message about an unknown option: its name here, by meaning before spelling.

    ``names`` are the options, ``form`` spells one. Options ``elsewhere`` belong to the command line alone.

    >>> remedy("kl_coef", ["beta"]), remedy("bta", ["beta"], "--{}"), remedy("zzz", ["beta"])
    (". Did you mean 'beta'?", '. Did you mean --beta?', '.')
    """
    options, remedies = aliases()
    parts = name.split(".")
    for tail in [".".join(parts[at:]) for at in range(len(parts))]:
        option = options.get(tail, tail)
        if option in names:
            return f". Did you mean {form.format(option)}?"
        if option in elsewhere:
            return f": {'' if option == name else f'here {option}; '}{_COMMAND}."
        if text := remedies.get(tail):
            return f": {_COMMAND if text == '-' else text}."
    if text := remedies.get(parts[0]):
        return f": {text}."
    close = nearest(name, names, least=0.75)
    return f". Did you mean {form.format(close)}?" if close else "."


def leaves(values: Mapping[str, object], names: Collection[str]) -> list[str]:
    """Names of the options: those of other projects are mappings, such as verl's, whose keys count one by one."""
    inner = {name: value for name, value in values.items() if isinstance(value, dict) and value and name not in names}
    keys = {name: [f"{name}.{leaf}" for leaf in leaves(value, ())] for name, value in inner.items()}
    return [leaf for name in values for leaf in keys.get(name, [name])]
