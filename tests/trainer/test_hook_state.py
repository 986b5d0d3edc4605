"""State of hooks in checkpoints: a resumed run goes on as the uninterrupted one, and what does not fit is refused."""

import json

import pytest
import torch

from grpo_plus import OnFinding
from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import finish, is_intact
from grpo_plus.training.hooks import Hook, TrainerStage
from grpo_plus.training.resume.state import FILE, StateError
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE
from tests.trainer.conftest import weights

ADAPTIVE = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
KL = {"objective": {"name": "grpo", **ADAPTIVE}, "beta": 0.05}
ENTROPY = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.003, "entropy_target": 2.8}


@pytest.fixture
def checkpoint(build, tmp_path):
    def checkpoint(hooks=(), **settings):
        build(trainer={"hooks": list(hooks)}, **{"save_strategy": "steps", "save_steps": 2, **settings}).train()
        return tmp_path / "out" / "checkpoint-2"

    return checkpoint


def state_of(folder):
    return json.loads((folder / FILE).read_text())


def rewrite(folder, change):
    content = state_of(folder)
    change(content)
    (folder / FILE).write_text(json.dumps(content))
    finish(folder, 2)


class Begin(Hook):
    def __init__(self):
        self.beta = self.entropy_coef = None

    def step(self, run):
        if self.beta is None:
            self.beta, self.entropy_coef = self.host.pipeline.objective.beta(), self.host.entropy_coef
        return run()


def begin(build, folder, **settings):
    noted = Begin()
    build(trainer={"hooks": [noted]}, max_steps=3, **settings).train(resume_from_checkpoint=str(folder))
    return noted


def test_the_state_of_a_resumed_run_is_there_before_its_first_step(build, checkpoint):
    folder = checkpoint(**KL, **ENTROPY)
    saved = state_of(folder)["parts"]["objective"]
    assert saved["identity"] == "grpo"
    noted = begin(build, folder, **KL, **ENTROPY)
    assert noted.beta == saved["state"]["beta"] != 0.05
    assert noted.entropy_coef == saved["state"]["entropy_coef"] != 0.01


class Counter(Hook):
    name = "counter"

    def __init__(self):
        self.count = 0
        self.closed = 0

    def step(self, run):
        self.count += 1
        return run()

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

    def close(self):
        self.closed += 1


class Seen(Counter):
    """Has no state at the start."""

    name = "seen"

    def state_dict(self):
        return super().state_dict() if self.count else {}


def test_the_state_of_a_users_hook_is_kept_with_no_further_code(trained, checkpoint):
    hook = Counter()
    folder = checkpoint([hook, Seen()])
    assert state_of(folder)["parts"]["counter"] == {"version": 1, "identity": "counter", "state": {"count": 2}}
    assert hook.closed == 1
    again = [Counter(), Seen()]
    trained(trainer={"hooks": (hook for hook in again)}, max_steps=3, resume=str(folder))  # any iterable will do
    assert [hook.count for hook in again] == [3, 3]


class Table(Counter):
    """Keeps tensors of every kind, one of them a view of another."""

    name = "table"

    def __init__(self):
        super().__init__()
        self.kept = {}

    def tensors(self):
        wide = torch.arange(6.0, device=DEVICE).reshape(2, 3)
        return {"wide": wide, "turned": wide.T, "flag": torch.tensor(True), "half": torch.ones(2, dtype=torch.bfloat16)}

    def load_tensors(self, tensors):
        self.kept = dict(tensors)


def test_the_tensors_of_a_hook_are_kept_as_safetensors(trained, checkpoint):
    folder = checkpoint([Table()])
    assert (folder / "grpo_plus_table.safetensors").is_file()
    again = Table()
    trained(trainer={"hooks": [again]}, max_steps=3, resume=str(folder))
    assert again.kept.keys() == again.tensors().keys()
    for name, tensor in again.tensors().items():
        assert again.kept[name].dtype == tensor.dtype
        assert torch.equal(again.kept[name], tensor.cpu()), name


def test_tensors_that_are_gone_or_torn_are_refused(build, checkpoint):
    path = checkpoint([Table()]) / "grpo_plus_table.safetensors"
    for torn, error in ((path.read_bytes()[:-3], "SafetensorError"), (None, "FileNotFoundError")):
        path.unlink() if torn is None else path.write_bytes(torn)
        finish(path.parent, 2)
        refuse(build, path.parent, f"its state of 'table' cannot be read: {error}", hooks=[Table()])


