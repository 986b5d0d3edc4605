r"""Checks per second of the math verifier against math-verify, on the same completions, in one run.

Completions are 12,000 characters of worked mathematics each; 70% of the answers are integers and simple fractions, the
rest LaTeX; half of them are right. Rounds alternate (A B A B) and every round has data of its own, so that no cache
helps across rounds. Each side is measured as a trainer calls it: once per completion, with the gold as stored.

    python benchmarks/math_throughput.py             one core: distinct answers, and batches as in GRPO
    python benchmarks/math_throughput.py --workers   in worker processes, with one and with two of them
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

CHARACTERS = 12_000
SENTENCES = (
    "Let $x_{%d}$ be the number of ways to do this, so that $x_{%d} = \\frac{%d}{%d}$ in the first case. ",
    "We substitute $y = %d$ into the equation and get \\(y^2 - %dy + %d = 0\\), hence the discriminant is %d. ",
    "Counting again, there are %d + %d = %d possibilities, of which %d have to be left out. ",
    "By symmetry \\[\\sum_{k=1}^{%d} a_k = %d \\cdot \\sqrt{%d} + %d,\\] which simplifies the problem. ",
)
Case = tuple[str, str, bool]  # completion, gold, whether the answer was written to be right


def answer(rng: random.Random) -> tuple[str, str, str]:
    """A gold answer, another way to write it, and a wrong answer of the same kind."""
    a, b, c = (rng.randint(2, 99) for _ in range(3))
    if rng.random() < 0.7:
        if rng.random() < 0.7:
            n = rng.randint(-999, 99_999)
            return str(n), str(n), str(n + rng.choice([-1, 1, 10]))
        b += b == a
        return f"\\frac{{{a}}}{{{97 + b}}}", f"{a}/{97 + b}", f"\\frac{{{a + 1}}}{{{97 + b}}}"
    return rng.choice([
        (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{b}}} \\cdot {a}", f"{a + 1}\\sqrt{{{b}}}"),
        (f"({a},{b}]", f"\\left( {a}, {b} \\right]", f"[{a},{b}]"),
        (f"{a}x^2+{b}x-{c}", f"-{c}+{b}x+{a}x^2", f"{a}x^2+{b}x+{c}"),
        (f"{a}+{b}i", f"{b}i+{a}", f"{a}-{b}i"),
        (f"\\frac{{{a}\\pi}}{{{b}}}", f"\\frac{{{a}}}{{{b}}}\\pi", f"\\frac{{{a + 1}\\pi}}{{{b}}}"),
        (f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}", f"\\begin{{bmatrix}}{a}\\\\{b}\\end{{bmatrix}}",
         f"\\begin{{pmatrix}}{b}\\\\{a + 1}\\end{{pmatrix}}"),
        (f"y = {a}x + {b}", f"y={a}x+{b}", f"y = {b}x + {a + 100}"),
        (f"{a}\\sin(2x)", f"{2 * a}\\sin x\\cos x", f"{a}\\cos(2x)"),
    ])  # fmt: skip


def completion(rng: random.Random, final: str) -> str:
    """A long chain of thought that ends in a box."""
    parts, length = [], 0
    while length < CHARACTERS - 60 - len(final):
        sentence = rng.choice(SENTENCES) % tuple(rng.randint(1, 999) for _ in range(4))
        parts.append(sentence)
        length += len(sentence)
    return f"{''.join(parts)}\nTherefore the final answer is $\\boxed{{{final}}}$."


def distinct(rng: random.Random, count: int) -> list[Case]:
    """Every completion for a prompt of its own."""
    found = []
    for _ in range(count):
        gold, same, wrong = answer(rng)
        right = rng.random() < 0.5
        found.append((completion(rng, same if right else wrong), gold, right))
    return found


def grouped(rng: random.Random, count: int, group: int = 8) -> list[Case]:
    """Groups of completions for one prompt whose answers repeat."""
    found = []
    for _ in range(count // group):
        gold, same, wrong = answer(rng)
        for _ in range(group):
            right = rng.random() < 0.5
            final = rng.choice([same, gold]) if right else wrong
            found.append((completion(rng, final), gold, right))
    return found


def ours(cases: Sequence[Case]) -> list[bool]:
    """Our verdicts, in this process."""
    from grpo_verifiers.math import math

    return [math(text, gold).score == 1 for text, gold, _ in cases]


def theirs(cases: Sequence[Case]) -> list[bool]:
    """math-verify's verdicts, with the gold in dollar signs."""
    from math_verify import parse, verify

    return [bool(verify(parse(f"${gold}$"), parse(text))) for text, gold, _ in cases]


