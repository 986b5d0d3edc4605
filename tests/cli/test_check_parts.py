"""What ``check`` prints of the parts, held against what the trainer computes and against what is true of the config."""

import re

import pytest

from grpo_plus.cli._arguments import parse
from grpo_plus.cli._prompts import FORMATS
from grpo_plus.cli.train import build_trainer
from grpo_plus.training.hooks import Hook

EXAMPLES = ["quickstart", "process", "verifiers", "estimators", "code_rl", "papers/ppo"]
EXAMPLES += [f"math_{size}gb" for size in (8, 12, 16, 24)]
CHECKS = """
from grpo_verifiers import verifier

@verifier("even", isolation="inline")
def even(completion: str):
    return float(len(completion) % 2 == 0) if len(completion) % 5 else None

@verifier("vowels", isolation="inline")
def vowels(completion: str):
    return sum(letter in "aeiou" for letter in completion) / 8
"""
VERIFIERS = [{"name": "even", "weight": 2.0}, {"name": "vowels", "weight": -0.5}]


def row(out, label):
    """The numbers of a line; completions have nothing else in their line."""
    (line,) = [line for line in out.splitlines() if line.strip().startswith(f"{label} ")]
    return [float(word) for word in line.strip().removeprefix(label).split()]


def unwrapped(text):
    return re.sub(r"\n {12}", " ", text)


def listed(values):
    return ",".join(repr(float(value)) for value in values)


def trained(path, *flags):
    trainer = build_trainer(parse("test", [str(path), *flags]))
    trainer.pipeline.hooks = [lengths := Lengths()]
    lengths.host = trainer
    trainer.train()
    return trainer


ESTIMATORS = [
    *[{}, {"scale_rewards": "batch"}, {"scale_rewards": False}, {"multi_objective_aggregation": "normalize_then_sum"}],
    *[{"advantage": name} for name in ("opo", "gdpo", "batch_whiten", "best_of_n")],
    {"advantage": {"name": "zscore", "ddof": 0}},
    {"advantage": {"name": "sign", "band": 0.25}},
    {"advantage": {"name": "mix", "parts": {"rloo": 1.0, "gdpo": 0.5}}},
]


@pytest.mark.sample(0, 10)
@pytest.mark.parametrize("chosen", ESTIMATORS, ids=str)
@pytest.mark.parametrize("several", [False, True], ids=["one reward", "several"])
def test_explain_prints_the_advantages_that_the_trainer_computes(cli, config, folder, chosen, several):
    (folder / "checks.py").write_text(CHECKS)
    rewards = {"reward_funcs": ["./rewards.py:digits"] if several else None}
    given = {"plugins": ["./checks.py"], "verifiers": VERIFIERS[: 1 + several], "num_generations": 8, "max_steps": 1}
    path = config(**given, **rewards, **chosen)
    trainer = trained(path)
    columns = [list(values) for values in trainer._logs["rewards"].values()]
    assert len(columns) == (3 if several else 1)
    given = ";".join(listed(float("nan") if value is None else value for value in column) for column in columns)
    lengths = ",".join(str(int(length)) for length in _lengths(trainer))
    out = cli.done("check", "--only=config", path, "--rewards", given, "--lengths", lengths)
    assert row(out, "advantages") == pytest.approx(list(trainer._logs["advantages"]), rel=1e-4, abs=2e-5)
    if several:
        for label in ("1·digits", "2·even", "-0.5·vowels"):
            assert len(row(out, label)) == 8


def _lengths(trainer):
    return [10] * 8 if trainer.lengths is None else trainer.lengths.tolist()  # TRL's own advantages know no lengths


class Lengths(Hook):
    def batch(self, batch):
        self.host.lengths = batch.lengths


THREE = {"verifiers": ["exact", {"name": "think_format", "weight": 0.5}]}


def test_scores_are_not_made_up(cli, config):
    process, lists = {"advantage": "process"}, "a list for each of digits, exact, think_format"
    for values, needed in ((process, "need steps"), ({"advantage": "gdpo", **THREE}, lists)):
        out = cli.done("check", "--only=config", config(**values))
        assert needed in out
        assert "advantages" not in out


