"""With nothing new set, the two classes swapped for TRL's train as TRL's do."""

import ast
import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import weights
from tests.trainer.tools_of_tests import double

TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def first(completions, **_):
    return [float(len(str(completion)) % 7) for completion in completions]


def second(completions, answer, **_):
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [None if text.count("a") else float(any(c in answer[row] for c in text)) for row, text in enumerate(texts)]


def assert_same(ours, host):
    names = [name for name, _ in host.model.named_parameters()]
    assert [name for name, _ in ours.model.named_parameters()] == names
    for (name, mine), theirs in zip(ours.model.named_parameters(), host.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6), name
    for mine, theirs in zip(ours.state.log_history, host.state.log_history, strict=True):
        assert set(mine) >= set(theirs)
        # Rows that the engine skips have no entropy: the metric then covers the others.
        skipped = {"entropy"} if mine.get("engine/rows_skipped") else set()
        for key in set(theirs) - TIMES - skipped:
            if not key.endswith(("_time", "runtime", "per_second")):
                near = None if theirs[key] is None else pytest.approx(theirs[key], rel=1e-4, abs=1e-5)
                assert mine[key] == near, key
    assert list(ours._logs["completion"]) == list(host._logs["completion"])
    assert list(ours._logs["advantages"]) == pytest.approx(list(host._logs["advantages"]), abs=1e-6)


@pytest.fixture
def run(build):
    """The same run twice: on TRL's classes and on ours."""

    def run(*, trainer=None, config=GRPOPlusConfig, **settings):
        both = []
        for classes in ((GRPOPlusTrainer, config), (GRPOTrainer, GRPOConfig)):
            made = build(*classes, trainer=trainer() if callable(trainer) else trainer, **settings)
            before = weights(made)
            made.train()
            assert not torch.equal(weights(made), before), "nothing was trained"
            both.append(made)
        assert_same(*both)
        return both

    return run


MIGRATE = Path(__file__).parents[2] / "docs" / "migrate.md"


def rows_of_the_page():
    """Rows of "TRL's options in our words" that say all values: TRL's settings and ours."""
    table = MIGRATE.read_text(encoding="utf-8").partition("## TRL's options in our words")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split(" | ")]
        if len(cells) != 2 or not re.match(r"\| `(scale|multi|loss_type|importance)", line) or "stay with" in line:
            continue
        key, pairs = cells[0][0].partition("=")[0], [one for one in cells[0] if "=" in one]
        choices = [ast.literal_eval(one) for one in cells[0] if "=" not in one]
        for theirs in [called_with(pairs), *({key: value} for value in choices)]:
            same = "of the same name" in line
            yield theirs, {"objective": theirs[key]} if same else called_with(one for one in cells[1] if "=" in one)


def called_with(codes):
    call = ast.parse(f"f({', '.join(codes)})", mode="eval").body
    return {each.arg: ast.literal_eval(each.value) for each in call.keywords}


@pytest.mark.skipif(not MIGRATE.exists(), reason="the sources are not here")
@pytest.mark.parametrize(("theirs", "ours"), rows_of_the_page() if MIGRATE.exists() else [], ids=str)
def test_a_row_of_the_page_trains_as_trls_option_does_in_a_script_that_sets_nothing_else(build, theirs, ours):
    found = []
    rewards = {"reward_funcs": [first, lambda completions, **_: [text.count("1") / 4 for text in completions]]}
    steps = {
        "num_iterations": 3,
        "gradient_accumulation_steps": 2,
        "max_steps": 3,
        "learning_rate": 0.5,
        "max_grad_norm": 0.0,
    }
    for classes, given in (
        ((GRPOTrainer, GRPOConfig), theirs),
        ((GRPOPlusTrainer, GRPOPlusConfig), {**ours, "rollout": "stock", "engine": "stock"}),
    ):
        made = build(*classes, trainer=rewards, **steps, **given)
        made.train()
        found.append(weights(made) - weights(build(*classes, trainer=rewards, **steps, **given)))
    assert found[0].norm() > 1e-3
    assert (found[1] - found[0]).norm() <= 1e-3 * found[0].norm()


def rollout(prompts, trainer):
    ids = [trainer.processing_class.encode(prompt) for prompt in prompts]
    answers = [trainer.processing_class.encode("ab7" * (1 + row % 3)) for row in range(len(prompts))]
    luck = [row % 4 for row in range(len(prompts))]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None, "luck": luck}


def lucky(completions, luck, **_):
    return [float(value) for value in luck]


