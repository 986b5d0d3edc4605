"""The walk of a config value: how often building a `GRPOPlusConfig` with many parts changes the file.

``python -m tests.packaging.walk`` prints the walk and three counts. The walk is a reader's: each function of grpo_plus
counts once, at its first call in a warm build; constructors of dataclasses and comprehensions do not count.

- A stay is a maximal stretch of first calls in one module file.
- A room is a module file. (The second number of rooms counts folders, as ``test_structure`` does.)
- A climb is a step to a stay whose folder is on a higher floor, by the imports that ``test_structure`` reads.

By this reading the tree of the review (69e6172c: "105 stays, 34 rooms, 12 climbs") has 91 stays, 36 rooms and 12
climbs, and the tree before the walk was shortened (b64b9fa7) 97, 28 and 15.
"""

import sys
import tempfile
from itertools import groupby, pairwise
from typing import NamedTuple

from grpo_plus.config import GRPOPlusConfig
from tests.packaging.test_structure import floors_of, room_of, rooms_of

COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}


class Walk(NamedTuple):
    """The module files in order, and the counts."""

    files: list[str]
    stays: int
    rooms: int
    folders: int
    climbs: int


def build(folder):
    return GRPOPlusConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=8,
        num_generations=8,
        advantage={"name": "zscore", "scale": "batch"},
        objective={"name": "grpo", "surrogate": "clip", "reduce": "token_mean"},
        selection="contrast",
        dead_groups={"name": "resample", "rounds": 2},
        verifiers=[{"name": "math", "weight": 1.0}, {"name": "exact", "weight": 0.5}],
        reward_model={"weight": 0.0},
        rollout={"how": "auto", "rows": 8},
        engine={"layout": "packed"},
        diagnosis={"judge": "strict", "every": 2, "stop_on": ["hacking"]},
        report={"record": True, "every": 10},
    )


def walk():
    calls = {}

    def profile(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        generated = code.co_filename.startswith("<") or code.co_name in COMPREHENSIONS
        if event == "call" and module.startswith("grpo_plus.") and not generated:
            calls.setdefault(code, module)

    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            build(folder)
        finally:
            sys.setprofile(before)
    files = [file for file, _ in groupby(calls.values())]
    floors = floors_of(rooms_of("grpo_plus"))
    climbs = sum(floors[room_of(one)] < floors[room_of(next_one)] for one, next_one in pairwise(files))
    return Walk(files, len(files), len(set(files)), len(set(map(room_of, files))), climbs)


if __name__ == "__main__":
    taken = walk()
    print(*taken.files, sep="\n")
    print(f"{taken.stays} stays in {taken.rooms} files of {taken.folders} folders, {taken.climbs} climbs")