def seconds(check: Callable[[Sequence[Case]], list[bool]], cases: Sequence[Case]) -> tuple[float, float]:
    """Time of a pass, and the share of answers judged as they were written to be."""
    started = time.perf_counter()
    verdicts = check(cases)
    spent = time.perf_counter() - started
    return spent, statistics.fmean(verdict == right for verdict, (_, _, right) in zip(verdicts, cases, strict=True))


def compare(name: str, make: Callable[[random.Random, int], list[Case]], count: int, rounds: int) -> dict[str, float]:
    """Alternate both sides and print medians."""
    rng = random.Random(name)
    warm = make(rng, 16)
    ours(warm)
    theirs(warm)
    times: dict[str, list[float]] = {"ours": [], "math-verify": []}
    right: dict[str, list[float]] = {"ours": [], "math-verify": []}
    for _ in range(rounds):
        cases = make(rng, count)
        for side, check in (("ours", ours), ("math-verify", theirs)):
            spent, share = seconds(check, cases)
            times[side].append(spent)
            right[side].append(share)
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["math-verify"], strict=True))
    for side, found in times.items():
        rate = count / statistics.median(found)
        print(f"{name}, {side}: {rate:.0f} checks/s, {statistics.fmean(right[side]):.1%} judged as written")
    print(f"{name}: {ratio:.1f} times math-verify (median of {rounds} rounds)", flush=True)
    return {"ratio": ratio, "checks_per_second": count / statistics.median(times["ours"])}


def hard(rng: random.Random, count: int) -> list[Case]:
    """Right answers that only values at sixty digits decide."""
    found = []
    for _ in range(count):
        a, b, c = (rng.randint(2, 999) for _ in range(3))
        gold = f"{a}\\sin(2x)+{b}\\cos^2(x)+\\ln(x^{{{2 * c + 1}}})"
        same = f"{2 * a}\\sin x\\cos x+{b}-{b}\\sin^2(x)+{2 * c + 1}\\ln(x)"
        found.append((completion(rng, same), gold, True))
    return found


def in_worker(completion: str, answer: str) -> Any:
    """The verifier as a check of its own, without the memory of equal questions."""
    from grpo_verifiers.math import math

    return math(completion, answer)


def through_workers(count: int) -> float:
    """Checks per second through the verifier and its worker processes, in this process's environment."""
    from grpo_verifiers import get_verifier

    rng = random.Random(0)
    verifier = get_verifier(in_worker, timeout=30.0)
    for cases in (hard(rng, 16), hard(rng, count)):  # the first batch starts the workers
        started = time.perf_counter()
        texts, golds = [text for text, _, _ in cases], [gold for _, gold, _ in cases]
        verifier.verify_batch([""] * len(texts), texts, None, answer=golds)
        rate = len(cases) / (time.perf_counter() - started)
    return rate


def scaling(count: int, rounds: int) -> dict[str, float]:
    """One worker against two, alternating."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, found in rates.items():
            environment = {**os.environ, "GRPO_VERIFIERS_WORKERS": str(workers)}
            command = [sys.executable, __file__, "--child", "--count", str(count)]
            child = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
            found.append(float(child.stdout.split()[-1]))
    for workers, found in rates.items():
        print(f"{workers} worker{'s' * (workers > 1)}: {statistics.median(found):.0f} checks/s")
    ratio = statistics.median(rates[2]) / statistics.median(rates[1])
    print(f"two workers: {ratio:.2f} times one (median of {rounds} rounds)", flush=True)
    return {"scaling": ratio}


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=64, help="completions a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", action="store_true", help="measure one and two worker processes instead")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    if options.child:
        print(through_workers(options.count))
        return
    if options.workers:
        figures = {"workers": scaling(options.count, options.rounds)}
    else:
        figures = {
            "distinct": compare("distinct answers", distinct, options.count, options.rounds),
            "grouped": compare("groups of 8", grouped, options.count, options.rounds),
        }
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - one file, written once
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
