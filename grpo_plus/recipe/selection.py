"""The selection of a config, and every problem of the choice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_plus.recipe.forms import named
from grpo_plus.recipe.recipe import Selected
from grpo_plus.selection import check_selection_kwargs, get_selection
from grpo_verifiers.errors import PluginError, Problem, VerifierError


def choose_selection(config: Any) -> tuple[Selected | None, list[Problem]]:
    """The selection of a config, None without one; problems of its name and keywords."""
    name, keywords = named("selection", config.selection)
    if name is None:
        return None, []
    try:
        problems: list[Problem] = [*check_selection_kwargs(name, keywords)]
        return Selected(get_selection(name), keywords), problems
    except PluginError as error:
        return None, [error]
    except VerifierError:  # told above
        return None, problems


def absolute_file(keywords: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """A selection's keywords with the path of the keyword ``file`` made absolute."""
    file = keywords.get("file")
    return (
        {**keywords, "file": str((base / Path(file).expanduser()).resolve())} if isinstance(file, str) else {**keywords}
    )
