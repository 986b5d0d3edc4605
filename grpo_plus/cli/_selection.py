"""A selection in words, and its draws on a small invented history."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.recipe.recipe import Selected


def selection_lines(config: "GRPOPlusConfig") -> list[str]:
    """Return the selection, its bias, and the distribution over six prompts."""
    from grpo_plus.recipe.choice import divides_by_tokens

    selected = config.recipe.selection
    if selected is None:
        return ["selection: none, TRL's sampler draws all prompts alike"]
    name = config.recipe.names["selection"]
    if not selected.selection.draws:
        return [f"selection: {name}", f"  {selected.selection.formula}; the run records a history of the prompts"]
    kind = "unbiased" if selected.weighted else "a curriculum, biased"
    if selected.weighted and divides_by_tokens(config, config.recipe.objective):
        kind = "unbiased but for the quotient by tokens"
    effect = "groups count (1/N)/π" if selected.weighted else "frequently drawn prompts count more"
    return [
        f"selection: {name}, {kind}: {effect}",
        *(f"  {line}" for line in selected.selection.formula.splitlines()),
        *(f"  {key} = {value}" for key, value in selected.keywords.items()),
        *_numbers(selected, config.num_generations or 2),
    ]


def _numbers(selected: "Selected", size: int) -> list[str]:
    from grpo_plus.selection import PromptHistory
    from grpo_plus.selection.checking import common_of, selection_weights
    from grpo_plus.selection.drawing import distribution, shares
    from grpo_plus.selection.part import SelectionFailedError, SelectionOutputError

    rights = [None, 0, 1, size // 2, size - 1, size]
    groups = [[] if right is None else [1.0] * right + [0.0] * (size - right) for right in rights]
    columns: dict[str, list[Any]] = {"prompt": [f"prompt {place}" for place in range(len(groups))]}
    difficulty = selected.keywords.get("column")
    if isinstance(difficulty, str):  # values from 1
        columns[difficulty] = list(range(1, len(groups) + 1))
    history = PromptHistory.of(groups, num_generations=size, columns=columns)
    explore = float(common_of(selected.selection, selected.keywords)["explore"])

    def probabilities(progress: float) -> Any:
        then = replace(history, progress=progress)
        weights = selection_weights(selected.selection, then, **selected.keywords)
        return distribution(weights, history.rows, explore)

    try:
        first, last = probabilities(0.0), probabilities(1.0)
    except (SelectionOutputError, SelectionFailedError) as error:
        return [f"  its numbers need the prompts of the dataset; on six invented ones: {error}"]
    rows = {"right of a group": ["unseen" if right is None else f"{right}/{size}" for right in rights]}
    changes = not first.equal(last)
    rows["share of draws, first" if changes else "share of draws"] = [f"{float(one):.3g}" for one in first]
    if changes:
        rows["share of draws, last"] = [f"{float(one):.3g}" for one in last]
    if selected.weighted:
        rows["weight of the group"] = [f"{float(one):.3g}" for one in shares(first, history.rows)]
    title = "  on six invented prompts"
    if difficulty:
        title += f", whose {difficulty} is 1 to 6"
    return [f"{title}:", *(f"    {name:<23}{'  '.join(f'{cell:>7}' for cell in row)}" for name, row in rows.items())]
