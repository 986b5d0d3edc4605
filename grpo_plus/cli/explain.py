"""``grpo-plus explain``: what a config resolves to, in formulas, and the advantages it gives on sample rewards."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser

if TYPE_CHECKING:
    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.entries import Entry
    from grpo_plus.objectives import Objective

PROG = "grpo-plus explain"
SAMPLE = "1,1,1,0"


def run(arguments: Sequence[str]) -> int:
    """Print the resolved parts."""
    parser = Parser(
        prog=PROG,
        description=__doc__,
        epilog="Every option of grpo-plus train may be given as well: grpo-plus train --help.",
        usage="grpo-plus explain config.yaml [--rewards 1,1,1,0] [--any.option VALUE …]",
    )
    parser.add_argument("--rewards", default=SAMPLE, help=f"rewards of one group, by commas (default {SAMPLE})")
    parser.add_argument("--lengths", help="completion lengths in tokens, by commas (default: all 10)")
    options, rest = parser.parse_known_args(list(arguments))
    rewards = _numbers("--rewards", options.rewards)
    if any(value in (float("inf"), float("-inf")) for value in rewards):
        raise UserError(f"--rewards is {options.rewards!r}, expected finite numbers (nan: the reward does not apply).")
    given = _numbers("--lengths", options.lengths) if options.lengths else [10.0] * len(rewards)
    if not all(value >= 1 and value.is_integer() for value in given):
        raise UserError(f"--lengths is {options.lengths!r}, expected whole numbers of at least 1.")
    lengths = [int(value) for value in given]
    if len(lengths) != len(rewards):
        raise UserError(f"--lengths has {len(lengths)} values, but --rewards has {len(rewards)}: give one for each.")
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    from grpo_plus.cli._arguments import parse
    from grpo_plus.options import mapping

    # Nothing is computed here that a card is needed for: a config for one is explained anywhere.
    parsed = parse(PROG, [*rest, "--use_cpu", "true"], beside=("--rewards", "--lengths"))
    config = parsed.training
    for line in [
        *_prompt_lines(mapping("prompt", parsed.script.prompt)),
        *_advantage_lines(config, rewards, lengths, _functions(parsed.script)),
        "",
        *_objective_lines(config, lengths),
        "",
        *_verifier_lines(config),
        *_note_lines(config),
    ]:
        print(line)
    return 0


def _numbers(flag: str, text: str) -> list[float]:
    try:
        values = [float(value) for value in text.replace(";", ",").split(",") if value.strip()]
    except ValueError as error:
        raise UserError(f"{flag} is {text!r}, expected numbers separated by commas, like {SAMPLE}.") from error
    if not values:
        raise UserError(f"{flag} is empty, expected numbers separated by commas, like {SAMPLE}.")
    return values


def _functions(script: Any) -> list[str]:
    """What rewards completions beside the verifiers."""
    model = script.reward_model_name_or_path
    return [*([model] if model else []), *(script.reward_funcs or [])]


def _advantage_lines(
    config: "GRPOPlusConfig", rewards: list[float], lengths: list[int], functions: Sequence[str] = ()
) -> list[str]:
    from grpo_plus.advantages import RewardTable, compute_advantages, get_advantage
    from grpo_plus.options import mapping
    from grpo_plus.resolve import equivalent_advantage, running_advantage, step_givers, step_sources

    if config.advantage is None:
        name, keywords = equivalent_advantage(config)
        origin = (
            f"TRL's own (scale_rewards: {config.scale_rewards}, multi_objective_aggregation: "
            f"{config.multi_objective_aggregation}), which is {name} here"
        )
    else:
        name, keywords = config.advantage, mapping("advantage_kwargs", config.advantage_kwargs)
        origin = name
    estimator = get_advantage(name)
    if step_sources(config) is not None:  # how the outcome counts beside the steps follows from all that is listed
        chosen, _ = running_advantage(config, step_givers(config), functions)
        estimator, keywords = chosen or (estimator, keywords)
    lines = [f"advantage: {origin}", *(f"  {line}" for line in estimator.formula.splitlines())]
    lines += [f"  {key} = {value}" for key, value in keywords.items()]
    steps = None
    if step_sources(config) is not None and min(lengths) < 2:
        lines.append("  scores come from the steps of a completion; --lengths of at least 2 show two steps each")
        return lines
    if step_sources(config) is not None:
        lines.append(
            "  scores come from the steps of a completion; say each has two: the first right, the second as its reward"
        )
        steps = [
            [(1.0, 0, length // 2), (None if math.isnan(reward) else reward, length // 2, length)]
            for reward, length in zip(rewards, lengths, strict=True)
        ]
    table = RewardTable.of(rewards, lengths=lengths, steps=steps)
    values = compute_advantages(estimator, table, **keywords)
    per_completion = values if values.dim() == 1 else values.sum(1) / table.lengths
    lines.append(f"  rewards     {_row(rewards)}")
    lines.append(f"  advantages  {_row(per_completion.tolist())}")
    if values.dim() == 2:  # what stands above is the mean over tokens, which may hide all that there is to see
        ends = [(0, length - 1) for length in lengths]
        names = ("first token", "last token") if steps is None else ("of step 1", "of step 2")
        for what, at in zip(names, zip(*ends, strict=True), strict=True):
            lines.append(f"  {what:<12}{_row([float(values[row, token]) for row, token in enumerate(at)])}")
    return lines + _picture(rewards, values.tolist(), lengths, steps)


def _picture(rewards: list[float], values: list[Any], lengths: list[int], steps: Any) -> list[str]:
    """The group as bars around the mean of its rewards, and its tokens in the colours of their advantages."""
    from io import StringIO

    from rich.console import Console

    from grpo_plus.report.group import group_text, sample_group

    if len(rewards) < 2 or not all(map(math.isfinite, rewards)):
        return []
    colours = sys.stdout.isatty()  # without them, tokens would say nothing
    tokens = colours and isinstance(values[0], list) and max(lengths) <= 24
    pieces = [[f"t{place} " for place in range(1, length + 1)] for length in lengths]
    shown = (
        [row[:length] for row, length in zip(values, lengths, strict=True)] if isinstance(values[0], list) else values
    )
    of_tokens = [[(first, last, score) for score, first, last in of_row] for of_row in steps] if steps else None
    group = sample_group(rewards, shown, pieces=pieces if tokens else None, steps=of_tokens if tokens else None)
    out = StringIO()
    Console(file=out, width=100, force_terminal=colours, no_color=not colours).print(group_text(group))
    return ["", *(f"  {line.rstrip()}" for line in out.getvalue().splitlines())]


def _objective_lines(config: "GRPOPlusConfig", lengths: list[int]) -> list[str]:
    from grpo_plus.resolve import resolve_objective

    objective = resolve_objective(config)
    if objective is None:
        return [f"objective: TRL's own loss (loss_type: {config.loss_type}, beta: {config.beta})", *_own_loss(config)]
    lines = [f"objective: {config.objective}", *(f"  {line}" for line in objective.formula().splitlines())]
    lines.append(f"  options of TRL that matter: {', '.join(objective.relevant_fields())}")
    lines.append(f"  lengths                  {_row(lengths)}")
    lines.append(f"  weight of one token      {_row(_token_weights(objective, lengths, config.max_completion_length))}")
    return lines


def _token_weights(objective: "Objective", lengths: list[int], limit: int) -> list[float]:
    """What the reduction multiplies one token of each completion by, in one group of these lengths."""
    import torch

    from grpo_plus.objectives.batch import Counts, TokenBatch

    rows, tokens = len(lengths), sum(lengths)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    zeros = torch.zeros(mask.shape)
    batch = TokenBatch(
        logps=zeros,
        old_logps=zeros,
        advantages=zeros[:, :1],
        mask=mask,
        counts=Counts(completions=rows, tokens=tokens, prompts=1),
        prompt_tokens=torch.full((rows,), tokens),
        max_completion_length=limit,
    )
    weights = []
    for row in range(rows):
        one = zeros.clone()
        one[row, 0] = 1.0
        weights.append(float(objective.reduce(one, batch)))
    return weights


def _own_loss(config: "GRPOPlusConfig") -> list[str]:
    fields = ["epsilon", "epsilon_high", "delta", "importance_sampling_level", "num_iterations"]
    return ["  " + ", ".join(f"{name}: {getattr(config, name)}" for name in fields)]


def _verifier_lines(config: "GRPOPlusConfig") -> list[str]:
    from grpo_plus.entries import read_entries

    entries, _ = read_entries(config.verifiers or [])
    watching, _ = read_entries(config.eval_verifiers or [], "eval_verifiers")
    lines = ["verifiers:" if entries else "verifiers: none (reward_funcs or a reward model must score)"]
    lines += [_entry_line(config, entry) for entry in entries]
    if config.verifier_column:
        lines.append(f"  each row is checked by the one that its column {config.verifier_column!r} names")
    if watching:
        lines += ["eval_verifiers (of evaluations only):", *(_entry_line(config, entry) for entry in watching)]
    return lines


def _note_lines(config: "GRPOPlusConfig") -> list[str]:
    from grpo_plus.notes import config_notes

    notes = [f"  {note}" for note in config_notes(config)]
    return ["", "notes:", *notes] if notes else []


def _entry_line(config: "GRPOPlusConfig", entry: "Entry") -> str:
    verifier: Any = entry.build(config.plugins or ())
    weight = 1.0 if entry.weight is None else entry.weight
    settings = ", ".join(f"{key}: {value}" for key, value in verifier.describe().items() if value not in (None, {}, ()))
    return f"  {entry.label}: weight {weight:g}, {settings}"


def _prompt_lines(prompt: "Mapping[str, Any]") -> list[str]:
    """The prompt's words, and what checks the format that they ask for."""
    from grpo_plus.cli._prompts import FORMATS

    if not prompt:
        return []
    lines = ["prompt:", *(f"  {key}: {value}" for key, value in prompt.items())]
    template = prompt.get("template")
    if template:
        lines += [f"    {FORMATS[template].text}", f"    checked by verifiers: [{FORMATS[template].checked_by}]"]
    return [*lines, ""]


def _row(values: Sequence[float]) -> str:
    return "  ".join(f"{value:10.6g}" for value in values)
