"""Another config, other data, another number of processes than a checkpoint was saved with: refused, or said."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.agreement import check
from grpo_plus.training.hooks import Hook, Misfit, Setup
from grpo_plus.training.resuming.made_of import (
    adapters_of,
    data_of,
    differences,
    model_of,
    parts_of,
    plain,
    settings_of,
)
from grpo_plus.training.resuming.rates import OPTIMIZER, follows_the_step, new_rates
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus")

Changes = Mapping[str, tuple[Any, Any]]
"""Dotted name of what differs, to the value in the checkpoint and the one of this run."""

KEEPS_BATCH = (
    *OPTIMIZER,
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "max_grad_norm", "max_steps", "num_train_epochs"),
    "rounds",
    *("engine", "engine_tokens_per_pass", "rollout", "rollout_rows", "use_cache", "cache_implementation"),
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_verifiers", "eval_data"),
    *("per_device_eval_batch_size", "num_generations_eval", "bf16_full_eval", "fp16_full_eval"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip"),
    *("activation_checkpointing", "activation_checkpointing_kwargs", "torch_compile", "torch_compile_backend"),
    *("torch_compile_mode", "dataloader_num_workers", "ddp_find_unused_parameters", "ddp_bucket_cap_mb"),
    *("ddp_broadcast_buffers", "ddp_static_graph", "use_cpu", "tf32", "full_determinism"),
    "sharding",  # refused, unless an older checkpoint names the kind alone
)
"""Changes after which buffered completions are still what this run would train on."""

_OPTIMIZER_STATE = ("optim", "optim_args", "optim_target_modules", "optimizer")
_ADAPTER_MAY = ("lora_dropout",)
_PART_FIELDS = ("advantage", "objective", "selection", "verifiers", "scale_rewards", "beta", "epsilon")
_ORDER = "(another order of the data: the position is that in the old one)"
_LENGTH = "(the schedule is that of the new length)"
_SCHEDULE = "(the schedule goes on with the new one)"
_REMARKS = {
    "learning_rate": _SCHEDULE,
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"), "(at this step of the new schedule)"),
    **dict.fromkeys(("max_steps", "num_train_epochs"), _LENGTH),
    **dict.fromkeys(("seed", "data_seed", "shuffle_dataset"), _ORDER),
}
_LABELS = {"data": "training data", "eval_data": "evaluation data", "rewards": "weight of", "parts": "part"}
_WIDEST = 100


class Settings(Hook):
    """What a run is made of, in every checkpoint; where a run goes on from one, what has changed since.

    ``changed`` is empty in a run from the start, and after a checkpoint from before this state was kept.
    """

    name = "settings"

    def __init__(self, recipe: Recipe) -> None:
        self.changed: Changes = {}
        self._recipe = recipe
        self._optimizer: str | None = None
        self._weights = ""
        self._now: dict[str, Any] = {}

    def before_loading(self, setup: Setup) -> None:
        """Note an optimizer that the config does not name."""
        own = (setup.further.get("optimizers") or (None,))[0]
        chosen = (setup.further.get("optimizer_cls_and_kwargs") or (None,))[0]
        self._optimizer = type(own).__name__ if own is not None else getattr(chosen, "__name__", None)

    def after_loading(self, host: Host) -> None:
        """Look at the weights before any of them is trained."""
        super().after_loading(host)
        self._weights = model_of(host)["weights"]

    @contextmanager
    def training(self) -> Iterator[None]:
        """Look at everything; the main process's view is that of all."""
        self.changed, self._compared = {}, False
        made = self._made_of()
        if self.host.accelerator.num_processes > 1:
            check(_alike(made))
        self._now = _trl.gather_objects([made])[0]
        with _trl.silent_comparison(lambda: self._compared):
            yield

    def _made_of(self) -> dict[str, Any]:
        host = self.host
        weights = zip(host.reward_func_names, host.reward_weights.tolist(), strict=True)
        return {
            "settings": settings_of(host.args),
            "processes": host.accelerator.num_processes,
            "sharding": _sharding(host),
            "optimizer": self._optimizer,
            "rewards": plain(dict(weights)),
            "parts": parts_of(self._recipe),
            "data": data_of(host.train_dataset),
            "eval_data": data_of(host.eval_dataset),
            "model": model_of(host) | {"weights": self._weights},
            "adapters": adapters_of(host),
        }

    def state_dict(self) -> dict[str, Any]:
        """What the run is made of."""
        return self._now or self._made_of()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare."""
        now = self.state_dict()
        found = compare(state, now)
        if reasons := refusals(found, state, now):
            raise Misfit(reasons)
        self.changed, self._compared = found, True

    def former_state(self, checkpoint: Path) -> dict[str, Any] | None:  # noqa: ARG002
        """Nothing is known of it, so nothing is said."""
        return {}

    @property
    def keeps_batch(self) -> bool:
        """Whether completions that a checkpoint holds are still what this run would train on."""
        return all(name.partition(".")[0] in KEEPS_BATCH for name in self.changed)

    @contextmanager
    def loading_optimizer(self) -> Iterator[None]:
        """Around the host's loading of optimizer and schedule, which puts their old settings over the new ones."""
        if not self.changed or self.host.is_deepspeed_enabled:
            yield
            return
        with new_rates(self.host.optimizer, self.host.lr_scheduler, self.changed):
            yield

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Log, save and evaluate as often as this config says, not as the checkpoint's did."""
        state.compute_steps(args, state.max_steps)

    def say(self, checkpoint: Path, follows: Sequence[str] = ()) -> None:
        """Log what has changed, and what follows, in one message on the main process."""
        lines = lines_of(self.changed, deepspeed=self.host.is_deepspeed_enabled)
        title = [f"{checkpoint.name} was saved with other settings:"] if lines else []
        processes = self.host.accelerator.num_processes
        fresh = random_states(checkpoint, processes) if "processes" in self.changed else []
        text = [*title, *lines, *follows, *fresh]
        if text and self.host.accelerator.is_main_process:
            logger.warning("note: %s", "\n".join(text))


