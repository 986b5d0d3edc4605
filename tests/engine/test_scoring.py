"""The engine around a method of TRL's that gives numbers which are known, and the facts that it goes by."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from grpo_plus.engine import engine as engine_module
from grpo_plus.engine.architecture import Treatments
from grpo_plus.engine.engine import Engine
from grpo_plus.engine.facts import REPLICATED, SHARDED, Facts
from grpo_plus.engine.forward import Head, _mask, score_labels
from grpo_plus.testing import make_tiny_model

WEIGHT = torch.nn.Parameter(torch.ones(()))


class Stock:
    """Stands for TRL's method: a token's log-probability is minus its id, its entropy a tenth of it."""

    def __init__(self):
        self.calls = []

    def __call__(self, model, ids, mask, keep, batch_size=None, compute_entropy=False):  # noqa: PLR0917
        self.calls.append((ids.tolist(), keep, batch_size))
        tail = ids[:, -keep:].float()
        return -tail * WEIGHT, tail / 10 if compute_entropy else None, None


@pytest.fixture(scope="module")
def tiny():
    return make_tiny_model()[0].eval()


@pytest.fixture
def engine(tiny):
    def engine(layout="trimmed", tokens=None, **facts):
        made = Engine(layout, tokens, facts=lambda: Facts(**facts), autocast=nullcontext, unwrap=lambda _: tiny)
        made.stock = Stock()
        known = made._models.of(None)
        known.tried, known.treatments = True, replace(known.treatments, trimming=True)
        return made

    return engine


# Two groups of two rows: prompts of 2 and 1 tokens, completions of 3, 1, 2 and 2 in 4 columns.
IDS = torch.tensor([[5, 6, 1, 2, 3, 0], [5, 6, 4, 0, 0, 0], [0, 7, 5, 6, 0, 0], [0, 7, 8, 9, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]])


def batch_of(advantages=(1.0, 0.0, -1.0, 0.0), **more):
    parts = {"prompt_ids": IDS[:, :2], "prompt_mask": MASK[:, :2], "completion_ids": IDS[:, 2:]}
    return parts | {"completion_mask": MASK[:, 2:], "advantages": torch.tensor(advantages), **more}


def scored(engine, batch, **options):
    with engine.loss_on(batch) if batch is not None else nullcontext():
        return engine.score(engine.stock, None, IDS, MASK, 4, **options)


def test_only_the_batch_of_a_loss_has_rows_without_work(engine):
    made = engine()
    with made.loss_on(batch_of()):
        with torch.no_grad():
            logps = made.score(made.stock, None, IDS, MASK, 4)[0]
        assert logps[1].tolist() == [-4, 0, 0, 0]
        other = IDS.clone()
        other[0, 2] = 9
        assert made.score(made.stock, None, other, MASK, 4)[0][1, 0] == -4
        assert made.score(made.stock, None, IDS, MASK, 3)[0][3].tolist() == [-9, 0, 0]
        assert made.metrics == {}
        assert made.score(made.stock, None, IDS, MASK, 4)[0][1, 0] == 0
    assert made.metrics  # of the last loss
    assert made.score(made.stock, None, IDS, MASK, 4)[0][1, 0] == -4
    with made.loss_on({}):
        assert made.metrics == {}
    nothing = MASK.clone()
    nothing[:, 2:] = 0
    made.stock.calls.clear()
    assert not made.score(made.stock, None, IDS, nothing, 4)[0].any()  # no token, and no loss that waits for a pass
    assert made.stock.calls == []


def test_ranks_that_must_agree_make_the_passes_that_trl_would(engine):
    made = engine(kind=SHARDED)
    logps, entropies, _ = scored(made, batch_of((1.0, 0.0, 0.0, 0.0)), batch_size=2, compute_entropy=True)
    assert [call[0] for call in made.stock.calls] == [[[5, 6, 1, 2, 3]], [[6, 1]]]
    assert logps.tolist() == [[-1, -2, -3, 0], *[[0.0] * 4] * 3]
    assert made.metrics["engine/tokens_saved"] == 1 - 6 / 24
    assert entropies[1].tolist() == pytest.approx([0.2] * 4)
    assert made.last_entropy == pytest.approx(0.2)
    with torch.no_grad():  # of rows without a loss, too
        made.stock.calls.clear()
        made.score(made.stock, None, IDS, MASK, 4, batch_size=3)
    assert [len(call[0]) for call in made.stock.calls] == [3, 1]


def test_a_row_above_the_bound_is_said_and_one_at_it_is_not(engine, caplog):
    for bound, said in ((5, False), (4, True)):
        caplog.clear()
        made = engine("trimmed", bound)
        scored(made, None)
        assert ("a row of 5 tokens runs in one pass although" in caplog.text) is said


def test_an_engine_that_is_asked_for_by_name_is_refused_at_once(engine):
    for layout, tokens, facts, support, reason in (
        ("packed", None, {}, {"packing": False, "note": "no masks"}, "engine='packed' is not possible here: no masks."),
        ("packed", None, {}, {"refusal": "odd"}, "engine='packed' is not possible here: odd."),
        ("trimmed", None, {}, {"refusal": "odd"}, "engine='trimmed' is not possible here: odd."),
        ("auto", 9, {}, {"refusal": "odd"}, "tokens_per_pass is not possible here: odd."),
        ("packed", None, {"head": None}, {"packing": True}, "use_liger_kernel"),
        ("packed", None, {"kind": None}, {"packing": True}, "distributed run"),
        ("auto", 9, {"kind": REPLICATED}, {"packing": True}, "works on a single device only"),
        ("auto", None, {}, {"refusal": "odd"}, None),
        ("stock", None, {"kind": None}, {"refusal": "odd"}, None),
        ("trimmed", None, {"head": None}, {"packing": False, "note": "no masks"}, None),
        ("packed", None, {}, {"packing": True, "note": "no sharing"}, None),
    ):
        made = engine(layout, tokens, **facts)
        made._models.of(None).treatments = Treatments(**support)
        if reason is None:
            made.check(None)
        else:
            with pytest.raises(engine_module.EngineError) as caught:
                made.check(None)
            assert reason in str(caught.value)
    late = engine(kind=SHARDED)
    late.tokens_per_pass = 9
    with pytest.raises(engine_module.EngineError, match="single device only"):
        scored(late, None)


REASONS = {
    "refusal": [
        ({"kind": None}, "kind of distributed run"),
        ({"router_loss": True}, "load-balancing"),
        ({"noise": True}, "neftune_noise_alpha"),
        ({"adapter": "of a kind"}, "an adapter of a kind"),
        ({}, None),
    ],
    "fixed_rows": [
        ({"row_loss": False}, "bnpo"),
        ({"entropy_bonus": True}, "the entropy bonus"),
        ({"entropy_quantile": True}, "top_entropy_quantile"),
        ({"kl": True, "zero_is_idle": False}, None),
    ],
    "zero_matters": [
        ({"kl": True}, "the KL term"),
        ({"zero_is_idle": False}, "rows of zero advantage a gradient"),
        ({"entropy_bonus": True}, "the entropy bonus"),
        ({"entropy_quantile": True}, "top_entropy_quantile"),
        ({"row_loss": False}, None),
    ],
}


@pytest.mark.parametrize("question", REASONS)
def test_facts_have_their_reasons(question):
    for facts, reason in REASONS[question]:
        found = getattr(Facts(**facts), question)()
        assert found is None if reason is None else reason in found


def logits_model(logits):
    return lambda **_: SimpleNamespace(logits=logits)


@pytest.mark.parametrize("bonus", [False, True])
def test_logits_become_log_probabilities_and_entropies_of_what_is_scored(bonus):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([[1, -100, 0], [4, 4, -100]])
    head = Head(fused=False, temperature=0.5, **({"entropy_gradient": True} if bonus else {}))
    logps, entropies = score_labels(logits_model(logits), {}, labels, nullcontext, head)
    for row, place in product(range(2), range(3)):
        truth = torch.softmax(logits[row, place].double() / 0.5, -1)
        label = int(labels[row, place])
        expected = (math.log(float(truth[label])), float(-(truth * truth.log()).sum())) if label >= 0 else (0.0, 0.0)
        assert (float(logps[row, place]), float(entropies[row, place])) == pytest.approx(expected, abs=1e-5)
    assert logps.requires_grad
    assert entropies.requires_grad is bonus
    assert Head().entropy_gradient is False
    assert (Head().fused, Head().temperature) == (True, 1.0)


def test_a_mask_has_the_precision_of_the_weights_that_compute():
    quantised = SimpleNamespace(parameters=lambda: iter([torch.zeros(1, dtype=torch.uint8), torch.zeros(1).half()]))
    until = torch.tensor([[2, 2]])
    packed = SimpleNamespace(branches=None, branching=True, until=until)
    mask = _mask(quantised, packed, "eager")
    assert mask.dtype == torch.float16
    assert mask[0, 0].tolist() == [[0.0, torch.finfo(torch.float16).min], [0.0, 0.0]]
    assert _mask(quantised, packed, "sdpa").tolist() == [[[[True, False], [True, True]]]]
    assert _mask(SimpleNamespace(parameters=list), packed, "eager").dtype == torch.float32
    assert _mask(quantised, SimpleNamespace(branches=None, branching=False), "eager") is None