@pytest.mark.parametrize("given", [Counter(), Counter, [Counter], [None], None])
def test_hooks_that_are_none_are_refused_before_anything_loads(build, given):
    with pytest.raises(TypeError, match=r"hooks has .*(Counter|None).*, expected a list of objects"):
        build(trainer={"hooks": given, "model": "nowhere"})


def test_hooks_are_called_at_every_seam(build):
    seen = []

    class Nosy(Hook):
        def __getattribute__(self, name):
            if name in SEAMS:
                seen.append(name)
            return super().__getattribute__(name)

    trainer = build(trainer={"hooks": [Nosy()]}, advantage="sign", max_steps=1)
    trainer.pipeline.vllm_drift.compare = lambda output: seen.append(f"compared {len(output['completion_ids'])}")
    trainer.train()
    order = list(dict.fromkeys(seen))
    assert order == ["problems", "before_loading", "after_loading", "close", "training", "step", "prompts", *AFTER]


SEAMS = {name for name in {**vars(Hook), **vars(TrainerStage)} if not name.startswith(("_", "on_"))}
SEAMS -= {"name", "host", "identity", "rank_local", "begins_anew", "state_version"}
SEAMS -= {"state_dict", "tensors", "load_state_dict", "load_tensors"}
AFTER = ["scored", "sampled", "compared 8", "batch", "loss"]


class Halved(Hook):
    def scored(self, completions, rewards_NK):
        assert len(completions.texts) == len(completions.ids) == len(rewards_NK)
        return rewards_NK / 2


class Doubled(Hook):
    def loss(self, compute, model, inputs):
        return 2 * compute(model, inputs)


@pytest.mark.parametrize(("hooks", "times"), [([Halved], 0.5), ([Doubled], 2.0), ([Halved, Doubled], 1.0)])
def test_a_hook_changes_rewards_and_loss(build, trained, hooks, times):
    start = weights(build())
    plain, changed = (
        weights(trained(trainer={"hooks": made}, advantage="center", max_steps=1, max_grad_norm=0.0)).detach() - start
        for made in ([], [hook() for hook in hooks])
    )
    assert plain.norm() > 1e-4
    assert (changed - times * plain).norm() <= 1e-3 * plain.norm()


@pytest.mark.parametrize(
    ("method", "change", "expected"),
    [
        ("scored", lambda value: None, r"must return a Tensor \(8, 1\); it returned None"),
        ("scored", lambda value: value[:, 0], r"must return a Tensor \(8, 1\); it returned the shape \(8,\)"),
        ("sampled", lambda value: value.output, "must return a ScoredBatch; it returned {"),
        ("step", lambda value: None, "must return a Tensor; it returned None"),
        ("loss", float, "must return a Tensor; it returned "),
    ],
)
def test_a_hook_that_returns_something_else_is_named(build, method, change, expected):
    class Wrong(Hook):
        def after_loading(self, host):
            assert self.host is host

    def wrong(self, *arguments):
        return change(getattr(Hook, method)(self, *arguments))

    setattr(Wrong, method, wrong)
    with pytest.raises(TypeError, match=f"{method} of the hook Wrong {expected}"):
        build(trainer={"hooks": [Wrong()]}, advantage="center", max_steps=1).train()


def refuse(build, folder, *words, hooks=(), **settings):
    trainer = build(trainer={"hooks": list(hooks)}, max_steps=3, **settings)
    with pytest.raises(StateError) as caught:
        trainer.train(resume_from_checkpoint=str(folder))
    for word in (str(folder), "Resume with the config, hooks", f"model_name_or_path: {folder}", *words):
        assert word in str(caught.value)
    assert trainer.state.global_step == 0


def part(name, state):
    return lambda content: content["parts"].update({name: {"version": 1, "identity": name, "state": state}})


def objective(**changes):
    return lambda content: content["parts"]["objective"].update(changes)


