"""Rewards, verifiers, tools and a game of a user, which every compared run finds beside its config."""

from typing import Any

from grpo_verifiers import Step, Verdict, verifier


def letters(completions: list[str], **_: Any) -> list[float]:
    """A reward of eleven values, which hardly ever are all equal in a group."""
    return [sum(map(ord, text)) % 11 / 11 for text in completions]


def seldom(completions: list[str], **_: Any) -> list[float]:
    """A reward of 0 or 1 that often is the same in all of a group."""
    return [float(sum(map(ord, text)) % 4 == 0) for text in completions]


def partly(completions: list[str], **_: Any) -> list[float | None]:
    """A reward that some completions do not have."""
    return [None if len(text) % 3 == 0 else sum(map(ord, text)) % 7 / 7 for text in completions]


@verifier("vowels", isolation="process")
def vowels(completion: str) -> float:
    """The share of vowels, in a worker process."""
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))


@verifier("digits")
def digits(completion: str) -> float:
    """The share of digits, in the trainer's process."""
    return sum(letter.isdigit() for letter in completion) / max(1, len(completion))


@verifier("fails", on_error="null")
def fails(completion: str) -> float:
    """A check that crashes on some completions."""
    return 1 / (len(completion) % 3)


@verifier("halves")
def halves(completion: str, completion_text: str) -> Verdict:
    """Two steps, judged by the first letter and by the length."""
    middle = len(completion_text) // 2
    steps = (Step(0, middle, float(completion < "m")), Step(middle, len(completion_text), float(middle % 3)))
    return Verdict(0.5, steps=steps)


class Walk:
    """A game: take steps to the right until the goal."""

    def reset(self, goal: int, **_: Any) -> None:
        """Stand at 0."""
        self.at, self.goal = 0, int(goal)

    def go(self) -> str:
        """Take a step."""
        self.at += 1
        return "there" if self.at == self.goal else f"at {self.at}"

    def get_reward(self) -> float:
        """How near the end is."""
        return 1.0 / (1 + abs(self.goal - self.at))

    def get_turn_reward(self) -> float:
        """Whether the step came nearer."""
        return 1.0 if self.at <= self.goal else -0.5

    def state_key(self) -> str:
        """Where the player stands."""
        return f"{self.at} of {self.goal}"


def played() -> Any:
    """Games for the warm start: walks of one to three steps."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": _asked(goal), "solution": _turns(goal)} for goal in (1, 2, 3)] * 8)


def games() -> Any:
    """Games to train on."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": _asked(goal), "goal": goal, "answer": str(goal)} for goal in (1, 2, 3)] * 4)


def _asked(goal: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{goal}"}]


def _turns(goal: int) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for at in range(1, goal + 1):
        call = {"type": "function", "function": {"name": "go", "arguments": "{}"}}
        said = "there" if at == goal else f"at {at}"
        turns += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        turns += [{"role": "tool", "name": "go", "content": said}]
    return [*turns, {"role": "assistant", "content": "ok"}]


def worked() -> Any:
    """Sums for the warm start, half of them with the calculator."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": _asked(n), "solution": _calculated(n)} for n in range(1, 5)] * 6)


def _calculated(number: int) -> list[dict[str, Any]]:
    last = {"role": "assistant", "content": f"\\boxed{{{number}}}"}
    if number % 2:
        return [last]
    function = {"name": "calculator", "arguments": f'{{"expression": "{number}+0"}}'}
    call = {"type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculator", "content": str(number)},
        last,
    ]
