"""Wrong answers accepted and right ones refused, on the labelled sets in tests/cases; math-verify on the same rows.

    python benchmarks/labelled.py                 a table for maths, one for code
    python benchmarks/labelled.py maths --rows    and every row that is judged against its label

Labels are recomputed by tests/verifiers/test_labelled.py. math-verify reads "$gold$" and the completion, in a
process of its own, with its timeouts and a deadline of 30 s around each row: late or raised is not accepted.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "tests" / "cases"
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """The rows of a labelled set; each knows its line."""
    lines = map(json.loads, (CASES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        row | {"line": number}
        for number, line in enumerate(lines, start=1)
        for row in (_answers(line) if "form" in line else [line])
    ]


def _answers(question: Row) -> Iterator[Row]:
    """A row for each answer of a question."""
    for label in ("right", "wrong"):
        for text, *argument in question[label]:
            row = {"kind": question["kind"], "gold": question["gold"], question["form"]: text}
            yield row | {"right": label == "right", "source": [*question["source"], *argument]}


def completion(row: Row) -> str:
    """What a model wrote: the row's completion, its answer in a box, or its program in a fence."""
    if "program" in row:
        return row.get("completion", f"Here it is:\n```python\n{row['program']}```\n")
    return row["completion"] if "completion" in row else f"So the answer is $\\boxed{{{row['answer']}}}$."


def ours(rows: Sequence[Row]) -> list[bool]:
    """Verdicts of the verifier `math`."""
    from grpo_verifiers.math import math

    return [math(completion(row), row["gold"]).score == 1 for row in rows]


def their_verdict(text: str, gold: str) -> bool:
    """math-verify's verdict, with the gold in dollar signs."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return bool(verify(parse(f"${gold}$"), parse(text)))


def theirs(rows: Sequence[Row], deadline: float = 30.0) -> list[bool]:
    """math-verify's verdicts; its timeouts are alarms, which need the main thread of a process."""
    verdicts, spawn = [], multiprocessing.get_context("spawn")
    pool = spawn.Pool(1)
    for row in rows:
        try:
            verdicts.append(pool.apply_async(their_verdict, (completion(row), row["gold"])).get(timeout=deadline))
        except multiprocessing.TimeoutError:
            pool.terminate()
            pool = spawn.Pool(1)
            verdicts.append(False)
        except Exception:  # noqa: BLE001 - a checker that raises has not accepted
            verdicts.append(False)
    pool.terminate()
    return verdicts


def code(rows: Sequence[Row]) -> list[bool]:
    """Verdicts of the verifier `code`, in the best box of this machine."""
    from grpo_verifiers import get_verifier

    verifier = get_verifier("code", time_limit=2.0)
    verdicts = verifier.verify_batch(
        None, [completion(row) for row in rows], None, tests=[row["tests"] for row in rows]
    )
    return [verdict.score == 1 for verdict in verdicts]


def rates(rows: Sequence[Row], verdicts: Sequence[bool]) -> tuple[int, int, int, int]:
    """Wrong rows, of these accepted, right rows, of these refused."""
    pairs = [(row["right"], verdict) for row, verdict in zip(rows, verdicts, strict=True)]
    wrong = [verdict for right, verdict in pairs if not right]
    right = [verdict for right, verdict in pairs if right]
    return len(wrong), sum(wrong), len(right), len(right) - sum(right)


def line(name: str, rows: Sequence[Row], sides: dict[str, Sequence[bool]]) -> str:
    """A row of the table."""
    cells = [f"{name[:34]:34s} {len(rows):5d}"]
    for verdicts in sides.values():
        wrongs, accepted, rights, refused = rates(rows, verdicts)
        cells.append(f"{1000 * accepted / max(wrongs, 1):8.1f} {100 * refused / max(rights, 1):8.1f}%")
    return "   ".join(cells)


def table(title: str, rows: Sequence[Row], sides: dict[str, Sequence[bool]]) -> None:
    """Wrong accepted per 1,000 and right refused, for each kind and in all."""
    print(f"\n{title}: wrong accepted per 1,000, right refused")
    print("   ".join([f"{'kind':34s} {'rows':>5s}", *(f"{side:>18s}" for side in sides)]))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        chosen = [index for index, row in enumerate(rows) if row["kind"] == kind]
        part = {side: [verdicts[index] for index in chosen] for side, verdicts in sides.items()}
        print(line(kind, [rows[index] for index in chosen], part))
    print(line("all", rows, sides), flush=True)


def against_label(rows: Sequence[Row], verdicts: Sequence[bool]) -> list[str]:
    """Rows that are judged against their label, in words."""
    return [
        f"line {row['line']}, {row['kind']}: {'wrong accepted' if verdict else 'right refused'}: "
        + json.dumps(
            {key: row[key] for key in ("gold", "answer", "program", "completion", "tests") if key in row},
            ensure_ascii=False,
        )
        for row, verdict in zip(rows, verdicts, strict=True)
        if row["right"] != verdict
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help="maths, code (default: both)")
    parser.add_argument("--rows", action="store_true", help="list what is judged against its label")
    parser.add_argument("--alone", action="store_true", help="without math-verify")
    options = parser.parse_args(argv)
    if unknown := set(options.sets) - {"maths", "code"}:
        parser.error(f"unknown set {min(unknown)!r}: choose from maths, code")
    own: dict[str, Callable[[Sequence[Row]], list[bool]]] = {"maths": ours, "code": code}
    for name in options.sets or own:
        rows = rows_of(name)
        sides = {f"grpo_plus {'math' if name == 'maths' else 'code'}": own[name](rows)}
        if name == "maths" and not options.alone:
            sides["math-verify"] = theirs(rows)
        table(name, rows, sides)
        if options.rows:
            print("\n".join(against_label(rows, next(iter(sides.values())))))


if __name__ == "__main__":
    main()
