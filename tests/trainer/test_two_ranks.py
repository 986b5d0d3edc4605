"""Two CPU processes through `accelerate launch` train as one does, with prompt groups that span both."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

# Each rank says what its rows' places in the whole batch ask for, so one process and two see the same completions.
SCRIPT = textwrap.dedent(
    """
    import json, os, sys
    import torch
    import torch.distributed as dist
    from accelerate.utils import gather_object
    from datasets import Dataset
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    rank = int(os.environ.get("RANK", "0"))

    def text(row):
        return "ab3d5fgh"[: 1 + (5 * row) % 8] + "xyz"[row % 3] * (row % 4)

    def rollout(prompts, trainer):
        tokenizer = trainer.processing_class
        rows = range(rank * len(prompts), (rank + 1) * len(prompts))
        return {
            "prompt_ids": [tokenizer.encode(prompt) for prompt in prompts],
            "completion_ids": [tokenizer.encode(text(row)) + [tokenizer.eos_token_id] * (row % 2) for row in rows],
            "logprobs": None,
            "row": list(rows),
        }

    def letters(completions, row, **_):
        # Rows 8 to 11 are one group without contrast; rows 2 and 7 cannot be scored.
        return [None if r in (2, 7) else 0.5 if 8 <= r < 12 else len(set(t)) / 3 for r, t in zip(row, completions)]

    def late(completions, row, **_):
        return [float(r % 3) if r < 8 else 1.0 for r in row]

    def steps(completion_ids, row, **_):
        return [
            [(at, min(at + 2, len(ids)), None if (r + at) % 5 == 0 else float((r * 7 + at) % 3)) for at in range(0, len(ids) - 1, 2)]
            for r, ids in zip(row, completion_ids)
        ]

    def run(folder, model, per_device, **settings):
        scorer = steps if settings.get("advantage") in ("process", "mix") else None
        config = GRPOPlusConfig(
            output_dir=folder + "/out", use_cpu=True, bf16=False, report_to="none", max_steps=1, num_generations=4,
            per_device_train_batch_size=per_device, max_completion_length=16, optim="sgd", learning_rate=1.0,
            lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="no", logging_steps=1, disable_tqdm=True,
            gradient_checkpointing=False, shuffle_dataset=False, **settings,
        )
        data = Dataset.from_dict({"prompt": ["12+3=", "4=", "12+34+5="]})
        trainer = GRPOPlusTrainer(
            model, [letters, late], config, data, rollout_func=rollout, step_scorer=scorer,
        )
        before = [p.detach().clone() for p in trainer.model.parameters()]
        held = {}
        inner = trainer._generate_and_score_completions
        def keep(inputs):
            held.update(inner(inputs))
            return held
        trainer._generate_and_score_completions = keep
        trainer.train()
        after = list(trainer.accelerator.unwrap_model(trainer.model).parameters())
        gradient = torch.cat([(b - a.detach()).flatten() for a, b in zip(after, before)])
        advantages = gather_object([row.tolist() for row in held["advantages"].unsqueeze(-1).flatten(1)])
        logged = {k: v for k, v in trainer.state.log_history[0].items() if k.startswith(("advantages/", "steps/", "reward", "loss"))}
        return {
            "world": trainer.accelerator.num_processes,
            "advantages": advantages,
            "logged": list(trainer._logs["advantages"]),
            "gradient": gradient.tolist(),
            "metrics": logged,
        }

    if __name__ == "__main__":
        folder, model, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
        found = {name: run(folder, model, 6, **settings) for name, settings in runs.items()}
        if rank == 0:
            with open(folder + "/found.json", "w") as file:
                json.dump(found, file)
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's own goodbye can wait for a rank that has left
    """
)

RUNS = {
    "trl": {},
    "zscore": {"advantage": "zscore"},
    "batch_whiten": {"advantage": "batch_whiten", "loss_type": "grpo"},
    "gdpo": {"advantage": "gdpo", "reward_weights": [1.0, 0.5]},
    "process": {"advantage": "process", "advantage_kwargs": {"credit": "return", "outcome_weight": 0.5}},
    "mix": {"advantage": "mix", "advantage_kwargs": {"parts": {"process": 1.0, "sign": 0.5}}},
    "objective": {"advantage": "sign", "objective": "dapo"},
}


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, tiny_model, clean_environment):
    """What one process, this one, and two launched ones make of the same completions."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", "--multi_gpu", "--num_processes", "2", "--main_process_port", str(free_port())]
    command = [*launch, str(script), str(folder), tiny_model, json.dumps(RUNS)]
    variables = clean_environment | {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        alone = runpy.run_path(str(script), run_name="alone")["run"]
        one = {name: alone(str(folder), tiny_model, 12, **settings) for name, settings in RUNS.items()}
        code = process.wait(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (folder / "log").read_text()[-6000:]
    return one, json.loads((folder / "found.json").read_text())


def flat(rows):
    width = max(map(len, rows))
    return [value for row in rows for value in [*row, *[0.0] * (width - len(row))]]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(worlds, name):
    one, two = (world[name] for world in worlds)
    assert (one["world"], two["world"]) == (1, 2)
    assert len(one["advantages"]) == len(two["advantages"]) == 12
    assert flat(two["advantages"]) == pytest.approx(flat(one["advantages"]), abs=1e-6)
    assert any(abs(value) > 0.1 for value in flat(one["advantages"]))
    assert two["logged"] == pytest.approx(one["logged"], abs=1e-6)
    assert max(map(abs, one["gradient"])) > 1e-2
    assert two["gradient"] == pytest.approx(one["gradient"], abs=2e-6)
    for metric, value in one["metrics"].items():
        assert two["metrics"][metric] == pytest.approx(value, rel=1e-4, abs=1e-6), metric


def test_the_group_in_the_middle_spans_both_ranks(worlds):
    """Rows 4 to 7 are one prompt; rows 0 to 5 are on the first rank. A z-score within a rank would be another one."""
    values = [row[0] for row in worlds[1]["zscore"]["advantages"]]
    assert sum(values[4:8]) == pytest.approx(0.0, abs=1e-5)
    assert abs(sum(values[4:6])) > 0.1
    assert values[8:] == [0.0] * 4
