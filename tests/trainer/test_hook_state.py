"""State of hooks in checkpoints: a resumed run goes on as the uninterrupted one, and what does not fit is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from grpo_plus import OnFinding
from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import finish, is_whole
from grpo_plus.training.hooks import Hook
from grpo_plus.training.state import FILE, StateError
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE

ADAPTIVE = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
KL = {"objective": "grpo", "beta": 0.05, "objective_kwargs": ADAPTIVE}
ENTROPY = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.003, "entropy_target": 2.8}
STOP = {"objective": "target", "objective_kwargs": {"stop_fraction": 0.5}, "num_iterations": 3}
MOVES = {
    "the KL coefficient": (KL | {"num_iterations": 2}, ("beta", "kl")),
    "the entropy bonus": ({"objective": "grpo", **ENTROPY}, ("entropy_coef", "entropy")),
    "both": (KL | ENTROPY, ("beta", "entropy_coef")),
    "inner iterations": (STOP | {"learning_rate": 1.0}, ("inner/settled", "inner/skipped")),
}
STEPS = {"save_strategy": "steps", "save_steps": 6, "max_steps": 12, "optim": "adamw_torch", "learning_rate": 1e-2}


def column(trainer, name):
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


@pytest.fixture
def checkpoint(build, tmp_path):
    """The folder of a checkpoint after two steps: `checkpoint(**KL)`."""

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


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MOVES)
def test_a_resumed_run_logs_what_the_uninterrupted_one_did(build, tmp_path, name):
    settings, columns = MOVES[name]
    settings = STEPS | settings
    whole = build(**settings)
    whole.train()
    resumed = build(**settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))
    for metric in columns:
        expected = {step: value for step, value in column(whole, metric).items() if step > 6}
        found = {step: value for step, value in column(resumed, metric).items() if step > 6}
        assert found == pytest.approx(expected, rel=1e-5), metric
        assert expected
    first = column(whole, columns[0])
    assert len(set(first.values())) > 1
    assert resumed.inner.passed == whole.inner.passed
    assert (whole.inner.passed > 0) is (name == "inner iterations")


class Begin(Hook):
    """Notes the coefficients that the first micro-batch of a run starts with."""

    def __init__(self):
        self.beta = self.entropy_coef = None

    def step(self, run):
        if self.beta is None:
            self.beta, self.entropy_coef = self.host.update.beta(), self.host.entropy_coef
        return run()


def begin(build, folder, **settings):
    """The coefficients at the first step of a run that resumes."""
    noted = Begin()
    build(trainer={"hooks": [noted]}, max_steps=3, **settings).train(resume_from_checkpoint=folder)
    return noted


@pytest.mark.slow
def test_the_state_of_a_resumed_run_is_there_before_its_first_step(build, checkpoint):
    folder = checkpoint(**KL, **ENTROPY)
    saved = state_of(folder)["parts"]["objective"]
    assert saved["identity"] == "grpo"
    noted = begin(build, str(folder), **KL, **ENTROPY)
    assert noted.beta == saved["state"]["beta"] != 0.05
    assert noted.entropy_coef == saved["state"]["entropy_coef"] != 0.01


@pytest.mark.slow
def test_the_last_checkpoint_of_the_folder_is_found_as_the_host_finds_it(build, checkpoint):
    beta = state_of(checkpoint(**KL))["parts"]["objective"]["state"]["beta"]
    assert begin(build, True, **KL).beta == beta


class Counter(Hook):
    """A hook of a user: counts micro-batches, and keeps the count."""

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


@pytest.mark.slow
def test_the_state_of_a_users_hook_is_kept_with_no_further_code(build, checkpoint):
    hook = Counter()
    folder = checkpoint([hook])
    assert state_of(folder)["parts"]["counter"] == {"version": 1, "identity": "counter", "state": {"count": 2}}
    assert hook.closed == 1
    again = Counter()
    build(trainer={"hooks": [again]}, max_steps=3).train(resume_from_checkpoint=str(folder))
    assert again.count == 3


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


@pytest.mark.slow
def test_the_tensors_of_a_hook_are_kept_as_safetensors(build, checkpoint):
    folder = checkpoint([Table()])
    assert (folder / "grpo_plus_table.safetensors").is_file()
    again = Table()
    build(trainer={"hooks": [again]}, max_steps=3).train(resume_from_checkpoint=str(folder))
    assert again.kept.keys() == again.tensors().keys()
    for name, tensor in again.tensors().items():
        assert again.kept[name].dtype == tensor.dtype
        assert torch.equal(again.kept[name], tensor.cpu()), name


@pytest.mark.slow
def test_tensors_that_are_gone_or_torn_are_refused(build, checkpoint):
    folder = checkpoint([Table()])
    path = folder / "grpo_plus_table.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    finish(folder, 2)
    refuse(build, folder, "its state of 'table' cannot be read: SafetensorError", hooks=[Table()])
    path.unlink()
    finish(folder, 2)
    refuse(build, folder, "its state of 'table' cannot be read: FileNotFoundError", hooks=[Table()])


@pytest.mark.slow
def test_a_state_that_is_empty_at_the_start_is_kept(build, checkpoint):
    class Seen(Counter):
        """Has nothing to keep before its first step."""

        name = "seen"

        def state_dict(self):
            return {"count": self.count} if self.count else {}

    folder = checkpoint([Seen()])
    again = Seen()
    build(trainer={"hooks": [again]}, max_steps=3).train(resume_from_checkpoint=str(folder))
    assert again.count == 3


@pytest.mark.parametrize("given", [Counter(), Counter, [Counter], [None], None])
def test_hooks_that_are_none_are_refused_before_anything_loads(build, given):
    with pytest.raises(TypeError, match=r"hooks has .*(Counter|None).*, expected a list of objects"):
        build(trainer={"hooks": given, "model": "nowhere"})


def test_hooks_may_come_from_a_generator(build):
    one, other = Counter(), Begin()
    assert build(trainer={"hooks": (hook for hook in (one, other))}).hooks[-2:] == [one, other]


def test_hooks_are_called_at_every_seam(build):
    seen = []

    class Nosy(Hook):
        """Notes the order of the calls."""

        def __getattribute__(self, name):
            if name in vars(Hook) and not name.startswith("_") and callable(getattr(Hook, name)):
                seen.append(name)
            return super().__getattribute__(name)

    trainer = build(trainer={"hooks": [Nosy()]}, advantage="sign", max_steps=1)
    trainer.train()
    order = list(dict.fromkeys(name for name in seen if not name.startswith("on_") and name != "changed_in_a_pass"))
    assert order[:5] == ["problems", "before_loading", "loading", "after_loading", "close"]  # closing is planned early
    steps = ["step", "inputs", "draw", "prompts", "sampling", "scoring", "scored", "batch", "logps", "loss"]
    assert sorted(set(order[5:]) - {"training", "state_dict"}) == sorted(steps)
    for one, other in (
        ("step", "inputs"),
        ("draw", "prompts"),
        ("sampling", "scoring"),
        ("scoring", "scored"),
        ("scored", "batch"),
    ):
        assert order.index(one) < order.index(other)


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


class Halved(Hook):
    """Half of every reward."""

    def scored(self, completions, rewards_NK):
        assert len(completions.texts) == len(completions.ids) == len(rewards_NK)
        return rewards_NK / 2


class Doubled(Hook):
    """Twice the loss."""

    def loss(self, compute, model, inputs):
        return 2 * compute(model, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("hooks", "times"), [([Halved], 0.5), ([Doubled], 2.0), ([Halved, Doubled], 1.0)])
def test_a_hook_changes_rewards_and_loss(build, hooks, times):
    moves = []
    for chosen in ([], hooks):
        made = [hook() for hook in chosen]
        run = build(trainer={"hooks": made}, advantage="center", max_steps=1, max_grad_norm=0.0)
        start = weights(run)
        run.train()
        moves.append(weights(run) - start)
    plain, changed = moves
    assert plain.norm() > 1e-4
    assert (changed - times * plain).norm() <= 1e-3 * plain.norm()


def refuse(build, folder, *words, hooks=(), **settings):
    trainer = build(trainer={"hooks": list(hooks)}, max_steps=3, **settings)
    with pytest.raises(StateError) as caught:
        trainer.train(resume_from_checkpoint=str(folder))
    for word in (str(folder), "Resume with the config, hooks", f"model_name_or_path: {folder}", *words):
        assert word in str(caught.value)
    assert trainer.state.global_step == 0


def test_a_checkpoint_of_another_objective_is_refused(build, checkpoint):
    folder = checkpoint(**KL)
    refuse(build, folder, "its state of 'objective' belongs to 'grpo', expected 'dapo'", **{**KL, "objective": "dapo"})
    constant = {"objective": "grpo", "beta": 0.05}
    refuse(build, folder, "it holds the state of 'objective' ('grpo'), which this run lacks", **constant)
    refuse(build, folder, "it holds beta, expected beta, entropy_coef, last_world_entropy", **KL, **ENTROPY)


@pytest.mark.slow
def test_a_checkpoint_without_a_state_that_is_needed_is_refused(build, checkpoint):
    folder = checkpoint()
    refuse(build, folder, "it holds no state of 'objective'", "no state of 'counter'", hooks=[Counter()], **KL)


@pytest.mark.slow
def test_a_checkpoint_with_the_state_of_a_hook_that_is_not_there_is_refused(build, checkpoint):
    refuse(build, checkpoint([Counter()]), "it holds the state of 'counter' ('counter'), which this run lacks")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), [("inner_iterations", {"passed": 2}), ("reference", {"refreshed": 2})])
def test_the_state_of_a_part_that_does_not_run_is_refused(build, checkpoint, name, state):
    folder = checkpoint()
    rewrite(folder, lambda content: content["parts"].update({name: {"version": 1, "identity": name, "state": state}}))
    refuse(build, folder, f"it holds the state of {name!r} ({name!r}), which this run lacks")


@pytest.mark.slow
def test_another_version_is_refused(build, checkpoint):
    folder = checkpoint(**KL)

    def newer_part(content):
        content["parts"]["objective"]["version"] = 2

    def newer_file(content):
        content["version"] = 7

    rewrite(folder, newer_part)
    refuse(build, folder, "its state of 'objective' is of version 2, expected 1", **KL)
    rewrite(folder, newer_file)
    refuse(build, folder, f"{FILE} is of version 7, and this release reads up to 2", **KL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read: JSONDecodeError"),
        ("[]", "cannot be read: TypeError"),
        ('{"version": 1}', "cannot be read: KeyError"),
        ('{"version": 1, "parts": {"objective": 3, "clock": {}}}', "its state of 'objective' is not complete"),
    ],
)
def test_a_broken_state_is_refused(build, checkpoint, text, words):
    folder = checkpoint(**KL)
    (folder / FILE).write_text(text)
    finish(folder, 2)
    refuse(build, folder, words, **KL)


@pytest.mark.slow
def test_a_state_that_a_hook_cannot_read_is_refused(build, checkpoint):
    folder = checkpoint(**KL)

    def wrong(content):
        content["parts"]["objective"]["state"]["beta"] = "a lot"

    rewrite(folder, wrong)
    refuse(build, folder, "its state of 'objective' cannot be read: ValueError: could not convert", **KL)


@pytest.mark.slow
def test_a_checkpoint_from_before_the_state_file_is_read(build, checkpoint):
    folder = checkpoint(**KL, **ENTROPY)
    state = state_of(folder)["parts"]["objective"]["state"]
    (folder / FILE).unlink()
    (folder / manifest.FILE).unlink()
    host = json.loads((folder / "trainer_state.json").read_text())
    host["stateful_callbacks"]["grpo_plus_kl_coefficient"] = {"beta": 0.031}
    (folder / "trainer_state.json").write_text(json.dumps(host))
    noted = begin(build, str(folder), **KL, **ENTROPY)
    assert noted.beta == 0.031
    assert noted.entropy_coef == state["entropy_coef"]


@pytest.mark.slow
def test_a_checkpoint_of_the_hosts_own_trainer_goes_on_where_nothing_is_missing(build, checkpoint):
    folder = checkpoint()
    (folder / FILE).unlink()
    (folder / manifest.FILE).unlink()
    resumed = build(max_steps=3)
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.state.global_step == 3
    refuse(build, folder, "it holds no state of 'objective'", **KL)


@pytest.mark.slow
def test_state_that_is_no_json_is_refused_when_it_is_saved(build):
    class Tensors(Hook):
        """Keeps what a JSON file cannot."""

        name = "tensors"

        def state_dict(self):
            return {"weights": torch.zeros(2)}

    with pytest.raises(StateError, match=r"the state of the hook 'tensors' is not made of JSON values: .*Tensor"):
        build(trainer={"hooks": [Tensors()]}, save_strategy="steps", save_steps=1).train()


@pytest.mark.slow
def test_a_key_that_json_would_turn_into_a_text_is_refused(build):
    class Rows(Counter):
        """Counts by number."""

        def state_dict(self):
            return {"rows": [{3: 1}]}

    with pytest.raises(StateError, match="the state of the hook 'counter' is not made of JSON values: the key 3 is no"):
        build(trainer={"hooks": [Rows()]}, save_strategy="steps", save_steps=1).train()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "the hook Counter has state to save, but it has no name: set its name"),
        ("clock", "the hooks StepClock and Counter are both named 'clock': set another name"),
        ("a/b", "the hook Counter is named 'a/b', expected letters, digits"),
    ],
)
def test_state_needs_a_name_of_its_own_before_anything_loads(build, name, words):
    hook = Counter()
    hook.name = name
    with pytest.raises(ConfigError, match=words):
        build(trainer={"hooks": [hook], "model": "nowhere"})


def test_two_hooks_of_a_user_have_two_names(build):
    table = Table()
    table.name = "counter"
    with pytest.raises(ConfigError, match="the hooks Counter and Table are both named 'counter'"):
        build(trainer={"hooks": [Counter(), table], "model": "nowhere"})


def test_hooks_without_state_need_no_name(build):
    assert len(build(trainer={"hooks": [Begin(), Begin()]}).hooks) > 2


@pytest.mark.slow
def test_a_checkpoint_whose_state_cannot_be_written_is_not_whole(build, tmp_path):
    hook = Counter()
    hook.count = torch.zeros(1)
    with pytest.raises(StateError):
        build(trainer={"hooks": [hook]}, save_strategy="steps", save_steps=1).train()
    assert not is_whole(tmp_path / "out" / "checkpoint-1")


@pytest.mark.slow
def test_checkpoints_of_weights_only_hold_the_state_too(checkpoint):
    parts = state_of(checkpoint(save_only_model=True, **KL))["parts"].keys()
    assert parts >= {"clock", "objective", "place"}
    assert "generation_batch" not in parts


def test_a_path_that_is_no_checkpoint_is_left_to_the_host(build, tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        build(**KL).train(resume_from_checkpoint=str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_a_copy_of_a_checkpoint_is_as_good(build, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint(**KL), tmp_path / "elsewhere")
    assert begin(build, str(folder), **KL).beta == state_of(folder)["parts"]["objective"]["state"]["beta"]


@pytest.mark.slow
def test_a_plain_config_of_the_host_is_saved_and_resumed_from(build, tmp_path):
    from trl import GRPOConfig

    run = build(
        config_class=GRPOConfig,
        save_strategy="steps",
        save_steps=1,
        trainer={"callbacks": [OnFinding(print, stop_on=["nan"])]},
    )
    run.train()
    run.save_model(str(tmp_path / "model"))
    assert state_of(tmp_path / "out" / "checkpoint-1")["parts"].keys() >= {"clock", "place", "settings"}
    again = build(config_class=GRPOConfig, max_steps=3)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    assert again.state.global_step == 3


@pytest.mark.slow
def test_each_rank_goes_on_from_its_own_state(build, tmp_path, tiny_model, two_ranks):
    script = Path(__file__).with_name("state_ranks.py")
    with two_ranks(script, tmp_path, tiny_model, log=tmp_path / "log"):
        pass
    folder = tmp_path / "out" / "checkpoint-2"
    assert state_of(folder)["parts"]["own_rank"]["ranks"] == [{"total": 2}, {"total": 4}]
    first, second = (json.loads((tmp_path / f"state_{rank}.json").read_text()) for rank in range(2))
    assert [(rank["loaded"], rank["total"]) for rank in (first, second)] == [(2, 1), (4, 2)]
    assert first["saved"] == second["saved"] == first["beta"] == second["beta"] != 0.05

    class OwnRank(Counter):
        name = "own_rank"
        rank_local = True

    words = "its state of 'own_rank' cannot be read: ValueError: it is that of 2 processes, and this run has 1"
    refuse(build, folder, words, hooks=[OwnRank()], **KL)
