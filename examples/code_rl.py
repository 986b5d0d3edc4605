"""Two real training steps of a tiny model with the code verifier: makes the model, then trains from a YAML file."""

import os
import sys
from pathlib import Path

FOLDER = Path("runs/code")
CONFIG = Path(__file__).with_suffix(".yaml")
TASKS = [
    ("Write a function add(a, b) that returns the sum.", ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]),
    ("Write a function double(x) that returns twice x.", ["assert double(2) == 4", "assert double(0) == 0"]),
    ("Write a function largest(xs) of a list.", ["assert largest([1, 3, 2]) == 3", "assert largest([5]) == 5"]),
    ("Write a function reverse(s) of a text.", ["assert reverse('ab') == 'ba'", "assert reverse('') == ''"]),
]


def rows() -> list[dict[str, object]]:
    """The dataset: prompts, and tests in MBPP's shape."""
    return [{"prompt": f"{task}\n", "tests": [{"code": test} for test in tests]} for task, tests in TASKS * 4]


def looks_like_code(completion: str) -> float:
    """Points for the fence and for letters, so that a model that cannot program yet learns something."""
    letters = sum(character.isalpha() for character in completion) / max(1, len(completion))
    return 0.4 * ("```python\n" in completion) + 0.4 * completion.rstrip().endswith("\n```") + 0.2 * letters


def main() -> int:
    """Make what is missing, then hand over to the command line."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.chdir(Path(__file__).parent.parent)
    from grpo_plus.cli import main as grpo_plus
    from grpo_plus.testing import make_tiny_model

    FOLDER.mkdir(parents=True, exist_ok=True)
    make_tiny_model(FOLDER / "model")
    return grpo_plus(["train", str(CONFIG)])


if __name__ == "__main__":
    sys.exit(main())
