"""The numbers of docs/formulas.md are those of the code, and every part has some."""

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_plus.advantages import RewardTable, advantages, compute_advantages
from grpo_plus.objectives import build_objective, make_targets, objectives, piece_registries
from grpo_plus.objectives.batch import Counts, TokenBatch
from grpo_plus.objectives.group import GroupScores

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "formulas.md"
if not FILE.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
TEXT = FILE.read_text(encoding="utf-8")


def rows_below(heading):
    """The cells of the table below a heading; backticks left out."""
    _, _, rest = TEXT.partition(f"\n### {heading}\n")
    assert rest, f"docs/formulas.md has no heading {heading!r}"
    table = re.search(r"(?:^\|.*\n)+", rest.partition("\n#")[0], re.MULTILINE)
    lines = table.group().splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def values(text):
    """Numbers, lists and keywords as the tables write them."""
    return ast.literal_eval(text.replace("−", "-"))


def numbers(text):
    return values(f"[{text}]")


def keywords_of(text):
    call = ast.parse(f"f({text.replace('−', '-')})", mode="eval").body
    return {each.arg: ast.literal_eval(each.value) for each in call.keywords}


def built_in(registry):
    return {entry.name for entry in registry.entries() if entry.way == "built-in"}


def same(got, written):
    assert torch.as_tensor(got).tolist() == pytest.approx(written, abs=6e-7)


ESTIMATORS = rows_below("Golden numbers of estimators")
OF_TABLE = ("groups", "lengths", "steps", "values", "weights")


@pytest.mark.parametrize("row", ESTIMATORS, ids=" ".join)
def test_advantages_are_those_of_the_code(row):
    rewards, name, keywords, written = row
    given = keywords_of(keywords)
    columns = {name: given.pop(name) for name in OF_TABLE if name in given}
    table = RewardTable.of(torch.tensor(numbers(rewards), dtype=torch.float64), **columns)
    same(compute_advantages(name, table, **given).flatten(), numbers(written))


def with_targets(batch, tokens, **keywords):
    """The batch with targets, its rows being of one prompt."""
    made = make_targets(
        prompts_N=torch.zeros(len(tokens)), tokens_NT=torch.tensor(tokens), present_NT=batch.mask,
        trained_NT=batch.mask, old_logps_NT=batch.old_logps, advantages_NT=batch.advantages, **keywords,
    )  # fmt: skip
    return replace(batch, target_logps=made.logps, target_sign=made.sign, target_weights=made.weights)


def one_token(surrogate, advantage, old, new, keywords):
    given = (torch.tensor([[x]], dtype=torch.float64) for x in (new.log(), old.log(), advantage))
    batch = TokenBatch(*given, mask=torch.ones(1, 1, dtype=torch.bool), counts=Counts(1.0, 1.0, 1.0))
    return with_targets(batch, [[0]], **keywords) if surrogate == "target" else batch


def in_one_group(objective, batch):
    """The batch with what a loss of groups needs; its completions are one group."""
    if not objective.pulls_groups:
        return batch
    sums = [torch.where(batch.mask, logps, 0.0).sum(1) for logps in (batch.logps, batch.old_logps)]
    groups = torch.zeros(len(batch.mask), dtype=torch.long)
    pull, loss, _ = objective.pulls(GroupScores(groups, *sums, batch.mask.sum(1), batch.advantages[:, 0]))
    return replace(batch, pull=pull, group_loss=loss)


SURROGATES = rows_below("Golden numbers of surrogates")


@pytest.mark.parametrize("row", SURROGATES, ids=" ".join)
def test_surrogates_are_those_of_the_code(row):
    advantage, old, new, name, keywords, written = row
    old, new = (torch.tensor(values(x), dtype=torch.float64) for x in (old, new))
    given = keywords_of(keywords)
    batch = one_token(name, values(advantage), old, new, given)
    objective = build_objective("grpo", {"surrogate": name, **given}, beta=0.0)
    batch = in_one_group(objective, batch)
    same(-objective.values(batch).values.item(), values(written))


@pytest.mark.parametrize("row", rows_below("Golden numbers of KL estimators"), ids=" ".join)
def test_kl_estimates_are_those_of_the_code(row):
    policy, reference, *written = (values(cell) for cell in row)
    logps, ref_logps = (torch.tensor([math.log(p)], dtype=torch.float64) for p in (policy, reference))
    kl = piece_registries["kl"]
    same([kl.get(name).fn(logps, ref_logps).item() for name in ("k1", "k2", "k3")], written)


def two_completions(beta):
    """The micro-batch that the table of presets is about."""
    old = [[-1.0, -0.5, -2.0], [-0.7, -1.2, 0.0]]
    moved = [[0.3, -0.1, 0.5], [-0.4, 0.2, 0.0]]
    away = [[-0.2, 0.1, 0.3], [0.1, -0.3, 0.0]]
    old, moved, away = (torch.tensor(x, dtype=torch.float64) for x in (old, moved, away))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantages_N, counts = torch.tensor([[1.0], [-1.0]], dtype=torch.float64), Counts(2.0, 5.0, 1.0)
    batch = TokenBatch(old + moved, old, advantages_N, mask, counts, old + away, beta)
    batch = replace(batch, prompt_tokens=torch.tensor([5, 5]), max_completion_length=4)
    return with_targets(batch, [[1, 2, 3], [4, 5, 0]])


PRESETS = rows_below("Golden numbers of objectives")


@pytest.mark.parametrize("row", PRESETS, ids=" ".join)
def test_objectives_are_those_of_the_code(row):
    name, ratio, surrogate, kl, reduce, without, beside = row
    objective = build_objective(name, beta=0.0)
    parts = (objective.ratio.piece.name, objective.surrogate.piece.name, objective.reduce.piece.name)
    assert parts == (ratio, surrogate, reduce)
    same(objective.loss(in_one_group(objective, two_completions(0.0)))[0].item(), values(without))
    assert (kl == "none") == (beside == "refused")
    if kl != "none":
        objective = build_objective(name, beta=0.1)
        assert objective.kl.estimator.piece.name == kl
        same(objective.loss(in_one_group(objective, two_completions(0.1)))[0].item(), values(beside))


def test_every_part_has_golden_numbers_or_its_formula():
    assert built_in(advantages) == {name for _, name, *_ in ESTIMATORS}
    assert built_in(piece_registries["surrogate"]) == {row[3] for row in SURROGATES}
    assert built_in(objectives) == {row[0] for row in PRESETS}
    for kind in ("ratio", "kl", "reduce"):
        assert [name for name in built_in(piece_registries[kind]) if f"| `{name}` |" not in TEXT] == []
