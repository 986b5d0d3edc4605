"""Parts of a config as formulas, with their effect on sample rewards."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from grpo_plus.advantages import EstimatorFailedError, EstimatorOutputError
from grpo_plus.check.sample import SampleGroup
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import redact

if TYPE_CHECKING:
    from grpo_plus.advantages import Estimator
    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.recipe.entries import VerifierPart


def part_lines(
    config: "GRPOPlusConfig",
    sample: SampleGroup,
    weights: Mapping[str, float],
    functions: Sequence[str],
    *,
    model: Any,
    rivals: "Sequence[GRPOPlusConfig]" = (),
) -> tuple[list[str], list[Exception]]:
    """Return the lines on all parts of a run, and errors of estimators on the sample.

    ``weights`` are by reward, ``rivals`` have other estimators.

    Raises:
        ValueError: the sample does not fit the parts.
    """
    failed = list[Exception]()
    blocks = [
        _advantages([config, *rivals], sample, functions, failed),
        _objective_lines(config),
        _selection_lines(config),
        [*_verifier_lines(config, weights), *_tool_lines(config)],
        [*_option_lines(config), *_dead_group_lines(config), *_run_lines(config, _sync(config, model))],
    ]
    return [line for block in blocks for line in (*block, "")][:-1], failed


def _advantages(
    configs: "Sequence[GRPOPlusConfig]", sample: SampleGroup, functions: Sequence[str], failed: list[Exception]
) -> list[str]:
    lines, numbers = [], dict[str, dict[str, Sequence[float]]]()
    for config in configs:
        title, *formula = _advantage_lines(config, functions)
        lines += [title, *formula]
        try:
            more, rows = _numbers(config, sample, functions)
        except (EstimatorFailedError, EstimatorOutputError) as error:
            failed.append(error)
            more, rows = ["  it fails on the sample group"], {}
        lines += more
        numbers[title.removeprefix("advantage: ")] = rows
        if len(configs) == 1:
            return [*lines, *_table(rows)]
    shown = {"rewards": next((rows["rewards"] for rows in numbers.values() if rows), [])}
    shown |= {name: rows["advantages"] for name, rows in numbers.items() if rows}
    return [*lines, "", "advantages side by side:", *_table(shown)]


def _table(rows: Mapping[str, Sequence[float]]) -> list[str]:
    width = max(map(len, rows), default=0) + 2
    cells = {name: "  ".join(f"{value:10.6g}" for value in row) for name, row in rows.items()}
    return [f"  {name:<{width}}{text}" for name, text in cells.items()]


def _chosen(config: "GRPOPlusConfig", functions: Sequence[str]) -> "tuple[Estimator, Mapping[str, Any]]":
    """Return the estimator that runs, TRL's own included, with its keywords."""
    from grpo_plus.advantages import get_advantage
    from grpo_plus.recipe.rewards import equivalent_advantage, running_advantage

    if "advantage" not in config.recipe.names:
        name, keywords = equivalent_advantage(config)
        return get_advantage(name), keywords
    chosen, ignored = running_advantage(config.recipe, config.recipe.step_givers, functions)
    if ignored or chosen is None:
        raise ValueError(" ".join(ignored))
    return chosen


def _advantage_lines(config: "GRPOPlusConfig", functions: Sequence[str]) -> list[str]:
    estimator, keywords = _chosen(config, functions)
    name = config.recipe.names.get("advantage") or (
        f"TRL's own (scale_rewards: {config.scale_rewards}, multi_objective_aggregation: "
        f"{config.multi_objective_aggregation}), which is {estimator.name} here"
    )
    formula = (f"  {line}" for line in estimator.formula.splitlines())
    return [f"advantage: {name}", *formula, *(f"  {key} = {value}" for key, value in keywords.items())]


Rows = dict[str, Sequence[float]]
"""Numbers of each completion by their names."""


