"""Two real training steps on a CPU: makes a tiny model and its data on the spot, then trains from a YAML file."""

import json
import os
import random
import sys
from pathlib import Path

FOLDER = Path("runs/first")
CONFIG = Path(__file__).with_suffix(".yaml")


def main() -> int:
    """Make what is missing, then hand over to the command line."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.chdir(Path(__file__).parent.parent)
    from grpo_plus.cli import main as grpo_plus
    from grpo_plus.testing import make_tiny_model

    FOLDER.mkdir(parents=True, exist_ok=True)
    make_tiny_model(FOLDER / "model")
    rng = random.Random(0)  # noqa: S311 - sums, not secrets
    with (FOLDER / "data.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(64):
            a, b = rng.randrange(100), rng.randrange(100)
            file.write(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n")
    return grpo_plus(["train", str(CONFIG)])


if __name__ == "__main__":
    sys.exit(main())