# settings of the checkpoint, how its state is changed, settings of the run that resumes, what is said
REFUSED = {
    "another objective": (KL, objective(identity="dapo"), KL, "'objective' belongs to 'dapo', expected 'grpo'"),
    "more to hold": (
        KL | ENTROPY,
        objective(state={"beta": 0.1}),
        KL | ENTROPY,
        "it holds beta, expected beta, entropy",
    ),
    "no state of an objective": (KL, lambda content: content["parts"].pop("objective"), KL, "no state of 'objective'"),
    "no state of a hook": ({}, None, {"hooks": [Counter()]}, "no state of 'counter'"),
    "a hook that is not there": ({"hooks": [Counter()]}, None, {}, "the state of 'counter' ('counter'), which this"),
    "inner iterations": ({}, part("inner_iterations", {"passed": 2}), {}, "it holds the state of 'inner_iterations'"),
    "a reference": ({}, part("reference", {"refreshed": 2}), {}, "it holds the state of 'reference'"),
    "a newer part": (KL, objective(version=2), KL, "its state of 'objective' is of version 2, expected 1"),
    "a newer file": (KL, '{"version": 7, "parts": {}}', KL, f"{FILE} is of version 7, and this release reads 2"),
    "a value": (KL, objective(state={"beta": "a lot"}), KL, "'objective' cannot be read: ValueError: could not"),
    "no JSON": (KL, "{", KL, "cannot be read: JSONDecodeError"),
    "a list": (KL, "[]", KL, "cannot be read: TypeError"),
    "no parts": (KL, '{"version": 1}', KL, "cannot be read: KeyError"),
    "half a part": (KL, '{"version": 2, "parts": {"objective": 3, "clock": {}}}', KL, "'objective' is not complete"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_whose_state_does_not_fit_is_refused(build, checkpoint, name):
    before, change, after, words = REFUSED[name]
    folder = checkpoint(**before)
    if isinstance(change, str):
        (folder / FILE).write_text(change)
        finish(folder, 2)
    elif change is not None:
        rewrite(folder, change)
    refuse(build, folder, words, **after)


@pytest.mark.parametrize(("state", "said"), [({"weights": torch.zeros(2)}, "Tensor"), ({"rows": [{3: 1}]}, "the key 3 is no")])  # fmt: skip
def test_state_that_is_no_json_is_refused_when_it_is_saved_and_its_checkpoint_is_not_whole(
    checkpoint, tmp_path, state, said
):
    with pytest.raises(StateError, match=f"the state of the stage 'counter' must consist of JSON values: .*{said}"):
        checkpoint([type("Unwritable", (Counter,), {"state_dict": lambda _: state})()])
    assert not is_intact(tmp_path / "out" / "checkpoint-2")


def test_a_checkpoint_of_the_hosts_own_trainer_goes_on_where_nothing_is_missing(trained, build, checkpoint):
    folder = checkpoint()
    (folder / FILE).unlink()
    (folder / manifest.FILE).unlink()
    assert trained(max_steps=3, resume=str(folder)).state.global_step == 3
    refuse(build, folder, "it holds no state of 'objective'", **KL)
    assert trained(**KL, max_steps=3, resume=str(folder), allow=True).state.global_step == 3
    with pytest.raises(ValueError, match="nowhere"):  # what is no checkpoint is left to the host
        build(**KL).train(resume_from_checkpoint=str(folder / "nowhere"))


@pytest.mark.parametrize(("name", "words"), [
    ("", "the hook Counter has state to save, but it has no name: set its name"),
    ("clock", "the hooks StepClock and Counter are both named 'clock': set another name"),
    ("a/b", "the hook Counter is named 'a/b', expected letters, digits"),
])  # fmt: skip
def test_state_needs_a_name_of_its_own_before_anything_loads(build, name, words):
    hook = Counter()
    hook.name = name
    with pytest.raises(ConfigError, match=words):
        build(trainer={"hooks": [hook], "model": "nowhere"})


def test_a_plain_config_of_the_host_is_saved_and_resumed_from(trained, tmp_path):
    from trl import GRPOConfig

    callbacks = {"callbacks": [OnFinding(print, stop_on=["nan"])]}
    run = trained(config_class=GRPOConfig, save_strategy="steps", save_steps=1, trainer=callbacks)
    run.save_model(str(tmp_path / "model"))
    folder = tmp_path / "out" / "checkpoint-1"
    assert state_of(folder)["parts"].keys() >= {"clock", "data_position", "run_fingerprint"}
    assert trained(config_class=GRPOConfig, max_steps=3, resume=str(folder)).state.global_step == 3


def test_each_rank_goes_on_from_its_own_state(tmp_path, ranks):
    first, second = ranks("state")
    folder = tmp_path / "out" / "checkpoint-2"
    assert state_of(folder)["parts"]["own_rank"]["ranks"] == [{"total": 2}, {"total": 4}]
    assert [(rank["loaded"], rank["total"]) for rank in (first, second)] == [(2, 1), (4, 2)]
    assert first["saved"] == second["saved"] == first["beta"] == second["beta"] != 0.05