def _numbers(config: "GRPOPlusConfig", sample: SampleGroup, functions: Sequence[str]) -> tuple[list[str], Rows]:
    """Return lines and numbers on the advantages of the sample; no numbers if the sample is not enough for them."""
    from grpo_plus.advantages import compute_advantages
    from grpo_plus.training.batch import per_completion

    estimator, keywords = _chosen(config, functions)
    parts = [part for part, _ in config.recipe.estimator_parts]
    if config.recipe.step_sources is not None:
        return ["  its numbers need steps, which a run has"], {}
    if sample.summed and any(part.own_zero_rule for part in parts or [estimator]):
        listed = ", ".join(name for name, _ in sample.summed)
        return [f"  its numbers need each reward by itself: --rewards 'A,B;C,D', a list for each of {listed}"], {}
    valued = any(part.reads_values for part in parts)
    lines = ["  the critic's values are assumed to be the mean reward"] if valued else []
    rows: Rows = {}
    table = sample.table(valued=valued)
    values = compute_advantages(estimator, table, **keywords)
    if sample.summed:
        formula = " + ".join(f"{weight:g}·{name}" for name, weight in sample.summed)
        lines.append(f"  rewards are the weighted sum: {formula}")
    elif len(sample.names) > 1 or list(sample.weights) != [1.0]:
        weighted = zip(sample.names, sample.weights, sample.columns, strict=True)
        rows |= {f"{weight:g}·{name}": column for name, weight, column in weighted}
    rows |= {"rewards": table.totals().tolist(), "advantages": per_completion(values, table).tolist()}
    if values.dim() == 2:  # the mean over tokens may hide the differences
        last = [size - 1 for size in sample.lengths]
        for title, places in (("first token", [0] * len(values)), ("last token", last)):
            rows[title] = [float(values[row, token]) for row, token in enumerate(places)]
    if estimator.over_the_batch(keywords):
        lines.append("  scaled over the generation batch, which is this one group here")
    objective = config.recipe.objective
    if objective is not None and objective.kl_in_reward:
        lines.append("  in training the rewards are lessened by the divergence from the reference first; here it is 0")
    return lines, rows


def _objective_lines(config: "GRPOPlusConfig") -> list[str]:
    from grpo_plus.recipe.choice import ConfigFacts

    objective = config.recipe.objective
    if objective is None:
        lines = [f"objective: TRL's own loss (loss_type: {config.loss_type}, beta: {config.beta})"]
    else:
        formula = objective.formula().splitlines()
        lines = [f"objective: {config.recipe.names['objective']}", *(f"  {line}" for line in formula)]
    has_ratio = objective is None or objective.ratio.piece.name != "none"
    if has_ratio and not ConfigFacts(config, config.recipe).off_policy:
        fresh = "every update is on fresh completions (num_iterations, steps_per_generation)"
        lines.append(f"  {fresh}: the ratio is 1 throughout")
    return lines


def _option_lines(config: "GRPOPlusConfig") -> list[str]:
    recipe = config.recipe
    parts = {"critic": recipe.critic, "reward_model": recipe.reward_model}
    lines = [f"{name}: {_settings(asdict(options))}" for name, options in parts.items() if options is not None]
    if (monitor := recipe.monitor) is not None:
        judge = f"{monitor.judge.entry.name} {monitor.judge.entry.kwargs or ''}".rstrip()
        count = f"every {monitor.every} steps {monitor.sample} completions are judged by {judge}"
        lines.append(f"judge: {count}, for comparison with {monitor.against or 'the total reward'}")
    if recipe.stop_on:
        lines.append(f"the run ends, with exit code 3, when one of these begins: {', '.join(recipe.stop_on)}")
    return lines


def _dead_group_lines(config: "GRPOPlusConfig") -> list[str]:
    way, keywords = config.recipe.dead_groups
    if way == "keep":
        parts = config.recipe.estimator_parts
        alone = parts and not any(part.group_relative for part, _ in parts)
        why = "makes no comparison in a group" if alone else "learns nothing from a group without contrast"
        return [f"dead groups: keep; the estimator {why}"]
    settings = ", ".join(f"{key} = {value}" for key, value in keywords.items())
    return [f"dead groups: {way} ({settings})" + ", biased: an older policy drew them" * (way == "replay")]


