"""Pairs and steps that a rule labels, and a small model to learn the rule."""

import json
import random

import pytest


def pairs(count, *, seed=0, shuffled=False, chat=False):
    """The better side ends with a low digit; shuffled, a coin says which side is the better one."""
    draws = random.Random(seed)
    rows = []
    for at in range(count):
        low, high = str(draws.randint(0, 4)), str(draws.randint(5, 9))
        if shuffled and draws.random() < 0.5:
            low, high = high, low
        row = {"prompt": f"{at}: ", "chosen": f"is {low}", "rejected": f"is {high}"}
        row |= {"kind": "even" if at % 2 == 0 else "odd"}
        if chat:
            row |= {"prompt": [{"role": "user", "content": row["prompt"]}]}
            row |= {side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
        rows.append(row)
    return rows


def steps(count, *, seed=0):
    """A step with a low digit is good."""
    draws = random.Random(seed)
    rows = []
    for at in range(count):
        digits = [draws.randint(0, 9) for _ in range(draws.randint(1, 4))]
        labels = [int(digit < 5) for digit in digits]
        rows.append({"prompt": f"{at}?", "completions": [f"is {digit}" for digit in digits], "labels": labels})
    return rows


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    from grpo_plus.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("base")
    make_tiny_model(folder, initializer_range=0.05)
    return folder


@pytest.fixture
def data(tmp_path):
    write(tmp_path / "pairs.jsonl", pairs(160))
    write(tmp_path / "steps.jsonl", steps(96))
    return tmp_path