def _alike(made: Mapping[str, Any]) -> dict[str, Any]:
    """What every process of a run has to have; of sharded weights each may hold its own part."""
    apart = ("name",) if made["sharding"] is None else ("name", "weights")
    model = {key: value for key, value in made["model"].items() if key not in apart}
    return {key: made[key] for key in ("data", "eval_data", "rewards", "adapters")} | {"model": model}


def compare(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between a checkpoint and this run, the fields of the config by their bare names."""
    fields = differences(then["settings"], now["settings"])
    others = [one for key in now if key != "settings" for one in differences(then.get(key), now[key], key)]
    found = {name: (old, new) for name, old, new in [*fields, *others]}
    if "model.dtype" in found:  # rounded otherwise, so nothing is known
        found.pop("model.weights", None)
    elif "model.weights" not in found:  # the same model in another place
        found.pop("model.name", None)
    elif "model.name" not in found and not now["adapters"] and not now["settings"].get("beta"):
        del found["model.weights"]  # those of the checkpoint take their place, and there is no reference policy
    return found


def random_states(checkpoint: Path, processes: int) -> list[str]:
    """The sentence about the processes whose random state a checkpoint does not hold, if there are any."""
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    fresh = [str(rank) for rank, name in enumerate(names) if not (checkpoint / name).is_file()]
    if not fresh:
        return []
    whose = "" if len(fresh) == processes else f" of process {', '.join(fresh)}"
    return [f"The random state{whose} begins anew: the checkpoint holds none for this number of processes."]


def refusals(changed: Changes, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why the run cannot go on from the checkpoint, sentences about "it"; empty where it can."""
    found = [_refused(name, changed[name]) for name in _OPTIMIZER_STATE if name in changed]
    if "sharding" in changed and not str(now["sharding"]).startswith(f"{then['sharding']} "):  # once the kind alone
        old, new = (value or "no sharding" for value in changed["sharding"])
        found.append(f"it was saved under {old}, and this run has {new}")
    elif str(then["sharding"]).startswith("DeepSpeed") and "processes" in changed:
        old, new = changed["processes"]
        found.append(f"DeepSpeed has split its optimizer between {old} processes, and this run has {new}")
    if changed.get("fp16", (False, False))[0]:
        found.append("it holds the state of a gradient scaler (fp16), which this run lacks")
    kinds = changed.get("lr_scheduler_type", ())
    if kinds and not all(follows_the_step(kind) for kind in kinds):
        found.append(_refused("lr_scheduler_type", kinds))
    return [*found, *_model_refusals(changed, then, now)]


def _sharding(host: Host) -> str | None:
    """What holds weights in pieces, and how its checkpoints do: one kind does not load the other's."""
    if host.is_deepspeed_enabled:
        return f"DeepSpeed ({'ZeRO-3' if _trl.zero_stage(host) == 3 else 'weights whole'})"
    if not host.is_fsdp_enabled:
        return None
    kind = getattr(host.accelerator.state.fsdp_plugin, "state_dict_type", None)
    return f"FSDP ({getattr(kind, 'name', kind)})"


def _model_refusals(changed: Changes, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Of another model, another adapter or other trained parameters, the first that differs."""
    old, new = then["model"], now["model"]
    if {"model.class", "model.shapes"} & changed.keys():
        return [f"it is of {_described(old)}, and this run has {_described(new)}"]
    if "model.quantisation" in changed:
        before, after = (value or "no quantisation" for value in changed["model.quantisation"])
        return [f"it was trained on a base with {before}, and this run has {after}"]
    if then["adapters"].keys() != now["adapters"].keys():
        return ["it holds {}, and this run trains {}".format(*map(_adapted, (then["adapters"], now["adapters"])))]
    keys = [name for name in changed if name.startswith("adapters.") and not name.endswith(_ADAPTER_MAY)]
    if keys:
        return [_refused(f"the adapter's {name.partition('.')[2].partition('.')[2]}", changed[name]) for name in keys]
    if "model.trained_shapes" in changed:
        pair = old["trained"], new["trained"]
        return ["it was trained on {:,} numbers, and this run trains {:,}, or others".format(*pair)]
    if now["adapters"] and "model.weights" in changed and old["dtype"] == new["dtype"]:
        return [f"its adapter was trained on other weights ({old['name']}) than those of this run ({new['name']})"]
    return []


def _described(model: Mapping[str, Any]) -> str:
    return f"a {model['class']} with {model['parameters']:,} parameters ({model['name']})"


def _adapted(adapters: Mapping[str, Any]) -> str:
    kinds = [f"an adapter {name!r} ({keys.get('peft_type', 'unknown')})" for name, keys in adapters.items()]
    return " and ".join(kinds) or "all weights"


def _refused(name: str, pair: Sequence[Any]) -> str:
    return f"it was saved with {name} {_shown(pair[0])}, and this run has {_shown(pair[1])}"


def lines_of(changed: Changes, *, deepspeed: bool = False) -> list[str]:
    """A line for each change, the later consequences of an earlier one left out."""
    return [line for name, pair in changed.items() if (line := _line(name, pair, changed, deepspeed=deepspeed))]


def _line(name: str, pair: tuple[Any, Any], changed: Changes, *, deepspeed: bool) -> str | None:
    root, _, rest = name.partition(".")
    if root in ("data", "eval_data"):
        digest = name.endswith("digest")
        if digest and f"{name.removesuffix('digest')}rows" in changed:
            return None
        *which, key = rest.split(".")
        where = " ".join([_LABELS[root], *which])
        return f"  {where}: other rows than then" if digest else f"  {_both(f'{key} of the {where}', pair)}"
    if root == "parts":
        explained = any(one.startswith(_PART_FIELDS) for one in changed)
        return None if explained else f"  {_LABELS[root]} {_both(rest, pair)}"
    if root == "rewards":
        return f"  {_LABELS[root]} {_both(rest, pair)}"
    if root == "model":
        return _model_line(rest, pair, changed)
    if root == "adapters":
        return f"  adapter {_both(rest, pair)}"
    if root == "sharding":  # any other change of it is refused
        old, new = pair
        return f"  sharding: {old} then, in a layout that the checkpoint does not name; it has to be this run's, {new}"
    remark = _REMARKS.get(root, "")
    if deepspeed and root in OPTIMIZER:
        remark = "(no effect: DeepSpeed goes on with the old one)"
    return f"  {_both(name, pair)} {remark}".rstrip()


def _model_line(key: str, pair: tuple[Any, Any], changed: Changes) -> str | None:
    """Of the model: its weights are the checkpoint's, so another start counts for a reference policy alone."""
    if key in ("parameters", "trained", "shapes", "trained_shapes", "class", "quantisation"):
        return None
    if key in ("name", "weights"):
        if key == "weights" and "model.name" in changed:
            return None
        what = "other weights than then at the start" if key == "weights" else _both("", pair)[2:]
        return f"  model: {what} (trained are those of the checkpoint; a reference policy is the new one)"
    return f"  model {_both(key.removeprefix('config.'), pair)}"


def _both(name: str, pair: tuple[Any, Any]) -> str:
    old, new = map(_shown, pair)
    return f"{name}: {old} then, {new} now" if old != new else f"{name}: another one than then ({new})"


def _shown(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) and value.strip() else repr(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
