"""The selection of a config, and every problem of the choice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_plus.recipe.forms import named
from grpo_plus.recipe.options import changed_fields
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


def selection_problems(config: Any, selected: Selected | None) -> list[str]:
    """Fields that a selection which draws cannot go with."""
    if selected is None or not selected.selection.draws:
        return []
    problems = []
    if selected.selection.name == "contrast" and config.num_generations == 1:
        problems.append(
            "selection is 'contrast', but num_generations is 1: a group of one has no contrast, so no prompt would be "
            "drawn. Set num_generations to 2 or more, or remove selection."
        )
    if changed_fields(config, ("shuffle_dataset",)):
        problems.append(
            f"shuffle_dataset is {config.shuffle_dataset!r}, but selection ({selected.selection.name!r}) draws the "
            "prompts, and no order of the data is left: remove one of the two."
        )
    accelerator = config.accelerator_config
    given = accelerator if isinstance(accelerator, Mapping) else vars(accelerator) if accelerator else {}
    if given.get("dispatch_batches"):
        problems.append(
            "accelerator_config has dispatch_batches: true, but selection "
            f"({selected.selection.name!r}) draws the prompts on every process: remove it."
        )
    return problems


def absolute_file(keywords: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """A selection's keywords with the path of the keyword ``file`` made absolute."""
    file = keywords.get("file")
    return (
        {**keywords, "file": str((base / Path(file).expanduser()).resolve())} if isinstance(file, str) else {**keywords}
    )
