"""Rubrics and environments of Prime Intellect's verifiers package as checks.

A module there has a function ``load_environment``, which returns the environment; its tools name the module, with
dashes (``my-env``) or with an owner before it (``me/my-env``). Here a file (``./my_env.py``) and a reference to that
function mean the same. The environment lends its rubric.
"""

import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_verifiers.errors import KeywordError, PluginError, VerifierError
from grpo_verifiers.exec.samples import rows_by_prompt
from grpo_verifiers.exec.spec import by_value
from grpo_verifiers.registry import load_plugin
from grpo_verifiers.verdict import Status, Verdict

LOADER = "load_environment"
_NAMES = ("env", "environment", "vf_env", "rubric")
"""Of an environment or rubric that stands in a file as it is."""


def is_rubric(value: Any) -> bool:
    """True for a rubric of any release up to 0.1."""
    parts = ("_get_reward_funcs", "_get_reward_weights", "class_objects")
    if all(hasattr(value, part) for part in parts) and not inspect.isclass(value):
        return True
    # The first releases called the pair differently.
    return hasattr(value, "get_reward_funcs") and hasattr(value, "get_reward_weights") and not inspect.isclass(value)


def rubric_check(name: str, rubric: Any) -> "RubricCheck | GroupRubricCheck":
    """The check that a rubric makes."""
    funcs, weights = _parts(rubric)
    if not any(weights):
        raise KeywordError(f"verifier {name!r}: the rubric has no reward function with a weight other than 0.")
    if len(funcs) != len(weights):
        raise KeywordError(f"verifier {name!r}: the rubric has {len(funcs)} functions and {len(weights)} weights.")
    is_group = getattr(rubric, "_is_group_func", lambda _: False)
    grouped = any(is_group(fn) for fn, weight in zip(funcs, weights, strict=True) if weight)
    return GroupRubricCheck(rubric) if grouped else RubricCheck(rubric)


def can_travel(check: Any) -> bool:
    """True where a check can be sent to a worker: a judge's client holds sockets and locks, and cannot."""
    try:
        by_value(check)
    except VerifierError:
        return False
    return True


def _parts(rubric: Any) -> tuple[list[Callable[..., Any]], list[float]]:
    funcs = getattr(rubric, "_get_reward_funcs", None) or rubric.get_reward_funcs
    weights = getattr(rubric, "_get_reward_weights", None) or rubric.get_reward_weights
    return list(funcs()), [float(weight) for weight in weights()]


def _objects(rubric: Any) -> dict[str, Any]:
    """The objects that a rubric hands to its functions beside the sample: the parser first of all."""
    found: dict[str, Any] = {}
    for part in [*getattr(rubric, "rubrics", ()), rubric]:
        found.update(getattr(part, "class_objects", None) or {"parser": getattr(part, "parser", None)})
    return found


class RubricCheck:
    """The weighted sum of a rubric's functions, one completion at a time."""

    def __init__(self, rubric: Any) -> None:
        self.rubric = rubric

    async def __call__(self, completion: Any, prompt: Any = None, **columns: Any) -> Verdict:
        """Score one completion; a function that raises fails the check, where the rubric would count it as 0."""
        funcs, weights = _parts(self.rubric)
        given = {**columns, **_objects(self.rubric), **_state(completion, prompt, columns)}
        scores: dict[str, tuple[float, float]] = {}
        for fn, weight in zip(funcs, weights, strict=True):
            if weight:
                scores[_name(fn, scores)] = (weight, float(await _call(fn, given)))
        return _verdict(scores)


