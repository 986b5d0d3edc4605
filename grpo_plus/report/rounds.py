"""The ends of a run's rounds, as marks in its curves."""

from typing import Any

from grpo_plus.record.reader import Run
from grpo_plus.report.panels import thinned

MARKS = 400
"""Most marks of a page."""
DONE = {
    "reference": "reference refreshed",
    "reward_model": "reward model trained",
    "prompts": "prompts chosen anew",
}


def rounds(run: Run) -> list[dict[str, Any]]:
    """Step, number, what was done in words, and seconds of each round; evenly thinned where there are too many."""
    ended = run.rounds()
    return [
        {
            "step": one["step"],
            "number": one["number"],
            "did": ", ".join(DONE.get(each, each) for each in one["did"]) or "nothing was due",
            "seconds": one.get("seconds"),
        }
        for one in (ended[at] for at in thinned(len(ended), MARKS))
    ]
