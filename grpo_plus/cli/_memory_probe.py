"""Train with the planner's settings on random weights of a model's shape, at two depths, and read the memory peaks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from grpo_plus.memory.calibration import CalibrationError, Point
from grpo_plus.memory.estimate import GIB, Settings, estimate
from grpo_plus.memory.random_model import at_depth, number_tokenizer, random_model
from grpo_plus.memory.shape import shape_of
from grpo_plus.training.hooks import Hook
from grpo_verifiers.files import temporary_folder

if TYPE_CHECKING:
    from grpo_plus.trainer import GRPOPlusTrainer

STEPS = 2
"""The first step allocates the optimizer's state, so the second one has the peak."""
MOST_OUTSIDE = 2.0 * GIB
"""CUDA's context and libraries take a few hundred MiB; more is another program."""


class Peak(NamedTuple):
    """The most memory since the last reset, in bytes: reserved by PyTorch, and the allocated part of it."""

    reserved: float
    allocated: float


class Meter(Protocol):
    """A source of memory readings."""

    def reset(self) -> None:
        """Reset the peak."""

    def peak(self) -> Peak:
        """The most since then."""


class CudaMeter:
    """PyTorch's own counters of a CUDA device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def reset(self) -> None:
        """Free unused blocks and reset the peak."""
        import torch

        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> Peak:
        """The most since then."""
        import torch

        torch.cuda.synchronize(self._device)
        reserved = torch.cuda.max_memory_reserved(self._device)
        return Peak(float(reserved), float(torch.cuda.max_memory_allocated(self._device)))

    def outside(self) -> float:
        """Bytes in use on the card outside PyTorch: CUDA's context, libraries, other programs.

        Raises:
            CalibrationError: another program must be using the card.
        """
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        found = float(total - free - torch.cuda.memory_reserved(self._device))
        if found > MOST_OUTSIDE:
            raise CalibrationError(
                f"{found / GIB:.1f} GiB of the card are held by other programs, which would be taken for this one's "
                "need: close them, then calibrate."
            )
        return max(0.0, found)


def depths(layers: int) -> tuple[int, int]:
    """A quarter and a half of the layers: far enough apart to measure one layer's share, and quick."""
    first = max(1, layers // 4)
    return first, max(first + 1, layers // 2)


def measure(
    config: Any,
    settings: Settings,
    *,
    batch: int,
    generations: int,
    device: Any,
    meter: Meter,
    say: Callable[[str], None] = print,
) -> list[Point]:
    """The peaks of an update and a rollout at two depths.

    ``settings`` must fit the card at half the depth. ``batch`` and ``generations`` are the completions of a generation
    batch and of a prompt. ``say`` receives a line for each run.

    Raises:
        CalibrationError: memory ran out.
    """
    points = []
    layers = config.get_text_config().num_hidden_layers
    for depth in depths(layers):
        say(f"  {depth} of {layers} layers …")
        made = at_depth(config, depth)
        planned = estimate(shape_of(made), settings)
        peaks = _peaks(made, settings, batch=batch, generations=generations, device=device, meter=meter)
        for phase, parts in (("train", planned.train), ("rollout", planned.rollout)):
            points.append(Point(phase, depth, parts, *peaks[phase]))
    return points


def _peaks(
    config: Any, settings: Settings, *, batch: int, generations: int, device: Any, meter: Meter
) -> dict[str, Peak]:
    import gc

    import torch

    try:
        with _probe(config, settings, batch=batch, generations=generations, device=device, meter=meter) as (
            trainer,
            metered,
        ):
            trainer.train()
            peaks = {"rollout": metered.last, "train": meter.peak()}
            shrunk = trainer.retry.count > 0 or trainer.rollouts.most_rows != settings.rollout_rows
            del trainer
    except torch.OutOfMemoryError as error:
        raise CalibrationError(_too_large(str(error))) from error
    finally:
        gc.collect()
    if shrunk:
        raise CalibrationError(_too_large("memory ran out, and the step went through in smaller parts"))
    return peaks


def _too_large(why: str) -> str:
    return f"the settings do not fit the card even with fewer layers ({why}): ask for shorter completions, or fewer."


@contextmanager
def _probe(
    config: Any, settings: Settings, *, batch: int, generations: int, device: Any, meter: Meter
) -> "Iterator[tuple[GRPOPlusTrainer, _Metered]]":
    """A trainer on random weights, and the hook that reads the meter after each of its rollouts."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig

    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.trainer import GRPOPlusTrainer

    cuda = device.type == "cuda"
    half = settings.width == 2
    bf16 = half and (not cuda or torch.cuda.is_bf16_supported(including_emulation=False))
    dtype = torch.bfloat16 if bf16 else torch.float16 if half else torch.float32
    vocabulary = config.get_text_config().vocab_size
    words = " ".join(str(number % min(100, vocabulary - 2)) for number in range(settings.prompt_length - 1))
    with temporary_folder() as folder:
        args = GRPOPlusConfig(
            output_dir=folder, max_steps=STEPS, num_generations=generations,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=batch // settings.micro_batch,
            max_completion_length=settings.completion_length,
            # Every row is padded to the longest, as in the formula and in the worst batch of a run.
            engine="stock", rollout="auto", rollout_rows=settings.rollout_rows,
            gradient_checkpointing=settings.checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False},
            learning_rate=2e-5, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
            optim=settings.optimizer, bf16=bf16, fp16=half and not bf16, use_cpu=not cuda,
        )  # fmt: skip
        metered = _Metered(meter)
        trainer = GRPOPlusTrainer(
            random_model(config, device, dtype, four_bit=settings.four_bit),
            _reward,
            args,
            Dataset.from_list([{"prompt": f"{number} {words}".strip()} for number in range(8)]),
            processing_class=number_tokenizer(vocabulary),
            peft_config=LoraConfig(r=settings.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
            hooks=[metered],
        )
        yield trainer, metered


class _Metered(Hook):
    """Reads the meter off each rollout."""

    def __init__(self, meter: Meter) -> None:
        self.last = Peak(0.0, 0.0)
        self._meter = meter

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Around the drawing of completions."""
        self._meter.reset()
        yield
        self.last = self._meter.peak()
        self._meter.reset()


def _reward(completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
    """Rewards that differ within a group, so that there is a gradient."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]