HALF = {"per_device_train_batch_size": 4}
SETTINGS = {
    "as it comes": {}, "rewards with weights": {"trainer": {"reward_funcs": [first, second]}, "reward_weights": [0.5, 2.0]},
    "one generation for several updates": {"num_iterations": 2, "steps_per_generation": 2, "max_steps": 4, **HALF},
    "accumulation": {"gradient_accumulation_steps": 2, **HALF}, "kl to a reference": {"beta": 0.1},
    "grpo loss": {"loss_type": "grpo", "beta": 0.02, "scale_rewards": "batch"},
    "truncated masked": {"mask_truncated_completions": True, "max_completion_length": 40}, "entropy": {"top_entropy_quantile": 0.5},
    "checkpointing": {"gradient_checkpointing": True}, "a plain config of the host": {"config": GRPOConfig},
    "adapters": {"trainer": lambda: {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}, "beta": 0.05},
    "a rollout function": {"trainer": {"rollout_func": rollout, "reward_funcs": [lucky]}},
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_run(run, name):
    run(**copy.deepcopy(SETTINGS[name]))


def test_conversations(run, chats):
    ours, _ = run(trainer={"train_dataset": chats, "reward_funcs": [first, second]})
    assert "user" in str(ours._logs["prompt"][0])


def test_a_model_already_loaded_and_arguments_by_position(tiny_model, sums, tmp_path, build, run):
    def load():
        tokenizer = AutoTokenizer.from_pretrained(tiny_model, padding_side="left")
        return {"model": AutoModelForCausalLM.from_pretrained(tiny_model), "processing_class": tokenizer}

    run(trainer=load)
    config = build().args
    trainer = GRPOPlusTrainer(tiny_model, first, config, sums, None, AutoTokenizer.from_pretrained(tiny_model))
    assert trainer.train_dataset is sums


def test_no_config_at_all(tiny_model, sums, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(trainer_class):
        try:
            return trainer_class(tiny_model, first, train_dataset=sums).args.output_dir
        except ValueError as error:  # both defaults ask for bf16, which a machine may not have
            return "bf16" in str(error)

    assert made(GRPOPlusTrainer) == made(GRPOTrainer)


@pytest.fixture
def calls(chats, tool_calls, tool_tokenizer):
    """What a trainer is given whose model calls tools; each trainer has a tokenizer of its own."""

    def calls(**more):
        tokenizer = copy.deepcopy(tool_tokenizer)
        return {"train_dataset": chats, "reward_funcs": [first], "processing_class": tokenizer, **more}

    return calls


def test_tools(run, calls):
    ours, _ = run(trainer=lambda: calls(tools=[double]), max_completion_length=160)
    logged = ours.state.log_history[0]
    assert (logged["tools/call_frequency"], logged["tools/failure_frequency"]) == (0.5, 0.0)


class Doubling:
    def reset(self, **row):
        self.asked = row.get("answer")
        self.calls = 0
        return f" (of {self.asked})"

    def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: the number.
        """
        self.calls += 1
        return 2 * number

    def get_reward(self):
        return self.calls + len(self.asked or "")


def test_environments(run, calls):
    ours, _ = run(trainer=lambda: calls(environment_factory=Doubling), max_completion_length=160)
    assert ours.reward_func_names == ["first", "Doubling"]
    assert set(ours._logs["rewards"]["Doubling"]) > {1.0}


@pytest.mark.slow
def test_evaluation(build, sums):
    sizes = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    for evaluation in (sums.select(range(4)), {"a": sums.select(range(2)), "b": sums.select(range(2, 4))}):
        mine, theirs = (
            build(*classes, trainer={"eval_dataset": evaluation}, **sizes).evaluate()
            for classes in ((GRPOPlusTrainer, GRPOPlusConfig), (GRPOTrainer, GRPOConfig))
        )
        assert set(mine) == set(theirs)
        for key in theirs:
            if not key.endswith(("_time", "runtime", "per_second")):
                assert mine[key] == pytest.approx(theirs[key], abs=1e-6), key


def no_keywords(prompts, completions):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tokenizer": None}, "no argument 'tokenizer'. Did you mean 'processing_class'?"),
        ({"reward_funcs": [no_keywords]}, "the reward function no_keywords takes no .*kwargs"),
        ({"reward_funcs": [3]}, "reward_funcs has 3, expected a function"),
        ({"train_dataset": Dataset.from_dict({"prompt": []})}, "the dataset has 0 rows"),
        ({"args": {"max_steps": 1}}, "args is {'max_steps': 1}, expected a GRPOPlusConfig"),
    ],
    ids=["tokenizer", "without kwargs", "number", "no rows", "mapping"],
)
def test_arguments_that_no_run_could_take_are_refused_before_it_loads(build, given, expected):
    make = partial(GRPOPlusTrainer, "nowhere", **given) if "args" in given else partial(build, trainer=given)
    with pytest.raises(ConfigError, match=expected):
        make()
