"""Compositions: what is refused and in which words, what a config builds, what users may register."""

import pytest
import torch

from grpo_plus.objectives import build_objective, objectives, piece_registries, register_objective
from grpo_plus.objectives.batch import Metric
from grpo_plus.objectives.compose import compose_objective
from grpo_verifiers.errors import ConfigError, DuplicateNameError

CLIP = {"name": "clip", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
ADAPTIVE = {"name": "adaptive", "target": 0.1}


@pytest.mark.parametrize(("name", "kwargs", "beta", "said"), [
    ("grpoo", {}, 0, ["unknown objective 'grpoo'", "Did you mean 'grpo'?", "dapo"]),
    ("bnpo", {}, 0, ["'bnpo'", "micro-batch", "dapo"]),
    (3, {}, 0, ["by name", "3"]),
    ("grpo", {"epsilon_hihg": 0.3}, 0, ["'epsilon_hihg'", "Did you mean 'epsilon_high'?"]),
    ("grpo", {"epsilon_low": -0.1}, 0, ["epsilon_low is -0.1", "at least 0"]),
    ("grpo", {"epsilon_low": 10**400}, 0, ["epsilon_low", "expected a number"]),
    ("grpo", {"epsilon_high": "wide"}, 0, ["'epsilon_high' is 'wide'", "a number"]),
    ("grpo", {"epsilon_low": True}, 0, ["epsilon_low", "True"]),
    ("grpo", {"delta": 0}, 0, ["delta is 0", "more than 0"]),
    ("ppo_clip", {"dual": 1.0}, 0, ["dual is 1.0", "more than 1"]),
    ("cispo", {"delta": 2.0}, 0, ["'cispo'", "unknown keyword 'delta'", "epsilon_max"]),
    ("grpo", {"ratio": "sequense"}, 0, ["unknown ratio 'sequense'", "Did you mean 'sequence'?"]),
    ("grpo", {"surrogate": "klip"}, 0, ["unknown surrogate 'klip'", "'clip'"]),
    ("grpo", {"surrogate": ["clip"]}, 0, ["surrogate", "list"]),
    ("grpo", {"reduce": "mean"}, 0, ["unknown reduction 'mean'", "token_mean"]),
    ("grpo", {"surrogate": CLIP, "epsilon_low": 0.1}, 0, ["epsilon_low is set twice"]),
    ("grpo", {"reduce": {"name": "constant", "length": 0}}, 0, ["length is 0", "at least 1"]),
    ("reinforce", {"ratio": "token"}, 0, ["'logp' reads no ratio", "Remove ratio"]),
    ("vespo", {"ratio": "sequence"}, 0, ["'vespo'", "Remove ratio"]),
    ("grpo", {"ratio": "none"}, 0, ["needs a ratio: 'clip' reads one"]),
    ("target", {}, 0.1, ["'target'", "beta 0.1", "Set it to 0"]),
    ("grpo", {"surrogate": "target"}, 0.1, ["'target'", "Set it to 0"]),
    ("target", {"reduce": "sequence_mean"}, 0, ["'target'", "token_mean", "Remove reduce"]),
    ("target", {"kl": "k3"}, 0, ["'target'", "Remove kl"]),
    ("target", {"good_exponent": 1.5}, 0, ["good_exponent is 1.5", "at most 1"]),
    ("target", {"bad_exponent": 0.5}, 0, ["bad_exponent is 0.5", "at least 1"]),
    ("grpo_clip", {}, 0.1, ["'grpo_clip'", "use objective 'grpo'"]),
    ("grpo", {}, -0.1, ["beta -0.1", "0 or more"]),
    ("grpo", {"kl": {"placement": "reward"}}, 0, ["needs beta", "nothing would read it"]),
    ("grpo", {"kl": {"schedule": "adaptive"}}, 0, ["needs beta"]),
    ("grpo", {"kl": None}, 0.1, ["beta is 0.1", "needs a KL estimator"]),
    ("grpo", {"kl": "k4"}, 0.1, ["unknown KL estimator 'k4'", "k1, k2, k3"]),
    ("grpo", {"kl": {"estimater": "k1"}}, 0.1, ["unknown keyword 'estimater'", "'estimator'"]),
    ("grpo", {"kl": {"placement": "rewards"}}, 0.1, ["'placement' is 'rewards'", "'reward'"]),
    ("grpo", {"kl": {"unbiased": "yes"}}, 0.1, ["'unbiased' is 'yes'"]),
    ("grpo", {"kl": {"unbiased": True, "placement": "reward"}}, 0.1, ["the ratio is 1", "Remove it"]),
    ("gmpo", {"kl": {"unbiased": True}}, 0.1, ["'gmpo'", "kl.unbiased: it never multiplies"]),
    ("grpo", {"kl": {"schedule": "warm"}}, 0.1, ["unknown schedule 'warm'", "warmup"]),
    ("grpo", {"kl": {"schedule": "warmup"}}, 0.1, ["'steps' is required"]),
    ("grpo", {"kl": {"schedule": {"name": "warmup", "steps": 0}}}, 0.1, ["steps is 0", "at least 1"]),
    ("grpo", {"kl": {"schedule": ADAPTIVE | {"target": -1.0}}}, 0.1, ["target is -1.0"]),
    ("grpo", {"kl": {"schedule": ADAPTIVE | {"rate": 5}}}, 0.1, ["rate is 5, expected a number of more than 0 and less than 5"]),
    ("grpo", {"stop_fraction": 1.5}, 0, ["stop_fraction is 1.5", "at most 1"]),
    ("sapo", {"stop_fraction": 0.9}, 0, ["'sapo' always pulls all", "clip, dppo_kl, dppo_tv, fipo, gmpo, target"]),
])  # fmt: skip
def test_bad_compositions_say_what_is_wrong(name, kwargs, beta, said):
    problems = compose_objective(name, kwargs, beta=beta)[1]
    assert problems
    assert any(all(word in problem for word in said) for problem in problems), problems
    with pytest.raises(ConfigError):
        build_objective(name, kwargs, beta=beta)


@pytest.mark.parametrize(("name", "kwargs", "count"), [
    ("grpo", {"kl": {"estimator": "k3", "placement": "reward", "foo": 1}}, 2), ("sapo", {"stop_fraction": 1.5}, 1),
    ("sapo", {"stop_fraction": True}, 1),
])  # fmt: skip
def test_each_mistake_of_several_is_told_and_each_once(name, kwargs, count):
    assert len(compose_objective(name, kwargs, beta=0.1)[1]) == count


def test_all_problems_come_together():
    kl = {"estimator": "k4", "unbiased": 3}
    wrong = {"epsilon_low": -1, "reduce": "mean", "stop_fraction": 2, "kl": kl, "foo": 1}
    problems = compose_objective("grpo", wrong, beta=0.1, advantage_per="token")[1]
    for word in ("epsilon_low", "'mean'", "stop_fraction", "'k4'", "unbiased", "'foo'"):
        assert any(word in problem for problem in problems), word


@pytest.mark.parametrize(("name", "fits"), [
    ("gspo", False), ("luspo", False), ("sequence_grpo", False), ("gmpo", False), ("gspo_token", True), ("grpo", True),
    ("target", True), ("vespo", True),
])  # fmt: skip
@pytest.mark.parametrize("per", ["token", "step"])
def test_one_ratio_a_completion_does_not_go_with_advantages_per_token(name, fits, per):
    assert compose_objective(name, {}, beta=0)[1] == []
    problems = compose_objective(name, {}, beta=0, advantage_per=per)[1]
    assert (problems == []) == fits
    assert fits or f"advantages per {per}" in problems[0]


def test_yaml_composition_builds_what_it_says():
    objective = build_objective("grpo", {"ratio": "sequence", "surrogate": CLIP, "kl": {"estimator": "k2"}}, beta=0.1)
    assert objective.ratio.piece.name == "sequence"
    assert objective.surrogate.keywords == {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
    assert (objective.kl.estimator.piece.name, objective.reduce.piece.name) == ("k2", "sequence_mean")
    assert build_objective("dapo", {"epsilon_high": "2.8e-1"}, beta=0).surrogate.keywords == {"epsilon_high": 0.28}
    assert build_objective("dr_grpo", {"length": 7}, beta=0).reduce.keywords == {"length": 7}
    nested = build_objective("ppo_clip", {"surrogate": {"epsilon_low": 0.1}}, beta=0)
    assert nested.surrogate.keywords == {"dual": 3.0, "epsilon_low": 0.1}


def test_unbiased_follows_the_hosts_field_unless_it_is_given():
    def unbiased(kwargs, *, field, name="grpo"):
        return build_objective(name, kwargs, beta=0.1, use_bias_correction_kl=field).kl.unbiased

    given = [unbiased({}, field=True), unbiased({}, field=False), unbiased({"kl": {"unbiased": False}}, field=True)]
    assert [*given, unbiased({}, field=True, name="gmpo")] == [True, False, False, False]
    contradiction = compose_objective("grpo", {"kl": {"unbiased": True}}, beta=0.1, use_bias_correction_kl=False)[1]
    assert "use_bias_correction_kl" in contradiction[0]


@pytest.mark.parametrize("name", [entry.name for entry in objectives.entries() if entry.way == "built-in"])
def test_every_preset_explains_itself(name):
    objective = build_objective(name, beta=0.0 if name in ("grpo_clip", "target") else 0.1)
    assert objective.formula().startswith(f"objective {name}")
    assert "{" not in objective.formula()


def test_a_users_whole_objective(make_batch):
    @register_objective("squared", reduce="sequence_sum", formula="scale·(lp − 1)²")
    def squared(batch, *, scale: float = 2.0):
        loss = scale * (batch.logps - 1) ** 2
        return loss, {"squared/mean": loss, "squared/most": Metric(loss, "max")}

    batch = make_batch(beta=0.3)
    loss, unreduced = build_objective("squared", {"scale": 3.0}, beta=0.0).loss(batch)
    expected = torch.where(batch.mask, 3 * (batch.logps - 1) ** 2, 0.0).sum() / 5
    assert loss.item() == pytest.approx(expected.item())
    assert [unreduced.metrics[f"squared/{name}"].how for name in ("mean", "most")] == ["mean", "max"]
    assert torch.is_tensor(unreduced.metrics["squared/most"].values)
    with_kl, _ = build_objective("squared", {"scale": 3.0, "kl": {"unbiased": False}}, beta=0.3).loss(batch)
    delta = torch.where(batch.mask, batch.ref_logps - batch.logps, 0.0)
    assert with_kl.item() == pytest.approx((expected + 0.3 * (delta.exp() - delta - 1).sum() / 5).item())
    assert not build_objective("squared", beta=0.0).zero_advantage_means_zero_gradient
    assert "scale·(lp − 1)²" in build_objective("squared", beta=0.0).formula()
    said = compose_objective("squared", {"scale": "big", "ratio": "token", "surrogate": "clip"}, beta=0)[1]
    assert any("'scale' is 'big'" in text for text in said)
    assert sum("one full function" in text for text in said) == 2


def test_users_pieces_compose_with_ours(make_batch):
    @register_objective("halved", kind="surrogate", zero_advantage_means_zero_gradient=True)
    def halved(batch, ratio, *, factor: float = 0.5):
        return factor * ratio * batch.advantages

    @register_objective("flat", kind="ratio")
    def flat(batch):
        return 1 + batch.log_ratio

    @register_objective("absolute", kind="kl")
    def absolute(logps, ref_logps):
        return (logps - ref_logps).abs()

    @register_objective("plain_sum", kind="reduce")
    def plain_sum(values, batch):
        return values.sum()

    batch = make_batch(beta=0.5)
    kwargs = {"surrogate": "halved", "ratio": "flat", "reduce": "plain_sum", "factor": 0.25}
    kwargs["kl"] = {"estimator": "absolute", "unbiased": False}
    loss, _ = build_objective("grpo", kwargs, beta=0.5).loss(batch)
    inner = -0.25 * (1 + batch.logps - batch.old_logps) * batch.advantages + 0.5 * (batch.logps - batch.ref_logps).abs()
    assert loss.item() == pytest.approx(torch.where(batch.mask, inner, 0.0).sum().item())
    kwargs.pop("kl")
    assert build_objective("grpo", kwargs, beta=0.0).zero_advantage_means_zero_gradient


def test_a_users_own_kl_is_left_to_it(make_batch):
    @register_objective("own", kl="own")
    def own(batch):
        return batch.beta * (batch.logps - batch.ref_logps) ** 2

    register_objective("without", kl="none")(lambda batch: batch.logps)
    batch = make_batch(beta=0.5)
    assert build_objective("own", beta=0.5).values(batch).kl is None
    assert compose_objective("own", {}, beta=0.5)[1] == []
    assert "Set it to 0" in compose_objective("without", {}, beta=0.5)[1][0]


def test_references_to_files_are_objectives_and_pieces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def loss(batch, *, scale: float = 1.0):\n    return -scale * batch.advantages * batch.logps\n"
        "def surrogate(batch, ratio):\n    return ratio\n"
    )
    assert build_objective("./mine.py:loss", {"scale": 2}, beta=0).surrogate.keywords == {"scale": 2}
    piece = build_objective("grpo", {"surrogate": "./mine.py:surrogate"}, beta=0).surrogate.piece
    assert piece.kind == "surrogate"
    assert "no_such" in str(compose_objective("./mine.py:no_such", {}, beta=0)[1][0])
    assert "sclae" in compose_objective("./mine.py:loss", {"sclae": 2}, beta=0)[1][0]


def test_functions_that_cannot_be_called_and_values_of_the_wrong_shape_are_refused(make_batch):
    with pytest.raises(TypeError, match=r"\(batch, ratio, \*, keywords\)"):
        register_objective("bad", kind="surrogate")(lambda batch: batch)
    with pytest.raises(TypeError, match="required"):
        register_objective("bad")(lambda batch, required: batch)
    with pytest.raises(ValueError, match="kind of objective piece 'surogate'"):
        register_objective("bad", kind="surogate")
    with pytest.raises(DuplicateNameError, match="built in"):
        register_objective("grpo")(lambda batch: batch)

    with pytest.raises(TypeError, match="takes the name first"):
        register_objective(lambda batch: batch.logps)
    register_objective("scalar")(lambda batch: batch.logps.sum())
    with pytest.raises(ValueError, match=r"objective 'scalar' returned values of shape \(\).*\(5, 6\)"):
        build_objective("scalar", beta=0.0).loss(make_batch())
    register_objective("word")(lambda batch: "loss")
    with pytest.raises(TypeError, match="returned str"):
        build_objective("word", beta=0.0).loss(make_batch())


def test_a_new_built_in_piece_is_found_by_name(monkeypatch, tmp_path):
    (tmp_path / "mine_piece.py").write_text(
        "from grpo_plus.objectives.pieces import Piece\n"
        "def soft(batch, ratio, *, softness: float = 1.0):\n    return softness * ratio * batch.advantages\n"
        "SOFT = Piece('surrogate', 'soft', soft, ratios=('sequence', 'none'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(piece_registries["surrogate"]._builtins, "soft", "mine_piece:SOFT")
    built = build_objective("grpo", {"surrogate": "soft", "softness": 2.0}, beta=0)
    assert built.surrogate.keywords == {"softness": 2}
    assert built.ratio.piece.name == "sequence"  # the first that it may stand on