def _sync(config: "GRPOPlusConfig", model: Any) -> str:
    """Return how weights are sent to a vLLM server, and why; empty without a server.

    A machine with an accelerator is assumed to be the training machine.
    """
    import torch

    from grpo_plus.qlora.defaults import stored_bits
    from grpo_plus.qlora.model import requested_bits
    from grpo_plus.sampling.vllm_sync import SyncConditions, choose, sync_problems

    if not config.use_vllm or config.vllm_mode != "server":
        return ""
    quantised = bool(requested_bits(vars(model)) or stored_bits(vars(model)))
    means = SyncConditions(
        quantised=quantised,
        adapters=bool(model.use_peft) or quantised,
        accelerator=not config.use_cpu and torch.accelerator.is_available(),
        vllm=installed("vllm"),
    )
    if problems := sync_problems(config.recipe.rollout.vllm_sync, means):
        raise ValueError(" ".join(problems))
    way = choose(config.recipe.rollout.vllm_sync, means)
    return f"{way.name} ({way.why})"


def _run_lines(config: "GRPOPlusConfig", way: str) -> list[str]:
    from grpo_plus.recipe.choice import ConfigFacts, shown

    rollout = config.recipe.rollout
    if config.use_vllm:
        sampler = f"vLLM ({config.vllm_mode})" + (f", weights by {way}" if way else "")
    elif getattr(config, "use_transformers_continuous_batching", False):
        sampler = "transformers' continuous batching"
    elif rollout.how == "auto" and not ConfigFacts(config, config.recipe).sharded:
        rows = "as many rows at once as memory allows" if rollout.rows is None else f"{rollout.rows} rows"
        sampler = f"rollout auto, {rows}" + (" (default with parts of grpo_plus)" * (not config.recipe.rollout_is_set))
    else:
        sampler = "TRL's own loop, all rows at once"
    layout, bound = config.recipe.engine.layout, config.recipe.engine.tokens_per_pass
    engine = f"{layout}, {bound} tokens a pass at most" if bound else layout
    noisy = config.neftune_noise_alpha is not None
    engine = "none, with noise on embeddings (neftune_noise_alpha) every pass is TRL's own" if noisy else engine
    lines = [f"sampled by: {sampler}", f"engine: {engine}"]
    if cut := shown(config):
        tokens = "the allowed tokens" if rollout.how == "auto" else "the full vocabulary"
        lines.append(f"log-probabilities: over {tokens}; {cut} leaves out some")
    return lines


def _verifier_lines(config: "GRPOPlusConfig", weights: Mapping[str, float]) -> list[str]:
    parts, watching = config.recipe.verifiers, config.recipe.eval_verifiers
    lines = ["verifiers:" if parts else "verifiers: none (reward_funcs, a reward model or an environment must score)"]
    lines += [_verifier_line(part, weights[part.label]) for part in parts]
    if config.verifier_column:
        lines.append(f"  each row is checked by the one named in its column {config.verifier_column!r}")
    if watching:
        lines.append("eval_verifiers (of evaluations only):")
        lines += [_verifier_line(part, 1.0 if part.weight is None else part.weight) for part in watching]
    return lines


def _tool_lines(config: "GRPOPlusConfig") -> list[str]:
    recipe = config.recipe
    lines = [f"tool: {part.label} ({part.reference}), {part.timeout:g} s a call" for part in recipe.tools]
    shown = [part.methods for part in recipe.tools]
    for value, part in recipe.environments.items():
        rows = "all rows" if value is None else f"rows whose environment is {value!r}"
        has = [name for name, is_there in _GIVES.items() if getattr(part, is_there)]
        lines.append(f"environment: {part.label} ({part.reference}), for {rows}; gives {', '.join(has) or 'no reward'}")
        shown.append(part.methods)
    if not lines:
        return []
    lines.append("the model sees:")
    return [*lines, *(f"  {json.dumps(method.schema, ensure_ascii=False)}" for each in shown for method in each)]


_GIVES = {"a reward": "rewards", "rewards of turns": "turn_rewards", "keys of states": "states"}


def _verifier_line(part: "VerifierPart", weight: float) -> str:
    return f"  {part.label}: weight {weight:g}, {_settings(redact(part.verifier.describe()))}"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in values.items() if value not in (None, {}, ()))


def _selection_lines(config: "GRPOPlusConfig") -> list[str]:
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
    ]
