"""Reward functions for TRL: a verifier that runs ahead and whose verdicts are validated, and a reward model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.settings import REWARD_MODEL
from grpo_plus.sampling.token_spans import Decode
from grpo_verifiers.base import Pending, log_verdicts
from grpo_verifiers.errors import VerifierError, VerifierFailedError
from grpo_verifiers.errors.messages import counted, readable, type_name
from grpo_verifiers.exec.failure import error_fields
from grpo_verifiers.steps.aggregate import reaggregate
from grpo_verifiers.verdict import LARGEST, MAX_DETAIL, Status, Verdict, checked_copy

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

ROW_KEYS = {"prompt", "completion", "completion_ids"}
"""Keys of a row that TRL does not pass to reward functions as columns."""
_ELSEWHERE = Verdict(None, Status.NOT_APPLICABLE, "another verifier checks this row")


class Decoded(Sequence[str]):
    """Sampled ids as text with special tokens, decoded on access."""

    def __init__(self, ids: Sequence[Sequence[int]], decode: Decode) -> None:
        self._ids = ids
        self._decode = decode

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: Any) -> Any:
        return self._decode(self._ids[row])


class LiveVerifier:
    """A verifier as a reward function of TRL: `start` submits the rows, and TRL's call collects the verdicts."""

    def __init__(
        self,
        verifier: "Verifier",
        *,
        weight: float | None = None,
        only: str | None = None,
        aggregate: str | None = None,
    ) -> None:
        """Wrap a verifier.

        ``weight``: by default that of ``reward_weights``. ``aggregate``: from the scores of steps to the score of the
        verdict, by default the verifier's own. ``only``: a dataset column; the verifier checks rows that name it there.
        The attribute ``largest`` is the largest valid score, which depends on all weights (`Verifiers.weigh`).
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
        """The verifier's count of consecutive failures; empty at the start."""
        state = self.verifier.state_dict()
        return {"verifier": state} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
        """Submit the rows for this verifier; returns at once."""
        total = len(completions)
        rows = list(range(total))
        if self.only is not None:
            rows = [row for row in rows if columns[self.only][row] == self.verifier.label]

        def select(values: Any) -> Any:
            return None if values is None else [values[row] for row in rows]

        ids = select(completion_ids)
        chosen = {name: select(values) for name, values in columns.items()}
        if decode is not None and ids is not None:
            chosen.setdefault("completion_text", Decoded(ids, decode))
        with self._wrapped_errors():
            self._pending = rows, total, self.verifier.start(select(prompts), select(completions), ids, **chosen)

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
            lists = {key: value for key, value in columns.items() if isinstance(value, list)}
            self.start(prompts, completions, completion_ids, lists)
        assert self._pending is not None
        rows, total, pending = self._pending
        self._pending = None
        with self._wrapped_errors():
            results, seconds = list(pending.result()), [float(second) for second in pending.seconds]
            if len(results) != len(rows):
                raise ValueError(f"it gave {counted(len(results), 'verdict')} for {counted(len(rows), 'completion')}")
        verdicts = [self._validated(result) for result in results]
        self.verdicts = [_ELSEWHERE] * total
        for row, verdict in zip(rows, verdicts, strict=True):
            self.verdicts[row] = self._reward_verdict(verdict)
        log_verdicts(self.verifier.label, self.verdicts, seconds, log_extra, log_metric)
        return [verdict.score for verdict in self.verdicts]

    @contextlib.contextmanager
    def _wrapped_errors(self) -> Iterator[None]:
        """An error of a foreign verifier class ends the run: it has to count its failures itself."""
        try:
            yield
        except VerifierError:
            raise
        except Exception as error:
            reason = readable(f"{type_name(type(error))}: {error_fields(error)['message']}", MAX_DETAIL)
            raise VerifierFailedError(
                f"verifier {self.verifier.label!r} failed on a batch; repair it: {reason}"
            ) from error

    def _validated(self, result: Any) -> Verdict:
        try:
            return checked_copy(result)
        except Exception as error:  # noqa: BLE001 - a hostile object may raise any error
            return self.verifier.failed(f"gave no verdict: {error_fields(error)['message']}")

    def _reward_verdict(self, verdict: Verdict) -> Verdict:
        """The verdict with the score for the estimator, which must fit into the sum of the rewards."""
        try:
            verdict = reaggregate(verdict, self.aggregate)
        except (ValueError, OverflowError) as error:
            return self.verifier.failed(f"the {self.aggregate} of its steps is no score: {error}")
        if verdict.score is None or abs(verdict.score) <= self.largest:
            return verdict
        return self.verifier.failed(
            f"the score {verdict.score:g} is beyond ±{self.largest:.8g}: weighted and added to the other rewards, it "
            "would not fit into float32"
        )

    def collect(self, log_metric: Callable[[str, float], None]) -> list[float | None]:
        """The scores of the started rows; empty without any."""
        return self(None, [], log_metric=log_metric) if self._pending is not None else []

    def settle(self) -> None:
        """Wait for uncollected verdicts after an error elsewhere; the next batch must not get them."""
        if self._pending is not None:
            pending = self._pending[2]
            self._pending = None
            with contextlib.suppress(Exception):  # an earlier error is being raised
                pending.result()


class RewardColumn:
    """The reward model of the run as a reward function of TRL; ``weight`` is its reward weight."""

    def __init__(self, rewards: Callable[[], list[float]], weight: float) -> None:
        self.__name__ = REWARD_MODEL
        self.weight = weight
        self._rewards = rewards

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:  # noqa: ARG002 - TRL's signature
        """TRL's reward signature."""
        return self._rewards()
