"""Reward functions of TRL: a verifier, started beforehand and held to giving verdicts; a reward model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.reward_model_options import NAME
from grpo_plus.sampling.token_spans import Decode
from grpo_verifiers.base import Pending, log_verdicts
from grpo_verifiers.errors import VerifierError, VerifierFailedError
from grpo_verifiers.errors.messages import readable, type_name
from grpo_verifiers.exec.failure import error_fields
from grpo_verifiers.steps.aggregate import reaggregate
from grpo_verifiers.verdict import LARGEST, MAX_DETAIL, Status, Verdict, checked_copy

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

ROW_KEYS = {"prompt", "completion", "completion_ids"}
"""Keys of a row that TRL passes to no reward function as a column."""
_ELSEWHERE = Verdict(None, Status.NOT_APPLICABLE, "another verifier checks this row")


class Decoded(Sequence[str]):
    """Sampled ids as text, special tokens included, decoded only where somebody looks."""

    def __init__(self, ids: Sequence[Sequence[int]], decode: Decode) -> None:
        """Hold the ids."""
        self._ids = ids
        self._decode = decode

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: Any) -> Any:
        """The text of one completion."""
        return self._decode(self._ids[row])


class LiveVerifier:
    """A verifier as one of TRL's reward functions: what was started beforehand is collected when TRL asks."""

    def __init__(
        self,
        verifier: "Verifier",
        *,
        weight: float | None = None,
        only: str | None = None,
        aggregate: str | None = None,
    ) -> None:
        """Wrap a verifier.

        Without a weight ``reward_weights`` has it; without an aggregate the verifier's own makes the score of a verdict
        with steps from theirs. A row is checked only if its dataset column ``only``, where given, names this verifier.

        ``largest`` is the largest score that it may give; the weights of all rewards decide (`Verifiers.weigh`).
        """
        self.verifier = verifier
        self.aggregate = aggregate
        self.weight = weight
        self.largest = LARGEST
        self.only = only
        self.__name__ = verifier.label
        self.verdicts: list[Verdict] = []
        self._pending: tuple[list[int], int, Pending] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Failures in a row, as the verifier counts them; empty at the start."""
        state = self.verifier.state_dict()
        return {"verifier": state} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        if state["verifier"]:
            self.verifier.load_state_dict(state["verifier"])

    def start(
        self,
        prompts: Any,
        completions: Any,
        completion_ids: Any,
        columns: Mapping[str, list[Any]],
        decode: Decode | None = None,
    ) -> None:
        """Submit every row that is this verifier's to check; returns at once."""
        total = len(completions)
        rows = list(range(total))
        if self.only is not None:
            rows = [row for row in rows if columns[self.only][row] == self.verifier.label]

        def picked(values: Any) -> Any:
            return None if values is None else [values[row] for row in rows]

        ids = picked(completion_ids)
        chosen = {name: picked(values) for name, values in columns.items()}
        if decode is not None and ids is not None:
            chosen.setdefault("completion_text", Decoded(ids, decode))
        with self._working():
            self._pending = rows, total, self.verifier.start(picked(prompts), picked(completions), ids, **chosen)

    def __call__(
        self,
        prompts: Any,
        completions: Any,
        completion_ids: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """TRL's reward signature."""
        if self._pending is None:
            held = {key: value for key, value in columns.items() if isinstance(value, list)}
            self.start(prompts, completions, completion_ids, held)
        assert self._pending is not None
        rows, total, pending = self._pending
        self._pending = None
        with self._working():
            given, seconds = _collected(pending, len(rows))
        found = [self._remade(verdict) for verdict in given]
        self.verdicts = [_ELSEWHERE] * total
        for row, verdict in zip(rows, found, strict=True):
            self.verdicts[row] = self._rewarding(verdict)
        log_verdicts(self.verifier.label, self.verdicts, seconds, log_extra, log_metric)
        return [verdict.score for verdict in self.verdicts]

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """End the run with the error of a verifier class that is not ours: what a failure means is its own to say."""
        try:
            yield
        except VerifierError:
            raise
        except Exception as error:
            reason = readable(f"{type_name(type(error))}: {error_fields(error)['message']}", MAX_DETAIL)
            raise VerifierFailedError(
                f"verifier {self.verifier.label!r} failed on a batch; repair it: {reason}"
            ) from error

    def _remade(self, verdict: Any) -> Verdict:
        try:
            return checked_copy(verdict)
        except Exception as error:  # noqa: BLE001 - a hostile object raises what it likes
            return self.verifier.failed(f"gave no verdict: {error_fields(error)['message']}")

    def _rewarding(self, verdict: Verdict) -> Verdict:
        """The verdict with the score that the estimator will read, which has to fit into the sum of the rewards."""
        try:
            verdict = reaggregate(verdict, self.aggregate)
        except (ValueError, OverflowError) as error:
            return self.verifier.failed(f"the {self.aggregate} of its steps is no score: {error}")
        if verdict.score is None or abs(verdict.score) <= self.largest:
            return verdict
        return self.verifier.failed(
            f"the score {verdict.score:g} is beyond ±{self.largest:.8g}: with its weight, and the other rewards "
            "beside it, the sum would not fit into float32"
        )

    def collect(self, log_metric: Callable[[str, float], None]) -> list[float | None]:
        """The scores of what was started, where any was."""
        return self(None, [], log_metric=log_metric) if self._pending is not None else []

    def settle(self) -> None:
        """Wait for what nobody collected, after a failure elsewhere, so that no answer meets the next batch."""
        if self._pending is not None:
            pending = self._pending[2]
            self._pending = None
            with contextlib.suppress(Exception):  # an earlier error is on its way up
                pending.result()


class RewardColumn:
    """A reward model that trains along, as one of TRL's reward functions; ``weight`` is that of its column."""

    def __init__(self, rewards: Callable[[], list[float]], weight: float) -> None:
        self.__name__ = NAME
        self.weight = weight
        self._rewards = rewards

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:  # noqa: ARG002 - TRL's signature
        """TRL's reward signature."""
        return self._rewards()


def _collected(pending: Pending, count: int) -> tuple[list[Any], list[float]]:
    given, seconds = list(pending.result()), [float(second) for second in pending.seconds]
    if len(given) != count:
        raise ValueError(f"it gave {len(given)} verdicts for {count} completions")
    return given, seconds