def test_a_single_list_stands_for_the_weighted_sum_by_the_weights_of_the_trainer(cli, config):
    out = cli.done("check", "--only=config", config(advantage="center", **THREE), "--rewards", "1,0")
    assert "rewards are the weighted sum: 1·digits + 1·exact + 0.5·think_format" in out
    assert row(out, "advantages") == [0.5, -0.5]
    path = config(advantage="center", verifiers=["exact"], reward_weights=[3.0, 0.25])
    out = cli.done("check", "--only=config", path, "--rewards", "1,0;0,1")
    assert row(out, "advantages") == [1.375, -1.375]
    assert "exact: weight 0.25" in out


CRITIC = {"advantage": "gae", "critic": {"on": "trunk"}}


def test_the_mean_reward_stands_for_the_values_of_a_critic(cli, config):
    out = cli.done("check", "--only=config", config(**CRITIC), "--rewards", "1,1,1,0")
    assert "makes no comparison in a group" in out
    assert "the critic's values are assumed to be the mean reward" in out
    assert row(out, "advantages") == [0.25, 0.25, 0.25, -0.75]


def test_a_weight_that_training_refuses_is_refused(cli, config):
    path = config(advantage={"name": "process", "outcome_weight": 0})
    assert "is 0, and so the reward 'digits' (weight 1)" in cli.refused("check", "--only=config", path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_explained_and_nothing_in_them_is_unread(cli, name, pytestconfig):
    out = cli.done("check", "--only=config", pytestconfig.rootpath / "examples" / f"{name}.yaml")
    assert "config-note" not in out
    assert "vLLM" not in out


def test_the_only_note_on_sao_is_that_its_warm_up_shortens_the_schedule(cli, pytestconfig):
    out = cli.done("check", "--only=config", pytestconfig.rootpath / "examples" / "papers" / "sao.yaml")
    assert out.count("config-note") == 1
    assert "config-note [config]: critic: the first" in out
    assert "sg[r]·A·lp_t where 1 − 0.3 ≤ r ≤ 1 + 5.0, else 0" in out


@pytest.mark.slow
def test_notes_are_printed_by_explain_and_once_by_training(cli, config, caplog):
    path = config(advantage="opo", num_iterations=2, lora_r=8)
    notes = unwrapped(cli.done("check", "--only=config", path))
    assert "lora_r (8) is not read: use_peft is false" in notes
    assert notes.count("assumes on-policy samples") == 1
    caplog.clear()
    assert cli.done("train", path).count("lora_r (8) is not read") == 1
    assert caplog.text.count("assumes on-policy samples") == 1
    reinforce = config(objective="reinforce", num_iterations=2, top_entropy_quantile=0.5)
    assert "top_entropy_quantile (0.5)" in unwrapped(cli.done("check", "--only=config", reinforce))
    assert "config-note" not in cli.done("check", "--only=config", config(objective="reinforce"))


MISSPELLED = {"tools": ["calculator"], "verifiers": [{"name": "tool_used", "names": ["calculater"]}]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_tool_calling_iterations": 3}, "max_tool_calling_iterations is 3, but nothing can be called"),
        ({"verifiers": ["math", "tool_used"]}, "'tool_used' looks at calls, but nothing can be called"),
        (MISSPELLED, "unknown tool 'calculater'. Did you mean 'calculator'"),
    ],
)
def test_what_looks_at_calls_is_refused_before_a_model_is_loaded(cli, config, monkeypatch, values, said):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    for command in (("check", "--only=config"), ("train",)):
        assert said in cli.refused(*command, config(**values))