class GroupRubricCheck:
    """The same for rubrics with functions that look at all completions of one prompt."""

    def __init__(self, rubric: Any) -> None:
        self.rubric = rubric

    async def __call__(self, completions: Sequence[Any], prompts: Sequence[Any], **columns: Any) -> list[Verdict]:
        """Score a batch, group by group."""
        found: dict[int, Verdict] = {}
        for rows in rows_by_prompt(prompts):
            own = [{name: values[row] for name, values in columns.items()} for row in rows]
            states = [_state(completions[row], prompts[row], one) for row, one in zip(rows, own, strict=True)]
            found.update(zip(rows, await self._group(states, own), strict=True))
        return [found[row] for row in range(len(prompts))]

    async def _group(self, states: list[dict[str, Any]], columns: list[dict[str, Any]]) -> list[Verdict]:
        scores: list[dict[str, tuple[float, float]]] = [{} for _ in states]
        objects = _objects(self.rubric)
        for fn, weight in zip(*_parts(self.rubric), strict=True):
            if not weight:
                continue
            if self.rubric._is_group_func(fn):  # noqa: SLF001 - the rubric decides, and has no public name for it
                plural = {f"{name}s": [state[name] for state in states] for name in states[0]}
                values = [float(value) for value in await _call(fn, {**objects, **plural})]
                if len(values) != len(states):
                    raise ValueError(f"{_name(fn, {})} returned {len(values)} scores for {len(states)} completions")
            else:
                given = [{**own, **objects, **state} for own, state in zip(columns, states, strict=True)]
                values = [float(await _call(fn, one)) for one in given]
            for found, value in zip(scores, values, strict=True):
                found[_name(fn, found)] = (weight, value)
        return [_verdict(found) for found in scores]


def _state(completion: Any, prompt: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    info = columns.get("info")
    if isinstance(info, str):  # datasets keep it as JSON text
        info = json.loads(info)
    state: dict[str, Any] = {
        "prompt": prompt,
        "completion": completion,
        "answer": columns.get("answer", ""),
        "info": info or {},
        "task": columns.get("task", "default"),
    }
    return {**state, "state": {**columns, **state}}


async def _call(fn: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(fn).parameters.values()
    wants_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    value = fn(**{name: value for name, value in given.items() if wants_all or name in names})
    return await value if inspect.isawaitable(value) else value


def _name(fn: Callable[..., Any], taken: Mapping[str, Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if name not in taken else f"{name}_{len(taken)}"


def _verdict(scores: Mapping[str, tuple[float, float]]) -> Verdict:
    total = sum(weight * value for weight, value in scores.values())
    most = sum(weight for weight, _ in scores.values() if weight > 0)
    status = Status.CORRECT if total >= most else Status.WRONG if total <= 0 else Status.PARTIAL
    return Verdict(total, status, ", ".join(f"{name}={value:g}" for name, (_, value) in scores.items()))


def lent(value: Any) -> Any:
    """The rubric that a value is or lends; None for anything else."""
    rubric = value if is_rubric(value) else getattr(value, "rubric", None)
    return rubric if is_rubric(rubric) else None


def loaded(name: str, function: Any) -> Any:
    """What a ``load_environment`` returns."""
    try:
        found = function()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"verifier {name!r}: {LOADER}() failed: {type(error).__name__}: {error}. It is called without arguments: "
            "where it needs some, make the environment in a file of your own, and refer to it as ./file.py:env."
        ) from error
    if lent(found) is None:
        raise KeywordError(
            f"verifier {name!r}: {LOADER}() returned {type(found).__name__}, expected an environment with a rubric, of "
            "Prime Intellect's verifiers package up to 0.1."
        )
    return found


def named_environment(name: str, base: Path | None) -> Any:
    """The environment that a file or an installed module holds; None where ``name`` is neither."""
    if name.endswith(".py"):
        module = load_plugin(name, base)
    else:
        spelled = name.rpartition("/")[2].replace("-", "_")
        if not spelled.isidentifier() or not _declares(spelled):
            return None
        module = load_plugin(spelled)
    if callable(loader := getattr(module, LOADER, None)):
        return loaded(name, loader)
    for attribute in _NAMES:
        if lent(found := getattr(module, attribute, None)) is not None:
            return found
    public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
    raise PluginError(
        f"verifier {name!r} is a file without {LOADER} and without an environment: name what judges, as in "
        f"{name}:{public[-1] if public else 'my_check'}."
    )


def _declares(module: str) -> bool:
    """Whether a module can be found, and its source has the loader; nothing is imported for it."""
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    except (ImportError, ValueError, OSError):  # ValueError: half a module, or no text
        return False
    return LOADER in source


def of_loader(name: str, value: Any) -> Any:
    """What a reference to ``load_environment`` means: what that returns; other values as they are."""
    return loaded(name, value) if name.rpartition(":")[2] == LOADER and callable(value) else value
