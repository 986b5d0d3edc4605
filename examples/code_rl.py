"""What code_rl.yaml names: a tiny model made on the spot, programming tasks with tests, and a hint of a reward."""

from pathlib import Path

FOLDER = Path("runs/code/model")
TASKS = [
    ("Write a function add(a, b) that returns the sum.", ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]),
    ("Write a function double(x) that returns twice x.", ["assert double(2) == 4", "assert double(0) == 0"]),
    ("Write a function largest(xs) of a list.", ["assert largest([1, 3, 2]) == 3", "assert largest([5]) == 5"]),
    ("Write a function reverse(s) of a text.", ["assert reverse('ab') == 'ba'", "assert reverse('') == ''"]),
]


def model() -> str:
    """The folder of a random model that cannot program: put the name of yours in the config instead."""
    from grpo_plus.testing import make_tiny_model

    if not (FOLDER / "config.json").is_file():
        make_tiny_model(FOLDER)
    return str(FOLDER)


def rows() -> list[dict[str, object]]:
    """The dataset: prompts, and tests made of assertions like MBPP's."""
    return [{"prompt": f"{task}\n", "tests": [{"code": test} for test in tests]} for task, tests in TASKS * 4]


def looks_like_code(completion: str) -> float:
    """Points for the fence and for letters, so that a model that cannot program yet learns something."""
    letters = sum(character.isalpha() for character in completion) / max(1, len(completion))
    return 0.4 * ("```python\n" in completion) + 0.4 * completion.rstrip().endswith("\n```") + 0.2 * letters
