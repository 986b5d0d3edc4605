"""Rows with solutions, and what is kept of warm starts."""

QUESTIONS = [f"{a}+{b}" for a in range(4) for b in range(1, 5)]


def solutions(**columns):
    sums = {asked: eval(asked) for asked in QUESTIONS}
    rows = [{"question": asked, "solution": f"{asked}={found}", "answer": str(found)} for asked, found in sums.items()]
    return [{**row, **{name: make(row) for name, make in columns.items()}} for row in rows]


def kept_in(folder):
    return sorted(path.parent for path in folder.glob("*/warm_start.json"))


def starts(examples):
    """The length of each prompt."""
    return [mask.index(1) for mask in examples.masks]
