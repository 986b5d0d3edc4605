"""Log-probabilities within a support: against brute force in float64, in every layout, with gradients and entropies."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import trl.trainer.utils as trl_utils
from peft import LoraConfig
from torch.autograd import gradcheck

from grpo_plus.engine.forward import Head
from grpo_plus.engine.truncated_logps import ExcludedMass, TruncatedModel, _Scoring, _TruncatedLogps
from grpo_plus.sampling.allowed_tokens import AllowedTokens, AllowedTokensLog
from grpo_plus.trl.scoring import FusedHead
from tests.device import DEVICE

tensor = partial(torch.tensor, device=DEVICE)
SETTINGS = {"temperature": 0.7}
LAYOUTS = {"stock": {}, "trimmed": {}, "packed": {}, "auto": {"tokens_per_pass": 24}}


def kept(labels_NC, vocabulary, seed=0):
    """(N, C, V) bool: for each token some others, few or many or all, and the token itself."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.02, 0.4, 1.0])[torch.randint(0, 3, labels_NC.shape, generator=random)]
    allowed = torch.rand(*labels_NC.shape, vocabulary, generator=random) < shares[..., None]
    return allowed.to(labels_NC.device).scatter(-1, labels_NC[..., None], value=True)


def rows_of(allowed_NCV, lengths):
    """The supports as they are kept, noted in an order of their own."""
    noted = AllowedTokensLog()
    for place in reversed(range(allowed_NCV.shape[1])):
        rows = tensor([row for row, length in enumerate(lengths) if place < length], dtype=torch.long)
        scores = torch.where(allowed_NCV[rows, place], 0.0, -torch.inf)
        noted.note(rows, torch.full_like(rows, place), scores)
    return noted.rows(lengths)


@pytest.mark.parametrize("vocabulary", [1, 5, 32, 33, 1000])
def test_what_is_kept_is_what_was_noted(vocabulary, device):
    labels = torch.randint(0, vocabulary, (4, 9), generator=torch.Generator().manual_seed(1)).to(device)
    allowed = kept(labels, vocabulary)
    lengths = [9, 0, 3, 1]
    support = AllowedTokens(rows_of(allowed, lengths), 11, device)
    for row, length in enumerate(lengths):
        found = support.mask(row * 11 + torch.arange(11, device=device), vocabulary)
        assert torch.equal(found[:length], allowed[row, :length])
        assert found[length:].all()


def test_a_token_drawn_again_replaces_the_first_and_a_gap_makes_a_row_unknown(device):
    noted = AllowedTokensLog()
    for place, first in ((0, 1), (0, 2), (2, 3)):
        scores = torch.full((1, 8), -torch.inf, device=device)
        scores[0, first] = 0
        noted.note(tensor([0]), tensor([place]), scores)
    (whole,), (gap,) = noted.rows([1]), noted.rows([3])
    assert AllowedTokens([whole], 1, device).mask(tensor([0]), 8)[0].nonzero().tolist() == [[2]]
    assert len(gap) == 0


def test_a_token_takes_four_bytes_an_id_and_at_most_an_eighth_of_the_vocabulary(device):
    vocabulary, tokens = 32_000, 50
    for count, size in ((20, 4 * 20), (900, 4 * 900), (1001, 32_000 // 8), (31_000, 32_000 // 8), (32_000, 0)):
        scores = torch.full((tokens, vocabulary), -torch.inf, device=device)
        scores[:, :count] = 0
        noted = AllowedTokensLog()
        noted.note(tensor([0] * tokens), tensor(range(tokens)), scores)
        (row,) = noted.rows([tokens])
        assert row.nbytes == 8 + tokens * (4 + size)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_values_and_gradients_are_those_of_a_masked_softmax(softcap, device):
    random = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=random, dtype=torch.float64).to(device).requires_grad_()
        for shape in ((6, 5), (40, 5), (40,))
    )
    labels = torch.randint(0, 40, (2, 3), generator=random).to(device)
    allowed = kept(labels, 40)
    support = AllowedTokens(rows_of(allowed, [3, 3]), 3, device)

    def scores(hidden, weight, bias):
        how = _Scoring(
            FusedHead(weight, bias, 0.7, softcap, 1.3), support, torch.arange(6, device=device), labels.reshape(-1)
        )
        return _TruncatedLogps.apply(hidden, weight, bias, how)

    def explicit(hidden, weight, bias):
        logits = (hidden @ weight.T + bias) * 1.3
        logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / 0.7
        chances = logits.exp() * allowed.reshape(6, 40)
        within = chances / chances.sum(-1, keepdim=True)
        logs = torch.where(within > 0, within, 1.0).log()
        outside = 1 - chances.sum(-1) / logits.exp().sum(-1)
        return within.gather(1, labels.reshape(-1, 1))[:, 0].log(), -(within * logs).sum(-1), outside

    inputs = (hidden, weight, bias)
    for found, truth in zip(scores(*inputs), explicit(*inputs), strict=True):
        assert torch.allclose(found, truth, atol=1e-12)
    pulls = torch.randn(2, 6, generator=random, dtype=torch.float64).to(device)
    for function in (scores, explicit):
        found = function(*inputs)
        (found[0] @ pulls[0] + found[1] @ pulls[1]).backward()
        function.gradients = [one.grad.clone() for one in inputs]
        for one in inputs:
            one.grad = None
    for found, truth in zip(scores.gradients, explicit.gradients, strict=True):
        assert torch.allclose(found, truth, atol=1e-12)
    assert gradcheck(lambda *given: scores(*given)[:2], inputs)


