"""A bench for the engine: made-up generation batches through TRL's trainer and ours, and the gradients they give."""

import math
import tempfile

import pytest

from tests.device import DEVICE, FLOAT32

SETTINGS = {**FLOAT32, "report_to": "none", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
SETTINGS |= {"num_generations": 4, "max_completion_length": 16, "save_strategy": "no"}
SETTINGS |= {"gradient_checkpointing": False, "disable_tqdm": True}


class Bench:
    """Everything the tests of this folder share."""

    def __init__(self, folder):
        self.folder = folder
        self._models = {}

    def model(self, architecture="qwen2", **config):
        """A folder with a tiny model, made once."""
        from grpo_plus.testing import make_tiny_model

        key = (architecture, repr(sorted(config.items())))
        if key not in self._models:
            path = self.folder / f"model{len(self._models)}"
            make_tiny_model(path, architecture=architecture, **config)
            self._models[key] = str(path)
        return self._models[key]

    def batch(self, *, rows=4, groups=4, prompts=(3, 9), completions=(0, 12), seed=0, dead=(1, 3), width=None):
        """A generation batch as TRL makes it: groups 0 and 1 have the same prompt, some groups no advantage."""
        import torch

        random = torch.Generator().manual_seed(seed)

        def draw(low, high):
            return int(torch.randint(low, high + 1, (1,), generator=random))

        texts = [torch.randint(5, 90, (draw(*prompts),), generator=random) for _ in range(groups)]
        if groups > 2:
            texts[1] = texts[0].clone()
        count = rows * groups
        lengths = [draw(*completions) for _ in range(count)]
        left, right = max(map(len, texts)), width or max(*lengths, 1)
        batch = {
            "prompt_ids": torch.zeros(count, left, dtype=torch.long),
            "prompt_mask": torch.zeros(count, left, dtype=torch.long),
            "completion_ids": torch.zeros(count, right, dtype=torch.long),
            "completion_mask": torch.zeros(count, right, dtype=torch.long),
        }
        for row, length in enumerate(lengths):
            text = texts[row // rows]
            batch["prompt_ids"][row, left - len(text) :] = text
            batch["prompt_mask"][row, left - len(text) :] = 1
            batch["completion_ids"][row, :length] = torch.randint(5, 90, (length,), generator=random)
            batch["completion_mask"][row, :length] = 1
        batch["advantages"] = torch.randn(count, generator=random)
        for group in dead:
            batch["advantages"][group * rows : (group + 1) * rows] = 0
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
        return {name: column.to(DEVICE) for name, column in batch.items()}

    def trainer(self, engine=None, *, tokens_per_pass=None, model=None, peft_config=None, **settings):
        """TRL's trainer, or ours with the given ``engine``."""
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

        torch.manual_seed(0)  # adapters of both begin alike
        ours = engine is not None
        if ours:
            settings["engine"] = {"layout": engine, "tokens_per_pass": tokens_per_pass}
        config = (GRPOPlusConfig if ours else GRPOConfig)(
            output_dir=tempfile.mkdtemp(dir=self.folder), **{**SETTINGS, **settings}
        )
        return (GRPOPlusTrainer if ours else GRPOTrainer)(
            model=self.model() if model is None else model,
            reward_funcs=[zero],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["ab"] * 64}),
            peft_config=peft_config,
        )

    def feed(self, trainer, batch, *, old=None, reference=None):
        """Give a trainer a generation batch in place of sampling one; None where it has no such log-probabilities.

        ``old`` and ``reference`` are noise to add to the model's own log-probabilities.
        """
        import torch

        batch = dict(batch)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].shape[1]
        for name, noise in (("old_per_token_logps", old), ("ref_per_token_logps", reference)):
            if noise is not None:
                with torch.no_grad():
                    scored = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width, batch_size=4)
                drawn = torch.randn(scored[0].shape, generator=torch.Generator().manual_seed(7))
                batch[name] = scored[0] + noise * drawn.to(DEVICE)
        pipeline = getattr(trainer, "pipeline", None)

        def generate(_):
            if pipeline is None:
                return dict(batch)
            from grpo_plus.training.hooks import Completions, ScoredBatch

            none = ScoredBatch(Completions([], [], [], []), torch.zeros(0, 0), output=batch)
            return dict(pipeline.objective.prepare(pipeline.objective.add_old_logps(none)).output)

        trainer._generate_and_score_completions = generate

    def gradient(self, trainer, batch, **logps):
        """The gradient that one generation batch adds up to, the loss, and what the engine reported."""
        import torch

        trainer.model.train()
        trainer.model.zero_grad(set_to_none=True)
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer._step, trainer._buffered_inputs = 0, None
        self.feed(trainer, batch, **logps)
        torch.manual_seed(0)
        total, reports = 0.0, []
        for _ in range(trainer.args.steps_per_generation):
            loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs([{}]))
            trainer.accelerator.backward(loss)
            total += float(loss.detach())
            trainer._step += 1
            if hasattr(trainer, "engine"):
                reports.append(dict(trainer.engine.metrics))
        named = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
        return named, total, reports

    @staticmethod
    def distance(found, truth):
        """Size of the difference of two gradients over the size of the second; all parameters together."""
        assert set(found) == set(truth)
        difference = sum(float((found[n].double() - truth[n].double()).square().sum()) for n in truth)
        size = sum(float(truth[n].double().square().sum()) for n in truth)
        assert math.isfinite(difference)
        assert size > 0
        return math.sqrt(difference / size)

    def check(
        self,
        batch,
        *,
        engine="packed",
        tokens_per_pass=None,
        stock=None,
        model=None,
        old=None,
        reference=None,
        limit=1e-5,
        **settings,
    ):
        """Gradient and loss under ``engine`` are TRL's; gives the engine's reports."""
        host = self.trainer(stock, model=model, **settings)
        truth, loss, _ = self.gradient(host, batch, old=old, reference=reference)
        trainer = self.trainer(engine, tokens_per_pass=tokens_per_pass, model=model, **settings)
        found, our_loss, reports = self.gradient(trainer, batch, old=old, reference=reference)
        assert self.distance(found, truth) < limit
        assert our_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
        return reports


def zero(completions, **_):
    return [0.0] * len(completions)


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module", autouse=True)
def cheap_passes():
    """A pass costs as little as on a CPU, so that tiny batches are worth a layout on every device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_plus.engine.cost._LAYER_OVERHEAD", {"other": 2e8})
        yield


@pytest.fixture
def branches(monkeypatch):
    """Trees stand behind one another wherever that is possible, however small they are."""
    monkeypatch.setattr("grpo_plus.engine.cost._BUNDLE_OVERHEAD", -1000.0)
