r"""GRPO, PPO with a critic, and SAO (one completion a prompt): time, memory, accuracy.

    python -m benchmarks.studies.grpo_ppo_sao [--seeds 5] [--steps 120] [--arms grpo ppo_trunk ppo_model sao]

All arms train the quickstart's warm-started model on its task, with equally many completions a step:

* grpo: `advantage: zscore`, groups of 16 completions a prompt;
* ppo_trunk, ppo_model: `advantage: gae` with gamma = lam = 1, whitened, `objective: ppo_clip`, one completion a prompt,
  and a critic: a head on the policy's own hidden states, or a model of its own;
* sao: as in arXiv 2607.07508: length-adaptive lambda, a critic of its own with frozen attention, two critic updates a
  policy update, `objective: dis`; its first ten steps train the critic alone, and count.

Each generation batch is trained on once, in all arms. That leaves PPO's epochs and SAO's asynchrony out.

Every few steps the clock stops, and accuracy is measured on held-out questions. Peak memory is the resident memory of
the process, over what it had before training, in a run of its own without measurements.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.studies import courses, task
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main, of_arms

CRITIC_RATE = 1e-3
"""Learning rate of the critics, as in the examples."""
PPO: Mapping[str, Any] = {
    "advantage": {"name": "gae", "gamma": 1.0, "lam": 1.0, "whiten": True},
    "objective": {"name": "ppo_clip", "epsilon_low": 0.2, "dual": None},
}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"advantage": "zscore", "objective": "dapo"},
    "ppo_trunk": {**PPO, "critic": {"on": "trunk", "learning_rate": CRITIC_RATE}},
    "ppo_model": {**PPO, "critic": {"on": "model", "learning_rate": CRITIC_RATE}},
    "sao": {
        "advantage": {"name": "gae", "length_alpha": 1.5},
        "objective": {"name": "dis", "epsilon_low": 0.3, "epsilon_high": 5.0},
        "critic": {
            "on": "model",
            "learning_rate": CRITIC_RATE,
            "freeze": ["attention"],
            "updates": 2,
            "lam": 1.0,
            "warmup_steps": 10,
        },
    },
}
"""Fields of the config; those with a critic draw one completion a prompt. `run` adds the warm-up of SAO's critic."""


def cases(options: argparse.Namespace) -> list[Case]:
    """Memory of each arm, in a run of its own, and then every seed and arm."""
    shared = {
        "rate": options.rate, "completions": options.completions, "warm": options.warm_steps,
        "held_out": options.held_out, "group": options.group_size, "critic_warmup": options.critic_warmup,
    }  # fmt: skip
    measured: list[Case] = [
        {"part": "memory", "arm": arm, "seed": 0, "steps": options.memory_steps, "every": 0, **shared}
        for arm in options.arms
    ]
    return measured + [
        {"part": "course", "arm": arm, "seed": seed, "steps": options.steps, "every": options.every, **shared}
        for seed in range(options.seeds)
        for arm in options.arms
    ]


def run(case: Case, place: Place) -> dict[str, Any]:
    """Train one arm; its memory without measurements, or its accuracy on the way."""
    seed, fields = case["seed"], ARMS[case["arm"]]
    if case["arm"] == "sao":
        fields = {**fields, "critic": {**fields["critic"], "warmup_steps": case["critic_warmup"]}}
    folder = task.warm(place.home, seed, case["warm"])
    rows = task.questions(4096, seed + 1)
    test = task.questions(case["held_out"], seed + 1, held_out=True)
    config = task.settings(
        seed=seed, steps=case["steps"], completions=case["completions"],
        group=1 if "critic" in fields else case["group"], rate=case["rate"], verifiers=["math"], report=False, **fields,
    )  # fmt: skip
    if case["part"] == "memory":
        with task.PeakMemory() as memory:
            trained = task.train(folder, rows, config)
        return {"start": memory.start, "peak": memory.peak, "training_seconds": trained.seconds}
    measure = task.measuring(folder, test, seed)
    trained = task.train(folder, rows, config, measure=measure, every=case["every"])
    return {**vars(trained.course), "training_seconds": trained.seconds}


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Accuracy, time and memory of each arm."""
    arms = [(arm, options.rate) for arm in options.arms]
    shown = courses.shown(of_arms(rows, part="course"), arms, several=False)
    table = []
    for line in shown.rows:
        memory = of_arms(rows, part="memory", arm=line[0])
        rises = [row.found["peak"] - row.found["start"] for row in memory]
        peaks = [row.found["peak"] for row in memory]
        table.append([*line, f"{rises[0]:,.0f}" if rises else "-", f"{peaks[0]:,.0f}" if peaks else "-"])
    memory_words = "Memory: MiB of the process on the CPU, one run each; the first over what it had before training."
    remarks = [*shown.remarks, memory_words]
    return Shown([*shown.columns, "MiB of training", "MiB in all"], table, shown.panels, remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--rate", type=float, default=7e-5, help="learning rate of the policy")
    courses.add_options(parser)
    parser.add_argument(
        "--critic-warmup", type=int, default=10, help="first steps of SAO, which train the critic alone"
    )
    parser.add_argument("--memory-steps", type=int, default=16, help="steps of the runs that measure memory")


STUDY = Study(
    name="grpo_ppo_sao",
    title="GRPO, PPO with a critic, and SAO",
    about=__doc__ or "",
    steps=("optimizer steps", 120),
    seeds=5,
    cases=cases,
    run=run,
    show=show,
    quick={**courses.QUICK, "critic_warmup": 1, "memory_steps": 2},
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
