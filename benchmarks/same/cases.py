"""What is run under both trees: configs, command lines, data and models, as plain data in the words of old trees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

COMMON: Mapping[str, Any] = {
    "model_name_or_path": "../models/plain", "dataset_name": "./data.jsonl", "output_dir": "out",
    "reward_funcs": ["./parts.py:letters"], "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True,
    "gradient_checkpointing": False, "torch_threads": 1, "per_device_train_batch_size": 8, "num_generations": 4,
    "max_completion_length": 8, "max_steps": 3, "optim": "adamw_torch", "learning_rate": 1e-2, "logging_steps": 1,
    "save_strategy": "steps", "save_steps": 2, "seed": 3, "report": {"every": 0, "record": True},
}  # fmt: skip
MODELS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"layers": 1, "hidden": 16},
    "capped": {"architecture": "gemma2", "layers": 1, "hidden": 16, "final_logit_softcapping": 5.0},
    "llama": {"architecture": "llama", "layers": 1, "hidden": 64},
}
DATA: Sequence[Mapping[str, Any]] = [
    {
        "prompt": f"{number}+{number * 7 % 10}=",
        "answer": str(number),
        "level": number,
        "kind": ("vowels", "digits")[number % 2],
    }
    for number in range(16)
]


@dataclass(frozen=True)
class Case:
    """A config and what is done with it.

    Attributes:
        config: fields beside `COMMON`.
        commands: the command lines, one after the other.
        ranks: processes of each.
        ends: the exit codes that show that the case works.
        quick: taken by ``--quick``.
        seconds: after which a command hangs.
        files: further files beside the config.
        examples: the old tree's examples lie beside the config.
        prints: what is printed is the point, so its differences are shown.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    commands: Sequence[Sequence[str]] = (("train", "config.yaml"),)
    ranks: int = 1
    ends: Sequence[Any] = (0,)
    quick: bool = False
    seconds: float = 120.0
    files: Mapping[str, str] = field(default_factory=dict)
    examples: bool = False
    prints: bool = False


def _resumed(checkpoint: str) -> Sequence[Sequence[str]]:
    """Train to the end, and once more from a checkpoint that stands inside a generation batch."""
    train = ("train", "config.yaml")
    return train, (*train, "--output_dir", "again", "--resume_from_checkpoint", checkpoint)


STEPS = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_generations": 2, "max_steps": 4}
TWICE = {"num_iterations": 2, "max_steps": 4}
LORA = {"use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q_proj", "v_proj"]}
SELDOM = {"reward_funcs": ["./parts.py:seldom"]}
SPLITS = {"steps_from": "halves"}
HALVES: Mapping[str, Any] = {
    "advantage": "process", "reward_funcs": None,
    "verifiers": ["./parts.py:vowels", {"name": "./parts.py:halves", "weight": 0}],
}  # fmt: skip
TOOLS: Mapping[str, Any] = {
    "model_name_or_path": "grpo_plus.cli.quickstart.tools:base",
    "dataset_name": "./parts.py:games", "reward_funcs": None,
    "warm_start": {"dataset": "./parts.py:played", "steps": 60, "batch_size": 12, "learning_rate": 1e-2},
    "environment": "./parts.py:Walk", "max_tool_calling_iterations": 3, "max_completion_length": 64, "max_steps": 2,
    "objective": "grpo", "learning_rate": 1e-3,
}  # fmt: skip
CALCULATOR: Mapping[str, Any] = {
    **TOOLS, "warm_start": {**TOOLS["warm_start"], "dataset": "./parts.py:worked"}, "environment": None,
    "tools": ["calculator"], "verifiers": ["math", {"name": "tool_used", "weight": 0.5}], "advantage": "zscore",
}  # fmt: skip

