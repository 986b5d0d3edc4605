"""The walk of a config value through the files of grpo_plus: ``python -m benchmarks.walk`` prints it and its counts.

It is a reader's walk: each function counts once, at its first call in a warm build of a config with many parts;
constructors of dataclasses and comprehensions do not count. A stay is a maximal stretch of calls in one file. A room is
a folder or a file of the top level, and a climb is a step to a file on a higher floor (`test_structure`).
"""

import sys
import tempfile
from itertools import groupby, pairwise
from typing import Any

from grpo_plus.config import GRPOPlusConfig
from tests.packaging.test_structure import floors_of, room_of, rooms_of

PARTS = {
    "use_cpu": True,
    "bf16": False,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "advantage": {"name": "zscore", "scale": "batch"},
    "objective": {"name": "grpo", "surrogate": "clip", "reduce": "token_mean"},
    "selection": "contrast",
    "dead_groups": {"name": "resample", "rounds": 2},
    "verifiers": [{"name": "math", "weight": 1.0}, {"name": "exact", "weight": 0.5}],
    "reward_model": {"weight": 0.0},
    "rollout": {"how": "auto", "rows": 8},
    "engine": {"layout": "packed"},
    "diagnosis": {"judge": "strict", "every": 2, "stop_on": ["hacking"]},
    "report": {"record": True, "every": 10},
}


def walk() -> tuple[list[str], dict[str, int]]:
    """The files in order; the counts of stays, files, rooms and climbs."""
    calls = {}

    def profile(frame: Any, event: str, _: Any) -> None:
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        generated = code.co_filename.startswith("<") or code.co_name.endswith(("comp>", "expr>"))
        if event == "call" and module.startswith("grpo_plus.") and not generated:
            calls.setdefault(code, module)

    with tempfile.TemporaryDirectory() as folder:
        GRPOPlusConfig(output_dir=folder, **PARTS)
        sys.setprofile(profile)
        try:
            GRPOPlusConfig(output_dir=folder, **PARTS)
        finally:
            sys.setprofile(None)
    files = [file for file, _ in groupby(calls.values())]
    floors = floors_of(rooms_of("grpo_plus"))
    climbs = sum(floors[room_of(one)] < floors[room_of(two)] for one, two in pairwise(files))
    rooms = set(map(room_of, files))
    return files, {"stays": len(files), "files": len(set(files)), "rooms": len(rooms), "climbs": climbs}


if __name__ == "__main__":
    print(*walk(), sep="\n")
