"""The order of hooks: another order trains the same, bit for bit, or no trainer is built."""

import re
import shutil
from graphlib import TopologicalSorter
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.record import open_run
from grpo_plus.training.hooks import Hook, order_problems
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import SETTINGS, capture

pytestmark = pytest.mark.cpu  # exact bits
DOUBLE = f"{Path(__file__).with_name('tools_of_tests.py')}:double"
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
REFRESHED = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
IN_REWARD = {"kl": {"placement": "reward", "schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
DRAWN = {"rollout": {"how": "auto", "rows": 4}, "top_k": 6}
RUNS = {
    "tpo": {"advantage": "sign", "objective": "tpo", "num_iterations": 2, "selection": "contrast", "dead_groups": "resample"},
    "target": {"advantage": "raw", "objective": {"name": "target", "stop_fraction": 0.5}, "num_iterations": 2, **DRAWN},
    "critic": {"advantage": "gae", "objective": {"name": "grpo", **IN_REWARD}, "critic": {"on": "model"}, **REFRESHED},
    "warming": {"advantage": "gae", "objective": "dapo", "critic": {"on": "trunk", "warmup_steps": 1}, **DRAWN},
    "roulette": {"advantage": "rloo", "dead_groups": {"name": "roulette", "keep": 0.5}, "selection": "contrast", "max_steps": 3},
    "no record": {"advantage": "rloo", "selection": "contrast", "max_steps": 3, "report": False},
    "replay": {"advantage": "sign", "objective": "tpo", "dead_groups": "replay", "num_iterations": 2, "beta": 0.1, "max_steps": 4},
    "process": {"advantage": "process", "verifiers": ["math", "math_steps"], "objective": "dapo", "beta": 0.1, "diagnosis": {"judge": "exact", "every": 1}, "max_steps": 6},
    "reward model": {"advantage": "sign", "verifiers": ["math"], "reward_model": {"on": "model", "every": 1}, "selection": {"name": "contrast", "every": 2}},
    "adapter": {"advantage": "sign", "objective": {"name": "grpo", **IN_REWARD}, "entropy_coef": 0.01, **REFRESHED, **DRAWN},
    "tools": {"advantage": "sign", "objective": "grpo", "tools": [DOUBLE], "verifiers": ["tool_used"], "max_completion_length": 200},
    "out of memory": {"advantage": "gae", "objective": {"name": "dapo", "stop_fraction": 0.9}, "critic": {"on": "model"}, "num_iterations": 3, "max_steps": 4},
    "evaluation": {"beta": 0.1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "eval_verifiers": ["exact"]},
}  # fmt: skip
SMALL = {"report": {"every": 0}, "max_completion_length": 6}
TOOLS = {"processing_class": "tool_tokenizer", "train_dataset": "chats"}
TIMES = re.compile(r"time|seconds|latency|_per_second|train_loss")


def odd(completions, **_):
    """A third of the groups is tied, and some rewards are no numbers that can be used."""
    sums = [sum(map(ord, str(text))) for text in completions]
    return [None if each % 13 == 5 else float("inf") if each % 11 == 3 else float(each % 4 == 0) for each in sums]


class Short(Hook):
    """Memory runs out once, at the end of a micro-batch."""

    passes = 0

    def step(self, run):
        loss, self.passes = run(), self.passes + 1
        if self.passes == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss


class Reordered(GRPOPlusTrainer):
    """Its hooks in another order: the places of those of a run."""

    order = None

    def _add_hooks(self, recipe, step_scorer):
        super()._add_hooks(recipe, step_scorer)
        if self.order is not None:
            self.hooks[:] = [self.hooks[place] for place in self.order]


def plain(value):
    """Values that can be compared, without times."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if not TIMES.search(str(key))}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return repr((value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value)


def result(run, batches):
    """Weights, generation batches, what hooks have learned, logs and the record of a run."""
    found = {("batch", number): batch for number, batch in enumerate(batches)}
    found |= {("weights", name): weight for name, weight in run.model.named_parameters()}
    found |= {("tensors", hook.name): hook.tensors() for hook in run.pipeline.stages}
    found |= {("log", number): entry for number, entry in enumerate(run.state.log_history)}
    if run.pipeline.recorder is not None:
        record = open_run(run.args.output_dir)
        found |= {("record", entry["kind"], entry["step"]): entry["values"] for entry in record.entries}
        found |= {("group", group["mode"], group["step"], group["group"]): group for group in record.groups()}
    return plain(found)


@pytest.fixture
def train(build, request, tmp_path):
    """Trains a run with its hooks in some order, and gives its result; in another order than its own, or the error."""

    def train(name, order=None):
        more = {"adapter": {"peft_config": LORA}, "out of memory": {"hooks": [Short()]}}.get(name, {})
        if name == "evaluation":
            more = {"eval_dataset": request.getfixturevalue("sums").select(range(2))}
        if name == "tools":
            request.getfixturevalue("tool_calls")
            more = {argument: request.getfixturevalue(fixture) for argument, fixture in TOOLS.items()}
        kind = type("Reordered", (Reordered,), {"order": order})
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        try:
            run = build(kind, trainer={"reward_funcs": [odd], **more}, **{**SMALL, **RUNS[name]})
            batches = capture(run)
            run.train()
        except Exception as error:
            if order is None:
                raise
            return {"error": repr(error)}
        return result(run, batches)

    return train


def hooks_of(name):
    unbuilt = GRPOPlusTrainer.__new__(GRPOPlusTrainer)
    unbuilt._add_hooks(recipe_of(GRPOPlusConfig(**{**SETTINGS, "output_dir": "out", **RUNS[name]})), None)
    return unbuilt.pipeline.stages


def declared(hooks):
    """Pairs of places whose order is declared, also by way of others."""
    pairs = {pair for pair in combinations(range(len(hooks)), 2) if order_problems([hooks[pair[1]], hooks[pair[0]]])}
    for middle, first, last in product(range(len(hooks)), repeat=3):
        if (first, middle) in pairs and (middle, last) in pairs:
            pairs.add((first, last))
    return pairs


def orders(count, fixed):
    """Few orders that keep the fixed pairs, and have every other pair the other way round in one of them."""
    left = set(combinations(range(count), 2)) - fixed
    while left:
        _, early = min(left)
        needed = {early} | {one for one, other in fixed if other == early}
        sorter = TopologicalSorter({place: {one for one, other in fixed if other == place} for place in range(count)})
        sorter.prepare()
        order, ready = [], set()
        while sorter.is_active():
            ready |= {*sorter.get_ready()}
            order.append(max(ready, key=lambda place: (place in needed, place)))
            ready.remove(order[-1])
            sorter.done(order[-1])
        yield order
        left = {(one, other) for one, other in left if order.index(one) < order.index(other)}


@pytest.mark.sample(0, 7)
@pytest.mark.parametrize("name", RUNS)
def test_hooks_in_any_order_that_is_not_refused_train_the_same(train, name):
    hooks, expected = hooks_of(name), train(name)
    names, fixed = [type(hook).__name__ for hook in hooks], declared(hooks)
    for order in orders(len(hooks), fixed):
        found = train(name, order)
        if found != expected:
            changed = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
            turned = [pair for pair in combinations(order, 2) if pair[0] > pair[1]]
            pairs = ", ".join(f"{names[first]} in {names[last]}.after" for last, first in turned)
            pytest.fail(f"{found.get('error') or changed}: declare one of {pairs}")


def test_declared_names_are_those_of_hooks_and_a_wrong_order_is_refused_before_anything_loads(build, monkeypatch):
    hooks = {type(hook) for name in RUNS for hook in hooks_of(name)}
    assert {name for kind in hooks for name in kind.after} <= {kind.__name__ for kind in hooks}
    kinds = [type(hook).__name__ for hook in hooks_of("tpo")]
    order = [*range(len(kinds))]
    order.insert(kinds.index("Advantages"), order.pop(kinds.index("ObjectiveLoss")))
    monkeypatch.setattr(Reordered, "order", order)
    with pytest.raises(ConfigError, match="ObjectiveLoss must come after Advantages: move it"):
        build(Reordered, trainer={"model": "no/model"}, **RUNS["tpo"])


Later = type("Later", (Hook,), {"after": "Shorter"})


def test_hooks_of_a_user_declare_their_order_and_come_last_whatever_their_names(build, monkeypatch):
    hooks = [Later(), Short(), type("Drift", (Hook,), {})()]  # built-in ones come after Drift, but a built-in one
    assert build(trainer={"hooks": hooks}).hooks[-3:] == hooks
    for after in (("Short",), "Short"):
        monkeypatch.setattr(Later, "after", after)
        with pytest.raises(ConfigError, match="Later must come after Short"):
            build(trainer={"hooks": [Later(), Short()]})
