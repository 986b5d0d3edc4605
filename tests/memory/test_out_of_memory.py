"""Out of memory in one process: the run goes on as if there had been enough, or ends with what to change.

Runs of a full model, of adapters, and of adapters on 4 bits, on a card that takes only so many tokens a pass.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.memory.errors import StepTooLargeError, is_out_of_memory
from grpo_plus.testing import make_tiny_model
from tests.device import FLOAT32
from tests.qlora.runs import Gradients, assert_same_gradients, lora, nf4, spread

KINDS = ("full", "lora", "4bit")
PROMPTS = ("ab", "cdc", "ef", "gghg")
SETTINGS = {
    "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_generations": 4, "max_steps": 2,
    "max_completion_length": 12, "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
    # Plain gradient descent: Adam would turn the rounding of a gradient near 0 into a whole step of the learning rate.
    "optim": "sgd", "logging_steps": 1, "report_to": "none", **FLOAT32,
    "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True,
}  # fmt: skip
CHANGES = ("time", "rollout", "scoring", "update", "runtime", "per_second")
CHANGES += ("memory/retries", "tokens_saved", "layout", "rows_skipped")
"""Endings of the names of figures that another division into passes, or another second, changes."""


def letters(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


class Card:
    """Raises what CUDA raises where a pass of a kind (drawing, scoring, loss, backward) has more than ``most`` tokens.

    So many ``times``, after ``start`` passes; of this ``model``, in this mode (``training``); None does not care.
    """

    def __init__(self, run, where, most, *, times=10**6, start=0, model=None, training=None):
        self.failures, self.drawn, self.now = 0, 0, "scoring"
        self.where, self.most, self.left, self.start = where, most, times, start
        self.run, self.training = run, training
        self._mark("_generate_single_turn", "drawing")
        self._mark("_compute_loss", "loss")
        self._mark("try_out", "trial", run.engine._models)
        model = run.model if model is None else model
        layer = next(module for name, module in model.named_modules() if name.endswith("self_attn.q_proj"))
        layer.register_forward_hook(self.forward)

    def _mark(self, name, kind, owner=None):
        owner = self.run if owner is None else owner
        inner = getattr(owner, name)

        def marked(*arguments, **keywords):
            self.drawn += kind == "drawing"
            before, self.now = self.now, kind
            try:
                return inner(*arguments, **keywords)
            finally:
                self.now = before

        setattr(owner, name, marked)

    def forward(self, module, inputs, output):
        tokens = output.shape[0] * output.shape[1]
        if self.where == "backward":
            if output.requires_grad:
                output.register_hook(lambda gradient: self.check(tokens))
        elif self.now == self.where and self.training in (None, self.run.model.training):
            self.check(tokens)

    def check(self, tokens):
        if self.start > 0:
            self.start -= 1
        elif tokens > self.most and self.left:
            self.left -= 1
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 24 GiB.\nAdvice.")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small")
    make_tiny_model(path, architecture="llama", hidden=64, layers=1, vocab="abcdefgh")
    return str(path)


@pytest.fixture
def make(small, tmp_path):
    rows = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS] * 8)

    def make(kind="full", config=GRPOPlusConfig, reward=letters, dropout=0.0, **settings):
        more, args = {}, config(output_dir=str(tmp_path / "out"), **{**SETTINGS, **settings})
        if kind != "full":
            more["peft_config"] = lora(r=8, lora_alpha=16, lora_dropout=dropout)
        if kind == "4bit":
            more["quantization_config"] = nf4(double=False)
        run = GRPOPlusTrainer(small, reward, args, rows, rows.select(range(8)), **more)
        run.seen = Gradients()
        run.add_callback(run.seen)
        spread(run.model)
        return run

    return make


@pytest.fixture
def compare(make):
    """Trains twice, the second time with a card that is too small: nothing of the run changes."""

    def compare(where, kind="full", most=20, *, reference=False, prepare=lambda run: None, **settings):
        card = {name: settings.pop(name) for name in ("start", "times") if name in settings}
        smooth, rough = make(kind, **settings), make(kind, **settings)
        for run in (smooth, rough):
            prepare(run)
        drawn = Card(smooth, where, 10**6)
        card = Card(rough, where, most, model=rough.ref_model if reference else None, **card)
        for run in (smooth, rough):
            go(run)
        assert card.failures > 0
        assert rough.pipeline.retry.count == card.failures
        assert card.drawn == drawn.drawn
        assert_same_run(smooth, rough)
        return rough

    return compare


def go(run):
    """Train from the random state that every run starts from."""
    torch.manual_seed(run.args.seed)
    run.train()


def trained(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters() if p.requires_grad])


def figures(run):
    """All that was logged, without what another division into passes may change."""
    history = run.state.log_history
    return [{name: value for name, value in entry.items() if not name.endswith(CHANGES)} for entry in history]


def retries(run):
    return sum(value for entry in run.state.log_history for name, value in entry.items() if "memory/retries" in name)


def assert_same_run(smooth, rough):
    """Weights, gradients, figures and completions of a run that met failures are those of one that did not."""
    assert_same_gradients(smooth.seen.steps, rough.seen.steps)
    weights = trained(smooth)
    assert (trained(rough) - weights).norm() / weights.norm() < 1e-6
    assert list(rough._logs["completion"]) == list(smooth._logs["completion"])
    for one, other in zip(figures(smooth), figures(rough), strict=True):
        assert set(one) == set(other)
        with contextlib.suppress(KeyError):
            one.pop("entropy"), other.pop("entropy")  # covers the tokens that ran, which idle rows may or may not
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


SEVERAL = {"num_iterations": 2, "max_steps": 4}
PASSES = {
    "old log-probabilities, asked for by TRL": ("scoring", SEVERAL),
    "old log-probabilities, asked for by an objective": ("scoring", {"objective": "target", **SEVERAL}),
    "reference log-probabilities": ("scoring", {"beta": 0.1}),
    "the update's forward pass": ("loss", {}),
    "the update's forward pass, with an objective": ("loss", {"objective": "dapo", "advantage": "rloo"}),
    "the update's backward pass": ("backward", {}),
    "the update's backward pass, accumulated": ("backward", {"gradient_accumulation_steps": 4}),
    "the update with an entropy bonus that adapts": (
        "backward",
        {"gradient_accumulation_steps": 2, "entropy_coef": 0.1, "use_adaptive_entropy": True},
    ),
}


@pytest.mark.sample(0, 8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_that_does_not_fit_changes_nothing_of_the_run(compare, name, kind):
    where, settings = PASSES[name]
    rough = compare(where, kind, reference="reference" in name and kind == "full", **settings)
    assert retries(rough) == rough.pipeline.retry.count


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize(("kind", "failing"), [("full", 0), ("full", 1), ("full", 3), ("lora", 2)])
def test_a_failure_in_any_micro_batch_leaves_the_gradients_of_the_others_whole(compare, failing, kind):
    settings = {"gradient_accumulation_steps": 4, "max_steps": 1, "engine": "trimmed"}
    compare("backward", kind, start=failing, **settings)


@pytest.mark.slow
def test_a_micro_batch_that_ran_before_may_itself_fail_when_it_runs_again(make, caplog):
    settings = {"gradient_accumulation_steps": 3, "max_steps": 1}
    smooth, rough = make(**settings), make(**settings)
    go(smooth)
    # The third fails, then the first when it runs again, then the second.
    failing = iter([False, False, True, True, False, True])
    card = Card(rough, "backward", -1)
    inner = card.check
    card.check = lambda tokens: inner(tokens) if next(failing, False) else None
    go(rough)
    assert card.failures == 3
    assert_same_run(smooth, rough)
    assert "Out of memory in the update" in caplog.text
    assert rough.engine.tokens_per_pass is not None


@pytest.mark.slow
def test_gradients_that_were_there_before_the_window_come_back(compare):
    def ones(run):
        for parameter in run.model.parameters():
            parameter.grad = torch.ones_like(parameter)

    compare("backward", prepare=ones, max_steps=1)


@pytest.mark.slow
def test_a_second_training_does_not_run_micro_batches_of_the_first_again(compare):
    compare("backward", prepare=go, max_steps=1)


@pytest.mark.slow
def test_nothing_is_copied_while_memory_suffices(make, monkeypatch):
    run = make(gradient_accumulation_steps=2)
    copied = []
    inner = torch.Tensor.to

    def to(tensor, *arguments, **keywords):
        if keywords.get("copy") and arguments[:1] == ("cpu",):
            copied.append(tensor.shape)
        return inner(tensor, *arguments, **keywords)

    monkeypatch.setattr(torch.Tensor, "to", to)
    go(run)
    assert (copied, run.pipeline.retry.count) == ([], 0)
    assert not any("memory/retries" in entry for entry in run.state.log_history)


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_goes_on_with_fewer_rows(make, kind):
    settings = {"beta": 0.1, "max_steps": 1}
    smooth, rough = make(kind, **settings), make(kind, **settings)
    cards = [Card(smooth, "loss", 10**6), Card(rough, "loss", 20, training=False)]
    found = []
    for run in (smooth, rough):
        torch.manual_seed(3)
        found.append(run.evaluate())
    assert cards[1].failures > 0
    assert found[1].pop("eval_memory/retries") == cards[1].failures
    assert cards[0].drawn == cards[1].drawn
    for name in ("eval_loss", "eval_reward", "eval_entropy", "eval_kl"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-5, abs=1e-7), name
    for run in (smooth, rough):
        go(run)
    assert_same_run(smooth, rough)


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("kind", KINDS)
def test_drawing_goes_on_with_fewer_rows(make, kind, caplog):
    run = make(kind, rollout="auto")
    card = Card(run, "drawing", 4)
    go(run)
    assert card.failures > 0
    assert card.drawn == 2
    assert retries(run) == run.pipeline.retry.count == card.failures
    assert len(run._logs["completion"]) == 8
    assert "From now on at most" in caplog.text
    assert run.state.global_step == 2


@pytest.mark.slow
def test_fewer_rows_are_kept_for_the_passes_that_follow(make, caplog):
    run = make(beta=0.1, max_steps=4)
    card = Card(run, "scoring", 20, model=run.ref_model)
    go(run)
    assert (
        card.failures == run.pipeline.retry.count == caplog.text.count("Out of memory in a pass without gradient") < 4
    )
    assert retries(run) == card.failures


@pytest.mark.slow
def test_the_count_is_a_sum_over_all_that_is_logged_together(make):
    run = make(gradient_accumulation_steps=4, max_steps=2, logging_steps=2, beta=0.1)
    cards = [Card(run, "scoring", 20, model=run.ref_model), Card(run, "backward", 20)]
    go(run)
    logged = [entry["memory/retries"] for entry in run.state.log_history if "memory/retries" in entry]
    assert logged == [sum(card.failures for card in cards)]
    assert logged[0] >= 2


@pytest.mark.slow
def test_with_dropout_the_rest_of_the_run_starts_from_the_same_random_state(make, caplog):
    """Smaller parts draw other masks, as the message says; they do not draw other completions before the weights move."""
    settings = {"dropout": 0.5, "beta": 0.1, "max_steps": 1, "rollout": "auto"}
    smooth, rough = make("lora", **settings), make("lora", **settings)
    Card(rough, "scoring", 20)
    go(smooth)
    go(rough)
    assert rough.pipeline.retry.count > 0
    assert list(rough._logs["completion"]) == list(smooth._logs["completion"])
    assert "dropout, where there is any, draws other masks" in caplog.text


@pytest.mark.slow
def test_a_retry_in_one_part_draws_the_same_dropout(make):
    """The attempt that failed has used up random numbers; the next one starts where it did."""
    settings = {"dropout": 0.5, "max_steps": 1, "engine": {"layout": "trimmed", "tokens_per_pass": 500}}
    smooth, rough = make("lora", **settings), make("lora", **settings)
    go(smooth)
    card = Card(rough, "backward", 0, times=1)
    shrink = rough.engine
    rough.pipeline.retry._shrink = lambda tokens: None  # the parts stay as they were
    go(rough)
    assert (card.failures, shrink.tokens_per_pass) == (1, 500)
    assert_same_run(smooth, rough)


def oom(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nIf reserved memory is large, try …")


SHARED = ("sharded", None)
ENDINGS = {
    "the sampling of the host": ({}, lambda run: Card(run, "drawing", 4), r"fewer at once, would favour short completions: set rollout: {rows: N}"),
    "a model that draws by itself": (
        {"rollout": "auto"}, lambda run: (setattr(run.model, "generate", run.model.generate), Card(run, "drawing", 4)),
        "Lower max_completion_length or per_device_train_batch_size",
    ),
    "a reward model": ({"reward": lambda *_, **__: oom()}, None, "while completions were scored: .*lower steps_per_generation"),
    "between the passes": ({}, lambda run: run.add_callback(type("Full", (TrainerCallback,), {"on_step_end": lambda *_, **__: oom()})()), "out of memory between the passes"),
    "an update without the engine": (
        {"engine": "stock"}, lambda run: Card(run, "backward", 20),
        "cannot be run in smaller parts: only the engine splits a pass, and engine is 'stock'",
    ),
    "an update under TRL's own config": (
        {"config": GRPOConfig}, lambda run: Card(run, "backward", 20), "only the engine splits a pass, and engine is 'stock'",
    ),
    "an update that the engine leaves to the host": (
        {"neftune_noise_alpha": 5.0}, lambda run: Card(run, "loss", 20, training=True),
        "cannot be run in smaller parts: the noise on embeddings",
    ),
    **{
        f"passes over parameters that ranks share: {kind}": (
            {"beta": 0.1}, lambda run, kind=kind: (shared(run, kind), Card(run, "scoring", 20, model=run.ref_model)),
            "in a pass without gradient: .*every rank must make the same number of passes over sharded",
        )
        for kind in SHARED
    },
    "an optimizer that moves weights within the backward pass": (
        {}, lambda run: (moves_within(run), Card(run, "backward", 20)), "changes weights during the backward pass",
    ),
}  # fmt: skip


def shared(run, kind):
    facts = run.engine._facts()
    run.engine._facts = lambda: replace(facts, kind=kind)


def moves_within(run):
    weight = next(parameter for parameter in run.model.parameters() if parameter.requires_grad)
    weight.register_post_accumulate_grad_hook(lambda parameter: None)


class TestEndings:
    """Where nothing can be made smaller, one message says where, why and what to change."""

    def ends(self, run, match):
        with pytest.raises(StepTooLargeError, match=match) as caught:
            go(run)
        assert "If reserved memory" not in str(caught.value)
        assert isinstance(caught.value, torch.OutOfMemoryError)  # whoever catches PyTorch's own catches it
        return str(caught.value)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("name", ENDINGS)
    def test_what_cannot_be_made_smaller(self, make, name):
        settings, prepare, match = ENDINGS[name]
        run = make(**settings)
        if prepare is not None:
            prepare(run)
        self.ends(run, match)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_optimizers_step(self, make, kind):
        run = make(kind, optim="adamw_torch")
        run.create_optimizer().register_step_pre_hook(oom)
        self.ends(run, r"in the optimizer's step: .*paged_adamw_8bit.*use_peft: true")

    @pytest.mark.sample(0, 1)
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_single_row(self, make, kind):
        way_out = f"Lower max_completion_length.*{'use_peft: true' if kind == 'full' else 'grpo-plus check'}"
        for where, match in (
            ("scoring", "in a pass without gradient, with one completion at a time"),
            ("loss", "in the update, with one completion of at most"),
            ("backward", "in the update, with one completion of at most"),
            ("drawing", "while completions were sampled: .* Not even one completion at a time fits"),
        ):
            run = make(kind, rollout="auto", num_iterations=2)
            Card(run, where, 0)
            self.ends(run, f"{match}.*{way_out}")

    @pytest.mark.slow
    def test_passes_without_gradient_need_no_engine(self, compare):
        compare("scoring", reference=True, engine="stock", beta=0.1)

    @pytest.mark.slow
    def test_an_evaluation_of_its_own(self, make):
        run = make()
        Card(run, "loss", 0, training=False)
        with pytest.raises(StepTooLargeError, match="in a pass without gradient, with one completion at a time"):
            run.evaluate()

    @pytest.mark.slow
    def test_other_errors_stay_what_they_are(self, make):
        def broken(*_, **__):
            raise ZeroDivisionError

        run = make()
        run.model.lm_head.register_forward_hook(broken)
        for each in (make(reward=broken), run):
            with pytest.raises(ZeroDivisionError):
                go(each)
        assert run.pipeline.retry.count == 0


def test_what_counts_as_out_of_memory():
    for error, expected in (
        (torch.OutOfMemoryError("HIP out of memory."), True), (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True), (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (StepTooLargeError("out of memory in the update"), False), (MemoryError("out of memory"), False),
    ):  # fmt: skip
        assert is_out_of_memory(error) is expected