def test_logits_outside_of_supports_are_out_of_sight_and_their_probability_is_counted(device):
    """As TRL 1.14 has it, whose model gives logits."""
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0)).to(device)
    allowed = kept(torch.zeros(2, 3, dtype=torch.long, device=device), 40)
    support, tally = AllowedTokens(rows_of(allowed, [3, 3]), 3, device), ExcludedMass()
    places, head = torch.arange(6, device=device).view(2, 3), Head(fused=False, temperature=0.7)
    model = TruncatedModel(
        lambda input_ids: SimpleNamespace(logits=logits), support, places, head, tally, shifted=False
    )
    found = model(input_ids=torch.zeros(2, 3, device=device)).logits
    assert torch.equal(torch.where(allowed, logits, 0.0), torch.where(found > -1e29, found, 0.0))
    assert tally.mean == pytest.approx(float(((logits / 0.7).softmax(-1) * ~allowed).sum(-1).mean()))


def explicit_logps(model, ids, mask, allowed, temperature):
    """Log-probabilities and entropies of the last columns, from the model's logits in float64."""
    width = allowed.shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].double() / temperature
    logps = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    entropies = -torch.where(allowed, logps.exp() * logps.masked_fill(~allowed, 0.0), 0.0).sum(-1)
    present = mask[:, -width:].bool()
    chosen = logps.gather(-1, ids[:, -width:, None])[..., 0]
    return torch.where(present, chosen, 0.0), torch.where(present, entropies, 0.0)


class Scoring:
    """A batch's rows as a trainer scores them, and supports of them."""

    def __init__(self, trainer, batch):
        self.trainer, self.batch = trainer, batch
        self.ids, self.mask = (
            torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], 1) for kind in ("ids", "mask")
        )
        self.allowed = kept(batch["completion_ids"], trainer.model.config.vocab_size)
        self.rows = rows_of(self.allowed, batch["completion_mask"].sum(1).tolist())

    def __call__(self, **options):
        width = self.batch["completion_ids"].shape[1]
        score = self.trainer._get_per_token_logps_and_entropies
        return score(self.trainer.model, self.ids, self.mask, width, batch_size=3, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "adapters", [pytest.param(False, id="all weights"), pytest.param(True, id="LoRA", marks=pytest.mark.slow)]
)
def test_every_layout_scores_within_the_support(bench, layout, adapters):
    peft = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False) if adapters else None
    trainer = bench.trainer(layout, peft_config=peft, **SETTINGS, **LAYOUTS[layout])
    batch = bench.batch(completions=(1, 12))
    score = Scoring(trainer, batch)
    trainer.model.eval()
    weights = [p for p in trainer.model.parameters() if p.requires_grad]
    pull = torch.randn(batch["completion_ids"].shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    pull *= batch["completion_mask"]

    def gradient(logps):
        trainer.model.zero_grad()
        (logps * pull).sum().backward()
        return torch.cat([one.grad.reshape(-1) for one in weights]).double()

    plain = score()[0]
    found, entropies, _ = score(compute_entropy=True, support=score.rows)
    truth, uncertain = explicit_logps(trainer.model, score.ids, score.mask, score.allowed, 0.7)
    present = batch["completion_mask"].bool()
    assert torch.allclose(found[present].double(), truth[present], atol=1e-5)
    assert torch.allclose(entropies[present].double(), uncertain[present], atol=1e-5)
    assert (plain - found)[present].abs().max() > 1
    ours, theirs = gradient(found), gradient(truth)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    nothing = score(support=[torch.zeros(0, dtype=torch.int32)] * len(score.ids))[0]
    assert torch.equal(nothing, plain)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_that_is_given_scored_positions_only_says_the_same(bench, layout, monkeypatch):
    """As TRL 1.16 does it on an accelerator with Triton."""
    if not hasattr(trl_utils, "_use_triton"):
        pytest.skip("this release of TRL has no such head")
    trainer = bench.trainer(layout, **LAYOUTS[layout])
    batch = bench.batch(completions=(0, 12))
    score = Scoring(trainer, batch)
    score()  # the engine's trial, without a support

    def scores():
        logps, entropies, _ = score(compute_entropy=True, support=score.rows)
        trainer.model.zero_grad()
        (logps * batch["advantages"][:, None]).sum().backward()
        return [logps.detach(), entropies.detach(), *(p.grad.clone() for p in trainer.model.parameters())]

    whole = scores()
    monkeypatch.setattr(trl_utils, "_use_triton", lambda _: True)
    for found, truth in zip(scores(), whole, strict=True):
        assert torch.allclose(found, truth, atol=1e-6)
