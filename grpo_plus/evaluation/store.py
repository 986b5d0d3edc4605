"""Store samples as they are drawn, so that the same command resumes an unfinished evaluation.

``samples.jsonl`` holds one sample a line; ``samples.json`` holds the settings and, at the end, the results. Only an
evaluation with the same settings resumes a file; others refuse to overwrite it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_plus.evaluation.results import Evaluation, Sample
from grpo_verifiers.files import open_own, read_text, write_atomic
from grpo_verifiers.redaction import redact
from grpo_verifiers.stats import MeanEstimate


class StoreError(ValueError):
    """A file of samples cannot be used."""


class Store:
    """The samples of one evaluation, on disk.

    ``path`` is the file of the samples, ``beside`` that of settings and results. ``done`` are samples of an earlier
    part of the same evaluation.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Create the file, which ends in ``.jsonl``, or resume it; with ``overwrite`` an existing one is discarded.

        ``settings`` identify the evaluation.
        """
        if path.suffix != ".jsonl":
            raise StoreError(f"the samples file is {path}, but its name must end in .jsonl.")
        self.path, self.beside = path, path.with_suffix(".json")
        self._settings = json.loads(json.dumps(redact(dict(settings))))
        self.done: list[Sample] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not overwrite and (path.exists() or self.beside.exists()):
                self.done = self._taken_up()
            write_atomic(path, "".join(_line(sample) for sample in self.done))
            write_atomic(self.beside, self._text(None))
            self._file = open_own(path, "a", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"the samples file {path} cannot be written: {error}.") from error

    def add(self, samples: Sequence[Sample]) -> None:
        """Append samples."""
        try:
            self._file.write("".join(map(_line, samples)))
            self._file.flush()
        except OSError as error:
            raise StoreError(
                f"the samples file {self.path} cannot be written: {error}. What is in it is whole; the same command "
                "goes on from there."
            ) from error

    def finish(self, evaluation: Evaluation, gains: Mapping[str, MeanEstimate] | None = None) -> None:
        """Write the results beside the samples, with the ``gains`` since an earlier evaluation by label."""
        self._file.close()
        results = {label: found.as_json() for label, found in evaluation.results.items()}
        rest: dict[str, Any] = {
            "cut_off": evaluation.cut_off,
            "tokens": evaluation.tokens,
            "notes": list(evaluation.notes),
        }
        if evaluation.calls is not None:
            rest |= {"calls": evaluation.calls, "failed_calls": evaluation.failed_calls}
        rest |= {"gain": {label: asdict(each) for label, each in gains.items()}} if gains else {}
        write_atomic(self.beside, self._text({"verifiers": results, **rest}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _taken_up(self) -> list[Sample]:
        try:
            settings = dict(json.loads(read_text(self.beside))["settings"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            there = self.path if self.path.exists() else self.beside
            raise StoreError(
                f"{there} exists, but {self.beside} does not say of which evaluation it is. Name another file, or pass "
                "--overwrite."
            ) from error
        if settings != self._settings:
            other = [
                f"{name} was {settings.get(name)!r}, now {self._settings.get(name)!r}"
                for name in dict.fromkeys((*self._settings, *settings))
                if settings.get(name) != self._settings.get(name)
            ]
            raise StoreError(
                f"{self.path} holds another evaluation ({'; '.join(other)}). Name another file, or pass --overwrite."
            )
        if not self.path.exists():
            return []
        try:
            lines = read_text(self.path).splitlines(keepends=True)
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path} is no text ({error}). Name another file, or pass --overwrite.") from error
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # cut by a kill while it was written
        samples = []
        for number, line in enumerate(lines, 1):
            try:
                samples.append(Sample.from_json(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(
                    f"{self.path}, line {number}: {error} Name another file, or pass --overwrite."
                ) from error
        return samples

    def _text(self, results: Mapping[str, Any] | None) -> str:
        return json.dumps({"settings": self._settings, "results": results}, indent=2, ensure_ascii=False) + "\n"


def _line(sample: Sample) -> str:
    # Lone surrogates cannot be written as UTF-8; escaped they survive.
    return json.dumps(sample.as_json(), ensure_ascii=True) + "\n"
