"""The runs that are compared: each alone, and under the stages of ZeRO. A job is what `zero_train.py` takes."""

SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
ADAM = {"optim": "adamw_torch", "learning_rate": 1e-2, "adam_epsilon": 1e-3}  # rounding alone moves no weight
REFRESHED = {**SAVING, "beta": 0.3, "sync_ref_model": True, "ref_model_sync_steps": 2}
DRAWN = {"draws": True, "reward": "drawn", "rollout": "auto", **ADAM}
EVALUATED = {"evaluates": True, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}

CASES = {
    "full": {},
    "adam": {**SAVING, **ADAM, "lr_scheduler_type": "linear", "warmup_steps": 1},
    "kl": {"beta": 0.1},
    "lora": {"lora": True},
    "lora_reference": {**REFRESHED, "lora": True, "ref_model_mixup_alpha": 1.0},
    "reference": {**REFRESHED, "ref_model_mixup_alpha": 0.6},
    "inner": {"num_iterations": 2, "objective": "grpo", "max_steps": 4, "learning_rate": 0.05},
    "target": {"num_iterations": 2, "objective": "target", "max_steps": 4, "learning_rate": 0.05},
    "dead": {"reward": "half", "objective": "dapo"},
    "process": {"advantage": "process", "scorer": True},
    "checkpointing": {"lora": True, "gradient_checkpointing": True},
    "measured": {"measures": True, "verifiers": ["even"], "gradient_checkpointing": True},
}
FIRST_STAGE = ("full", "adam", "dead", "measured")
"""The cases that run under ZeRO-1, too."""
RESUMED = ("adam", "reference", "lora_reference")
"""Those that are resumed from a checkpoint after two steps, the weights of their references included."""

_OFFLOAD = "ACCELERATE_DEEPSPEED_OFFLOAD_{}_DEVICE"
OFFLOADED = {
    2: {_OFFLOAD.format("OPTIMIZER"): "cpu", _OFFLOAD.format("PARAM"): "none"},
    3: {_OFFLOAD.format("OPTIMIZER"): "cpu", _OFFLOAD.format("PARAM"): "cpu"},
}
INSIDE = {_OFFLOAD.format("OPTIMIZER"): "none", _OFFLOAD.format("PARAM"): "none"}


def alone():
    jobs = [{"name": name, "engine": "stock", **case} for name, case in CASES.items()]
    four = {"name": "four", "engine": "stock", "lora": True, "four": True}
    adapted = {"name": "measured_lora", "engine": "stock", "lora": True, **CASES["measured"]}
    return [*jobs, four, adapted, {"name": "offloaded", "engine": "stock", **ADAM, "max_steps": 3}]


def under_zero():
    return [job for stage in (1, 2, 3) for job in _of_stage(stage)] + _drawn() + _others()


def _of_stage(stage):
    names = CASES if stage > 1 else FIRST_STAGE
    for name in names:
        job = {"stage": stage, "engine": "packed", **CASES[name]}
        yield {"name": f"{name}_{stage}", **job}
        if name in RESUMED:
            yield {"name": f"{name}_{stage}_resumed", **job, "resume": f"{name}_{stage}/checkpoint-2"}


def _drawn():
    """Completions drawn by our own decode, beside DDP; the ratio of top_p moves in the second iteration."""
    kept = {"top_p": 0.8, "num_iterations": 2, "objective": "grpo", "max_steps": 4}
    kinds = {"drawn": EVALUATED, "drawn_lora": {"lora": True}, "drawn_top_p": kept}
    return [
        {"name": f"{name}_{stage or 'ddp'}", "stage": stage, **DRAWN, **kind}
        for name, kind in kinds.items()
        for stage in ((None, 1, 2, 3) if name == "drawn" else (None, 3))
    ] + [{"name": "drawn_in_pieces", "stage": 3, **DRAWN, "ds3_gather_for_generation": False}]


def _others():
    jobs = [{"name": "measured_in_pieces", "stage": 3, **CASES["measured"], "ds3_gather_for_generation": False}]
    for stage in (2, 3):
        shared = {"stage": stage, "engine": "packed"}
        jobs += [
            {"name": f"trimmed_{stage}", **shared, "engine": "trimmed"},
            {"name": f"four_{stage}", **shared, "lora": True, "four": True},
            {"name": f"measured_lora_{stage}", **shared, **CASES["measured"], "lora": True},
            {"name": f"bound_{stage}", **shared, "engine": {"tokens_per_pass": 64}},
            {"name": f"offloaded_{stage}", **shared, **ADAM, "environment": OFFLOADED[stage]},
        ]
        for engine in ("stock", "packed"):
            half = {**shared, "environment": INSIDE, "precision": "bf16", "engine": engine, "beta": 0.1}
            jobs += [
                {"name": f"half_{engine}_{stage}", **half},
                {"name": f"half_lora_{engine}_{stage}", **half, "lora": True},
                {"name": f"half_lora_reference_{engine}_{stage}", **half, **CASES["lora_reference"]},
            ]
    return jobs
