"""The order of `pipeline.py`: two neighbouring lines that are swapped end in an error or train another model.

Lines that may stand in either order are listed, with the reason.
"""

import ast
import re
import shutil
import types
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from grpo_plus.record import open_run
from grpo_plus.training import pipeline
from grpo_plus.training.hooks import Hook
from tests.trainer.conftest import capture

pytestmark = pytest.mark.cpu  # exact bits
SOURCE = Path(pipeline.__file__).read_text(encoding="utf-8")
METHODS = {"make_batch", "sample_and_score", "sample", "run_tools", "score", "micro_batch", "step", "loss", "logps", "restore"}  # fmt: skip
DOUBLE = f"{Path(__file__).with_name('tools_of_tests.py')}:double"
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
REFRESHED = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
IN_REWARD = {"kl": {"placement": "reward", "schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
DRAWN = {"rollout": {"how": "auto", "rows": 4}, "top_k": 6}
RUNS = {
    "tpo": {"advantage": "sign", "objective": "tpo", "num_iterations": 2, "selection": "contrast", "dead_groups": "resample"},
    "critic": {"advantage": "gae", "objective": {"name": "grpo", **IN_REWARD}, "critic": {"on": "model"}, **REFRESHED},
    "warming": {"advantage": "gae", "objective": "dapo", "critic": {"on": "trunk", "warmup_steps": 1}, **DRAWN},
    "roulette": {"advantage": "rloo", "dead_groups": {"name": "roulette", "keep": 0.5}, "selection": "contrast", "max_steps": 3},
    "replay": {"advantage": "sign", "objective": "tpo", "dead_groups": "replay", "num_iterations": 2, "beta": 0.1, "max_steps": 4},
    "process": {"advantage": "process", "verifiers": ["math", "math_steps"], "objective": "dapo", "beta": 0.1, "diagnosis": {"judge": "exact", "every": 1}, "max_steps": 6},
    "reward model": {"advantage": "sign", "verifiers": ["math"], "reward_model": {"on": "model", "every": 1}, "selection": {"name": "contrast", "every": 2}},
    "adapter": {"advantage": "sign", "objective": {"name": "grpo", **IN_REWARD}, "entropy_coef": 0.01, **REFRESHED, **DRAWN},
    "tools": {"advantage": "sign", "objective": "grpo", "tools": [DOUBLE], "verifiers": ["tool_used"], "max_completion_length": 200},
    "out of memory": {"advantage": "gae", "objective": {"name": "dapo", "stop_fraction": 0.9}, "critic": {"on": "model"}, "num_iterations": 3, "max_steps": 4},
    "resume": {"advantage": "sign", "dead_groups": "replay", "max_steps": 4, "save_strategy": "steps", "save_steps": 2},
    "evaluation": {"beta": 0.1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "eval_verifiers": ["exact"]},
}  # fmt: skip
SMALL = {"report": {"every": 0}, "max_completion_length": 6}
TOOLS = {"processing_class": "tool_tokenizer", "train_dataset": "chats"}
TIMES = re.compile(r"time|seconds|latency|_per_second|train_loss")
OTHER = "neither reads what the other writes"
FREE = {
    "make_batch: if self.prompt_sampler is not None: <> if self.critic is not None:": OTHER,
    "make_batch: batch = self.prompt_sampler.weigh(batch) <> self.prompt_sampler.observe(batch)": OTHER,
    "make_batch: if self.critic is not None: <> batch = self.objective.add_old_logps(batch)": OTHER,
    "make_batch: batch = self.advantages.compute(batch, table) <> if self.critic is not None:": "the table has all",
    "make_batch: if self.critic is not None: <> if self.recorder is not None:": OTHER,
    "make_batch: if self.recorder is not None: <> trained = self.objective.prepare(batch)": OTHER,
    "sample_and_score: assert own.scored is not None <> batch = replace(own.scored, output=output)": "for mypy",
    "sample_and_score: for hook in self.hooks: <> self.vllm_drift.compare(batch.output)": "compares with vLLM only",
    "sample_and_score: self.vllm_drift.compare(batch.output) <> return batch": "test_hook_state",
    "sample_and_score: self.verifiers.check_row(rows[0] if rows else {}, training=self.host.model.training) <> for hook in self.hooks:": OTHER,
    "sample_and_score: self._new_round() as own, <> self.vllm_drift.of_round(),": OTHER,
    "sample_and_score: self.vllm_drift.of_round(), <> self.tools.sessions(rows),": OTHER,
    "sample_and_score: self.tools.sessions(rows), <> self.allowed_tokens.of_round(),": OTHER,
    "sample: if self.round is not None and self.round.prompt_ids is None:  # later turns continue completions <> with self.clock.sampling():": OTHER,
    "sample: self.tools.begin_calls(prompt_ids, turn[0]) <> return turn": "test_calling",
    "score: verdicts = self.verifiers.verdicts(len(completions), training=self.host.model.training) <> for hook in reversed(self.hooks):": OTHER,
    "score: self.diagnosis.compare(completions, rewards_NK) <> own.scored = self.advantages.read(completions, rewards_NK, verdicts)": OTHER,
    "score: for hook in reversed(self.hooks): <> if self.reward_model is not None:": "no run has both",
    "score: if self.reward_model is not None: <> self.diagnosis.compare(completions, rewards_NK)": OTHER,
    "score: self.diagnosis.judging(completions), <> self.clock.scoring(),": "times alone",
    "score: self.clock.scoring(), <> self.retry.scoring(),": "times alone",
    "score: self.retry.scoring(), <> self.tools.rewarding(turns),": OTHER,
    "score: self.tools.rewarding(turns), <> self.verifiers.scoring(completions),": OTHER,
    "step: for hook in reversed(self.hooks): <> collecting = nullcontext() if self.critic is None else self.critic.collecting()": OTHER,
    "loss: if self.critic is not None and (zero := self.critic.without_policy()) is not None: <> compute: Compute = partial(self.objective.loss, trl)": OTHER,
    "logps: self.vllm_drift.check_ids(input_ids) <> score = partial(self.allowed_tokens.logps, partial(self.engine.logps, trl))": OTHER,
    "restore: if checkpoint is None: <> require_on_all_machines(checkpoint)": "several machines",
    "restore: require_on_all_machines(checkpoint) <> self.resume_check.restore(self.stages, checkpoint, allow_changes=allow_changes)": "several machines",
}  # fmt: skip
"""Pairs that may stand in either order, or that another test holds, and why."""


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


class Halves(Hook):
    """Changes and keeps what a hook may."""

    name = "halves"

    def __init__(self):
        self.seen = []

    def prompts(self, rows):
        self.seen.append(len(rows))

    def scored(self, completions, rewards_NK):
        self.seen.append("scored")
        return rewards_NK / 2

    def batch(self, batch):
        self.seen.append(sorted(batch.output))

    def loss(self, compute, model, inputs):
        return compute(model, inputs) / 2

    def state_dict(self):
        return {"seen": self.seen}


def swaps():
    """The source with two neighbouring statements, or two contexts of one ``with``, in the other order."""
    lines = SOURCE.splitlines()

    def swapped(first, second):
        one, other = (lines[node.lineno - 1 : node.end_lineno] for node in (first, second))
        between = lines[first.end_lineno : second.lineno - 1]
        return "\n".join([*lines[: first.lineno - 1], *other, *between, *one, *lines[second.end_lineno :]])

    for method in ast.walk(ast.parse(SOURCE)):
        if not isinstance(method, ast.FunctionDef) or method.name not in METHODS:
            continue
        for node in ast.walk(method):
            body = node.body if isinstance(getattr(node, "body", None), list) else []
            pairs = [*pairwise(body)]
            if isinstance(node, ast.With):
                items = [item.context_expr for item in node.items]
                pairs += pairwise(items)
            for pair in pairs:
                if isinstance(pair[0], ast.Expr) and isinstance(pair[0].value, ast.Constant):
                    continue  # a docstring
                if pair[0].lineno != pair[1].lineno:
                    names = " <> ".join(lines[one.lineno - 1].strip() for one in pair)
                    yield f"{method.name}: {names}", swapped(*pair)


SWAPS = dict(swaps())


def plain(value):
    """Values that can be compared, without times."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if not TIMES.search(str(key))}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return repr((value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value)


def result(run, batches):
    """Weights, generation batches, the states of the stages, logs and the record of a run."""
    found = {("batch", number): batch for number, batch in enumerate(batches)}
    found |= {("weights", name): weight for name, weight in run.model.named_parameters()}
    found |= {("tensors", stage.name): stage.tensors() for stage in run.pipeline.stages}
    found |= {
        ("state", stage.name): stage.state_dict()
        for stage in run.pipeline.stages
        if stage.name not in ("record", "clock")
    }
    found |= {("log", number): entry for number, entry in enumerate(run.state.log_history)}
    if run.pipeline.recorder is not None:
        record = open_run(run.args.output_dir)
        found |= {("record", entry["kind"], entry["step"]): entry["values"] for entry in record.entries}
        found |= {("group", group["mode"], group["step"], group["group"]): group for group in record.groups()}
    return plain(found)


@pytest.fixture
def train(build, request, tmp_path, monkeypatch):
    """Trains a run with the pipeline of a source, and gives its result or its error."""

    def train(name, source=SOURCE):
        module = types.ModuleType(pipeline.__name__)
        more = {
            "adapter": {"peft_config": LORA},
            "out of memory": {"hooks": [Short()]},
            "critic": {"hooks": [Halves()]},
        }.get(name, {})
        if name == "evaluation":
            more = {"eval_dataset": request.getfixturevalue("sums").select(range(2))}
        if name == "tools":
            request.getfixturevalue("tool_calls")
            more = {argument: request.getfixturevalue(fixture) for argument, fixture in TOOLS.items()}
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        try:
            exec(compile(source, pipeline.__file__, "exec"), vars(module))
            monkeypatch.setattr("grpo_plus.trainer.Pipeline", module.Pipeline)
            run = build(trainer={"reward_funcs": [odd], **more}, **{**SMALL, **RUNS[name]})
            batches = capture(run)
            run.train()
            if name == "resume":
                run = build(trainer={"reward_funcs": [odd]}, **{**SMALL, **RUNS[name], "max_steps": 6})
                run.train(resume_from_checkpoint=True)
        except Exception as error:
            if source is SOURCE:
                raise
            return {"error": repr(error)}
        return result(run, batches)

    return train


@pytest.fixture(scope="module")
def expected():
    """Results of the pipeline as it is, and the runs, those first that showed a difference last."""
    return {}, list(RUNS)


def differs(train, expected, swap):
    results, order = expected
    for name in list(order):
        if name not in results:
            results[name] = train(name)
        found = train(name, SWAPS[swap])
        if "error" not in found and found != results[name]:
            results[name] = train(name)  # an earlier error may have left something behind
        if found != results[name]:
            order.remove(name)
            order.insert(0, name)
            return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("swap", SWAPS)
def test_swapped_lines_fail_or_train_another_model(train, expected, swap):
    assert differs(train, expected, swap) == (swap not in FREE), swap


def test_every_free_pair_is_there():
    assert FREE.keys() <= SWAPS.keys()
