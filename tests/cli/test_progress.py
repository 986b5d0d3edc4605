"""The step clock, and the lines that are made of logs."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.cli._progress import ProgressLines, duration, evaluation_words, figure_words
from grpo_plus.training.observers import clock as module
from grpo_plus.training.observers.clock import PARTS, StepClock, metric
from tests.cli.test_train_command import logs

LOGS = {"loss": 0.25, "reward": 0.5, "frac_reward_zero_std": 0.25, "num_tokens": 4000.0, "kl": float("nan")}
LOGS |= {"completions/mean_length": 38.4, "completions/clipped_ratio": 0.03, "engine/tokens_saved": 0.42}
LOGS |= {"time/rollout": 1.0, "time/scoring": 0.5, "time/update": 0.5}


def state(step=2, last=10, **more):
    given = {"is_world_process_zero": True, "global_step": step, "max_steps": last, "num_input_tokens_seen": 0}
    return SimpleNamespace(**given | more)


def test_figures_in_words():
    assert "dead groups 0%" in figure_words({**LOGS, "advantages/dead_group_fraction": 0.0})
    assert [duration(seconds) for seconds in (0, 59.6, 3661, 360000)] == ["0:00:00", "0:01:00", "1:01:01", "100:00:00"]


def test_every_second_belongs_to_the_innermost_part(monkeypatch):
    now = itertools.count(0, 1)  # a second passes with every look at the clock
    reported = {}
    monkeypatch.setattr(module, "log_training_metrics", lambda _, values: reported.update(values))
    clock = StepClock(lambda: float(next(now)))
    clock.host = None
    with clock.part("update"):
        with clock.part("rollout"), clock.part("rollout", counts=False):
            pass
        with clock.part("scoring"):
            pass
        with pytest.raises(ValueError, match="inside"), clock.part("scoring"):
            raise ValueError("inside")
    clock.on_pre_optimizer_step()
    clock.on_optimizer_step()
    clock.on_step_end()
    assert reported == {"time/rollout": 1.0, "time/scoring": 2.0, "time/update": 5.0}
    clock.on_step_end()
    assert reported == dict.fromkeys(map(metric, PARTS), 0.0)


def test_one_line_says_how_it_goes_and_others_of_evaluation_and_end(capsys):
    shown = ProgressLines()
    shown.on_log(None, state(2), None, logs=LOGS)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "step 2/10 | reward 0.500 | dead groups 25% | length 38 (3% cut off) | loss 0.2500 | engine saves 42% | "
        "2.00 s/step (rollout 50%, scoring 25%, update 25%) | 0:00:16 left"
    )
    more = {"eval_rewards/math/mean": 0.25, "eval_score": 0.5, "eval_loss": 0.1, "eval_kl": None}
    shown.on_log(None, state(), None, logs={"eval_reward": 0.125, **more})
    shown.on_log(None, state(), None, logs={"train_runtime": 61.2})
    said = "step 2: evaluation: reward 0.125, math 0.250, score 0.500"
    assert capsys.readouterr().out.splitlines() == [said, "trained to step 2 in 0:01:01"]
    ProgressLines().on_log(None, state(is_world_process_zero=False), None, logs=LOGS)
    assert capsys.readouterr().out == ""


numbers = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.integers())


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from([*LOGS, "eval_reward"]), numbers))
def test_whatever_is_logged_can_be_shown(logs):
    shown = ProgressLines()
    shown.on_log(None, state(2), None, logs=logs)
    evaluation_words(logs)


@pytest.mark.slow
def test_the_parts_of_a_real_step_add_up_and_evaluation_is_none_of_them(cli, config, folder):
    scored = "time.sleep(0.3) or [float(len(str(c)) % 3) for c in completions]"
    (folder / "slow.py").write_text(f"import time\n\ndef slow(completions, **_):\n    return {scored}\n")
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "num_generations_eval": 4}
    path = config(reward_funcs=["./slow.py:slow"], dataset_test_split="train", advantage="sign", **evaluated)
    out = cli.done("train", path)
    rows = logs(out)
    assert len(rows) == 2
    for row in rows:
        rollout, scoring, update = (row[name] for name in map(metric, PARTS))
        assert 0.3 <= scoring < 2  # one call a step; the evaluation beside it makes eight
        assert rollout > 0
        assert update > 0
        assert rollout + scoring + update >= row["step_time"]
