"""Collect every problem of a config, then raise them together."""

from collections.abc import Iterable


class ConfigError(ValueError):
    """A config that cannot run as it is written; the message lists every problem found."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Number the problems when there are several."""
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)]
            text = "\n".join([f"the config has {len(self.problems)} problems:", *lines])
        super().__init__(text)

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[tuple[str, ...]]]:
        return (ConfigError, (self.problems,))


def raise_all(problems: Iterable[str]) -> None:
    """Raise a `ConfigError` unless ``problems`` is empty."""
    found = list(dict.fromkeys(problems))
    if found:
        raise ConfigError(found)