PAIRS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "cispo": ("opo", {}),
    "dapo": ("zscore", {}),
    "dis": ("raw", {}),
    "dppo_kl": ("rloo", {}),
    "dppo_tv": ("center", {}),
    "dr_grpo": ("center", {"beta": 0.1}),
    "fipo": ("sign", {}),
    "gmpo": ({"name": "passk", "k": 2}, {}),
    "grpo": ("maxrl", SELDOM),
    "grpo_clip": ("best_of_n", {}),
    "gspo": ("batch_whiten", {}),
    "gspo_token": ("gpg", SELDOM),
    "luspo": ({"name": "zscore", "ddof": 0}, {}),
    "ppo_clip": ({"name": "mix", "parts": {"sign": 1.0, "center": 0.5}}, {}),
    "real": ("raw", SELDOM),
    "reinforce": ("reinforce_pp", {"num_iterations": 1}),
    "sapo": ("zscore", {}),
    "sequence_grpo": ("gdpo", {"reward_funcs": ["./parts.py:letters", "./parts.py:partly"]}),
    "up": ("zscore", {}),
    "vespo": ({"name": "sign", "band": 0.1}, {}),
}
"""Every objective with an estimator; `target` and `tpo`, which read the advantages first, stand below with several."""
QUICK_PAIRS = ("grpo",)