MATH = {"verifiers": ["math"]}
ASKED = {"column": "question", "template": "think_answer"}
AUTO = "rollout auto, as many rows at once as memory allows"
HACKING = {"diagnosis": {"every": 1, "judge": "exact", "stop_on": ["nan", "hacking"]}, "max_steps": 12}
TOLD = [
    (MATH, "sampled by: " + AUTO),
    (MATH | {"rollout": "stock"}, "sampled by: TRL's own loop"),
    (MATH | {"use_vllm": True}, "sampled by: vLLM (colocate)"),
    ({"rollout": {"how": "auto", "rows": 4}}, "sampled by: rollout auto, 4 rows"),
    ({"use_transformers_continuous_batching": True}, "sampled by: transformers' continuous batching"),
    ({}, "selection: none, TRL's sampler|dead groups: keep|verifiers: none"),
    ({"loss_type": "dapo"}, "TRL's own|loss_type: dapo"),
    ({"prompt": ASKED}, FORMATS["think_answer"].text + "|checked by verifiers: [{name: think_format, answer: a"),
    ({"prompt": {"column": "prompt"}, "verifiers": ["think_format"]}, "the verifier 'think_format' rewards <think>"),
    ({"objective": {"name": "dr_grpo", "epsilon_high": 0.28}}, "objective: dr_grpo|0.28"),
    ({"selection": "uniform"}, "the run records a history of the prompts"),
    ({"selection": {"name": "contrast", "weighted": False}}, "contrast, a curriculum, biased"),
    ({"selection": {"name": "curriculum", "column": "level"}}, "column = level|biased"),
    ({"dead_groups": {"name": "resample", "rounds": 3}}, "dead groups: resample (rounds = 3)"),
    ({"dead_groups": {"name": "roulette", "after": 2, "keep": 0.5}}, "dead groups: roulette (after = 2, keep = 0.5)"),
    ({"dead_groups": "replay", "objective": "grpo"}, "dead groups: replay (age = 4|biased: an older policy"),
    (MATH | HACKING, "every 1 steps 32 completions are judged by exact|exit code 3, when one of these begins: nan, h"),
]


@pytest.mark.parametrize(("values", "told"), TOLD, ids=str)
def test_explain_says_who_draws_what_is_selected_what_becomes_of_dead_groups_and_what_ends_the_run(
    cli, config, values, told
):
    out = cli.done(
        "check", "--only=config", config(**{"num_generations": 8, "per_device_train_batch_size": 8} | values)
    )
    assert [text for text in told.split("|") if text not in out] == []
    assert ("biased" in out) == ("biased" in told)


def test_explain_says_whether_the_policy_moves_within_a_batch(cli, config):
    for objective in ({}, {"objective": "grpo"}):
        assert "the ratio is 1 throughout" in cli.done("check", "--only=config", config(**objective))
        assert "the ratio is 1" not in cli.done("check", "--only=config", config(num_iterations=2, **objective))


def test_target_is_a_piece_like_any_other(cli, config):
    settings = {"objective": {"name": "grpo", "surrogate": "target"}, "num_iterations": 2}
    assert "w = 1/occurrences" in cli.done("check", "--only=config", config(**settings))
    assert "beta 0.1" in cli.refused("check", "--only=config", config(**settings, beta=0.1))


def test_several_estimators_stand_side_by_side(cli, config):
    out = cli.done("check", "--only=config", config(advantage="sign"), "--advantage", "zscore,rloo,sign")
    assert row(out, "zscore") == pytest.approx([0.4999] * 3 + [-1.4997])
    assert row(out, "rloo") == pytest.approx([1 / 3] * 3 + [-1], rel=1e-5)
    assert row(out, "sign") == [1, 1, 1, -1]
    assert "Did you mean 'rloo'" in cli.refused("check", "--only=config", config(), "--advantage", "zscore,rlo")


@pytest.mark.parametrize("body", ["table.totals().mean()", "[0.0]", "table.totals() * float('nan')"])
def test_a_faulty_estimator_is_a_finding(cli, config, folder, body):
    (folder / "mine.py").write_text(f"def part(table):\n    return {body}\n")
    text = cli.refused("check", "--only=config", config(advantage="./mine.py:part"))
    assert "part-fails [sample group]" in text
    assert "Traceback" not in text