RUNS: dict[str, Case] = {
    "stock": Case({"report": None, "log_completions": True, "beta": 0.1}, quick=True),
    "stock-recorded": Case({**TWICE, "loss_type": "dr_grpo"}),
    **{
        f"{objective}-{estimator if isinstance(estimator, str) else estimator['name']}": Case(
            {**TWICE, "advantage": estimator, "objective": objective, **further}, quick=objective in QUICK_PAIRS
        )
        for objective, (estimator, further) in PAIRS.items()
    },
    **{
        f"target-{estimator}": Case(
            {**TWICE, "advantage": estimator, "objective": "target"}, quick=estimator == "sign"
        )
        for estimator in ("sign", "rloo", "zscore")
    },
    "target-stops": Case({
        "objective": {"name": "target", "stop_fraction": 0.5}, "num_iterations": 3, "max_steps": 7,
        "learning_rate": 0.3,
    }),
    **{
        f"tpo-{estimator}": Case({**TWICE, "advantage": estimator, "objective": "tpo"}, quick=estimator == "zscore")
        for estimator in ("zscore", "sign", "center")
    },
    "tpo-mean": Case({**TWICE, **STEPS, "objective": {"name": "tpo", "score": "mean", "eta": 0.5}}),
    "kl-in-reward": Case({
        "advantage": "zscore", "objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1,
    }, quick=True),
    "kl-in-reward-ppo": Case({
        **TWICE, "advantage": "zscore", "objective": {"name": "ppo_clip", "kl": {"placement": "reward"}}, "beta": 0.1,
        "verifiers": ["./parts.py:digits"],
    }),
    "kl-adaptive": Case({
        "objective": {"name": "grpo", "kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}},
        "beta": 0.1,
    }),
    "kl-k2-refreshed": Case({
        "objective": {"name": "grpo", "kl": "k2"}, "beta": 0.1, "sync_ref_model": True,
        "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6, "max_steps": 4,
    }),
    "penalties": Case({
        "advantage": "zscore", "objective": "dapo", "report": {"every": None},
        "verifiers": [
            {"name": "repetition", "weight": 0.5}, {"name": "length_cosine", "weight": 0.3, "max_len": 8},
            {"name": "exact", "columns": {"answer": "answer"}}, {"name": "./parts.py:vowels", "weight": -0.5},
        ],
    }, quick=True),
    "verifiers-by-row": Case({
        "reward_funcs": None, "verifiers": ["./parts.py:vowels", "./parts.py:digits"], "verifier_column": "kind",
        "advantage": "center",
    }),
    "verifier-fails": Case({
        "reward_funcs": ["./parts.py:partly"], "verifiers": ["./parts.py:fails"], "advantage": "rloo",
    }),
    "truncated": Case({"advantage": "zscore", "objective": "dapo", "mask_truncated_completions": True}),
    "steps": Case({**STEPS, "advantage": "rloo", "objective": "grpo", "beta": 0.1}, quick=True),
    "resample": Case({**STEPS, **SELDOM, "dead_groups": "resample", "advantage": "zscore"}, quick=True),
    "resample-selection": Case({
        **STEPS, **SELDOM, "dead_groups": "resample", "selection": "contrast", "advantage": "sign", "objective": "grpo",
    }, quick=True),
    "roulette": Case({
        **SELDOM, "dead_groups": {"name": "roulette", "keep": 0.5}, "objective": "grpo", "max_steps": 4,
    }),
    "replay": Case({
        **SELDOM, "dead_groups": "replay", "objective": "grpo", "per_device_train_batch_size": 16, "max_steps": 4,
    }),
    "resample-tpo": Case({**TWICE, **SELDOM, "dead_groups": "resample", "objective": "tpo", "advantage": "zscore"}),
    "selection-contrast": Case({**SELDOM, "selection": "contrast", "advantage": "rloo", "max_steps": 5}),
    "selection-curriculum": Case({
        **SELDOM, "selection": {"name": "curriculum", "column": "level"}, "objective": "dr_grpo",
    }),
    "selection-uniform": Case({"selection": "uniform", "advantage": "zscore"}),
    "critic-model": Case({
        **TWICE, "num_generations": 1, "advantage": "gae", "objective": "ppo_clip",
        "critic": {"on": "model", "learning_rate": 1e-3},
    }, quick=True),
    "critic-trunk": Case({"advantage": "gae", "objective": "grpo", "critic": {"on": "trunk", "warmup_steps": 1}}),
    "critic-adapter": Case({
        **LORA, "advantage": "gae", "objective": "ppo_clip", "critic": {"on": "adapter", "updates": 2},
    }),
    "reward-model": Case({
        "reward_model": {"on": "model", "every": 1, "batch_size": 4, "learning_rate": 1e-3}, "advantage": "zscore",
        "verifiers": ["./parts.py:digits"], "reward_funcs": None, "max_steps": 4,
    }),
    "reward-model-adapter": Case({
        **LORA, "reward_model": {"on": "adapter", "every": 2, "batch_size": 4}, "objective": "grpo", "max_steps": 4,
        "verifiers": ["./parts.py:digits"], "reward_funcs": None,
    }),
    "refreshed": Case({
        **SELDOM, "beta": 0.1, "objective": "grpo", "selection": "contrast", "max_steps": 4, "advantage": "zscore",
        "reward_model": {"on": "model", "every": 2, "batch_size": 4}, "reward_funcs": None,
        "verifiers": ["./parts.py:digits"],
        "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0,
    }),
    "process-step": Case({**HALVES, "advantage": {"name": "process", **SPLITS, "credit": "step"}}),
    "process-return": Case({
        **HALVES, "advantage": {"name": "process", **SPLITS, "credit": "return", "gamma": 0.9}, "objective": "dapo",
    }, quick=True),
    "environment-turn": Case({
        **TOOLS, "verifiers": [{"name": "turn_reward", "weight": 0}],
        "advantage": {"name": "process", "steps_from": "turn_reward", "credit": "turn", "outcome_weight": 0.5},
    }),
    "environment-gigpo": Case({**TOOLS, "advantage": "gigpo"}),
    "tools": Case({**CALCULATOR}),
    "warm-start": Case({
        "warm_start": {"dataset": "./solutions.jsonl", "steps": 3, "batch_size": 4}, "advantage": "zscore",
        "objective": "dapo",
    }),
    "lora": Case({**LORA, "advantage": "zscore", "objective": "grpo", "beta": 0.1}, quick=True),
    "four-bits": Case({
        **LORA, "model_name_or_path": "../models/llama", "load_in_4bit": True, "bf16": True, "advantage": "zscore",
        "objective": "dapo", "optim": None,
    }),
    "evaluation": Case({
        "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "dataset_test_split": "train",
        "eval_verifiers": ["numeric"], "advantage": "zscore", "measure": {"split": "train", "n": 2},
        "verifiers": ["exact"],
    }),
    "monitor": Case({
        "verifiers": ["./parts.py:digits"], "reward_funcs": None, "advantage": "center",
        "diagnosis": {"every": 1, "sample": 8, "judge": "./parts.py:vowels", "against": "digits"},
        "max_steps": 7,
    }),
    "stop-on": Case({
        "reward_funcs": None, "verifiers": [{"name": "exact"}], "advantage": "zscore",
        "diagnosis": {"stop_on": ["dead_groups"]},
        "max_steps": 20,
    }, ends=(3,)),
    **{
        f"engine-{engine}": Case({"engine": engine, "advantage": "rloo", "objective": "grpo", "beta": 0.1, **TWICE})
        for engine in ("packed", "trimmed", "stock")
    },
    "engine-bounded": Case({"engine": {"tokens_per_pass": 40}, "advantage": "rloo", "objective": "grpo", **TWICE}),
    "sampled-top": Case({
        "top_p": 0.9, "top_k": 20, "temperature": 0.7, "advantage": "zscore", "objective": "grpo", **TWICE,
    }, quick=True),
    "sampled-capped": Case({
        "model_name_or_path": "../models/capped", "top_k": 20, "temperature": 0.7, "advantage": "sign", **TWICE,
    }),
    "sampled-min": Case({"min_p": 0.05, "temperature": 1.3, "rollout": "auto", "repetition_penalty": 1.1}),
    "temperature": Case({
        "temperature": 0.7, "advantage": "sign", "objective": "dapo", "engine": "packed", "beta": 0.1,
    }),
    "rollout-stock": Case({"rollout": "stock", "advantage": "zscore", "objective": "dapo"}),
    "ranks": Case({
        **TWICE, "per_device_train_batch_size": 4, "advantage": "zscore", "objective": "tpo",
    }, ranks=2, ends=([0, 0],)),
    "ranks-resample": Case({
        **STEPS, **SELDOM, "per_device_train_batch_size": 4, "dead_groups": "resample", "selection": "contrast",
        "advantage": "batch_whiten", "objective": "dapo",
    }, ranks=2, ends=([0, 0],)),
    "resumed": Case(
        {**STEPS, "advantage": "rloo", "objective": "grpo", "save_steps": 1, "max_steps": 5},
        _resumed("out/checkpoint-1"),
        ends=(0, 0), quick=True,
    ),
    "resumed-target": Case(
        {**TWICE, **SELDOM, "advantage": "sign", "objective": "target", "save_steps": 1, "selection": "contrast"},
        _resumed("out/checkpoint-3"),
        ends=(0, 0),
    ),
}  # fmt: skip
"""Short training runs."""
RUNS["resumed-critic"] = Case(
    {**RUNS["critic-model"].config, "save_steps": 1}, RUNS["resumed-target"].commands, ends=(0, 0)
)

WRONG: Mapping[str, Mapping[str, Any]] = {
    "unknown-field": {"advantag": "sign", "bta": 0.1},
    "unknown-parts": {"advantage": "zscor", "objective": "grpp", "selection": "contrst", "verifiers": ["exct"]},
    "ranges": {"beta": -1, "learning_rate": 0, "temperature": 0, "top_p": 2, "num_generations": 0, "max_steps": 0},
    "types": {"beta": "much", "max_steps": "ten", "num_generations": 2.5, "report": "perhaps"},
    "estimator-keywords": {"advantage": {"name": "sign", "band": -1, "bnd": 2}},
    "keywords-alone": {
        "advantage": {"eps": 1}, "objective": {"eta": 1}, "selection": {"power": 1},
    },
    "pieces": {"objective": {"name": "grpo", "surrogate": "tpo", "ratio": "none", "kl": "k4"}},
    "target-once": {"objective": "target", "beta": 0.1},
    "inert-fields": {"objective": "grpo", "loss_type": "dapo", "scale_rewards": "batch", "advantage": "sign"},
    "dead-groups": {"dead_groups": {"name": "roulette", "kep": 1}, "num_generations": 2},
    "kl-and-dead-groups": {
        "dead_groups": "resample", "objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1,
    },
    "critic-alone": {"critic": {"on": "model"}, "advantage": "zscore"},
    "critic-keys": {"critic": {"on": "trunk", "lam": 2, "rate": 1}, "advantage": "gae", "objective": "grpo"},
    "reward-model": {"reward_model": {"every": -1, "scale": "log", "heads": 1}},
    "process-without-steps": {"advantage": "process"},
    "verifier-options": {"verifiers": [{"name": "regex", "pattern": "("}, {"name": "exact", "wait": 1}]},
    "verifier-columns": {"verifiers": [{"name": "math", "columns": {"answer": "gold"}}], "reward_funcs": None},
    "no-reward": {"reward_funcs": None},
    "no-reward-file": {"reward_funcs": ["./nothing.py:f"]},
    "no-reward-function": {"reward_funcs": ["./parts.py:nothing"]},
    "no-model": {"model_name_or_path": "./nothing"},
    "no-data": {"dataset_name": "./nothing.jsonl"},
    "batch": {"per_device_train_batch_size": 6, "num_generations": 4},
    "monitor": {"diagnosis": {"judge": "strict", "every": 1, "stop_on": ["boredom"]}},
    "tools": {"tools": ["calculatr"], "environment": "./parts.py:Game"},
    "vllm": {"rollout": {"how": "auto", "vllm_sync": "files"}, "use_vllm": True},
    "measure": {"measure": {"splt": "test"}, "warm_start": {"dataset": "./solutions.jsonl", "steps": 1, "epochs": 1}},
}  # fmt: skip
"""Configs that `train` refuses: fields beside `COMMON`."""
EXPLAINED = (
    "grpo-maxrl", "dapo-zscore", "target-sign", "tpo-zscore", "ppo_clip-mix", "kl-in-reward", "kl-adaptive",
    "penalties", "resample-selection", "replay", "critic-model", "reward-model", "refreshed", "process-return",
    "environment-gigpo", "engine-packed", "sampled-top",
)  # fmt: skip
"""Runs whose configs `check` shows, too."""
PAPERS = ("deepseekmath", "dr_grpo", "gspo", "mt_grpo", "ppo", "tpo")
HELPED = (
    "init", "train", "eval", "sweep", "check", "plugins", "export", "report",
    "verify",
)  # fmt: skip
PARTS = ("zscore", "process", "target", "tpo", "contrast", "replay", "math", "calculator", "kl", "nothing")
COMPLETIONS = "".join(
    f'{{"prompt": "{n}+{n}=", "completion": "\\\\boxed{{{2 * n + n % 2}}}", "answer": "{2 * n}"}}\n' for n in range(8)
)
_SMALL_HELP = ("train", "check")


def _printing(*commands: Sequence[str], config: Mapping[str, Any] | None = None, end: int = 0, **further: Any) -> Case:
    return Case(config or {}, commands, ends=(end,) * len(commands), prints=True, **further)


COMMANDS: dict[str, Case] = {
    "help": _printing(("--help",), ("train", "--help-all"), quick=True),
    **{f"help-{name}": _printing((name, "--help"), quick=name in _SMALL_HELP) for name in HELPED},
    "plugins": _printing(("plugins",), quick=True),
    **{f"plugins-{name}": _printing(("plugins", name), end=2 * (name in ("kl", "nothing"))) for name in PARTS},
    **{
        f"check-{name}": _printing(
            ("check", "--only=config", "config.yaml"),
            ("check", "--only=config", "config.yaml", "--rewards", "1,0.5,0,0"),
            config=RUNS[name].config,
            quick=name == "grpo-maxrl",
        )
        for name in EXPLAINED
    },
    **{
        f"check-paper-{name}": _printing(("check", "--only=config", f"examples/papers/{name}.yaml"), examples=True)
        for name in PAPERS
    },
    **{f"wrong-{name}": _printing(("train", "config.yaml"), config=config, end=2) for name, config in WRONG.items()},
    "verify": _printing(("verify", "done.jsonl", "--verifier", "math"), files={"done.jsonl": COMPLETIONS}),
    "eval": _printing((
        "eval", "../models/plain", "--dataset", "data.jsonl", "--split", "train", "--verifier", "exact", "-n", "2",
        "--max-completion-length", "4", "--device", "cpu", "--out", "answers.jsonl",
    )),
    "memory": _printing(("check", "--only=memory", "config.yaml", "--vram", "8"), config={"use_peft": True}),
}  # fmt: skip
"""Commands that print."""
for _name in ("unknown-field", "ranges", "pieces", "critic-keys"):
    COMMANDS[f"wrong-{_name}"] = replace(COMMANDS[f"wrong-{_name}"], quick=True)
CASES: dict[str, Case] = {**RUNS, **COMMANDS}
