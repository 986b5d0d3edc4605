"""Store samples batch by batch, so that the same command resumes an unfinished evaluation.

``samples.jsonl`` has one sample a line; ``samples.json`` has the settings and, at the end, the results. Only an
evaluation with the same settings resumes a file; others refuse to overwrite it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_plus.evaluation.results import EvalSample, Evaluation
from grpo_verifiers.files import open_own, read_text, write_atomic
from grpo_verifiers.redaction import redact
from grpo_verifiers.stats import MeanEstimate


class StoreError(ValueError):
    """An unusable file of samples."""


class SampleStore:
    """The samples of one evaluation, on disk.

    ``path`` is the file of the samples, ``results_path`` that of settings and results. ``done`` are samples of an
    earlier part of the same evaluation.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Create the file, which ends in ``.jsonl``, or resume it; with ``overwrite`` an existing one is discarded.

        ``settings`` identify the evaluation.
        """
        if path.suffix != ".jsonl":
            raise StoreError(f"the samples file is {path}, but its name must end in .jsonl.")
        self.path, self.results_path = path, path.with_suffix(".json")
        self._settings = json.loads(json.dumps(redact(dict(settings))))
        self.done: list[EvalSample] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not overwrite and (path.exists() or self.results_path.exists()):
                self.done = self._resumed()
            write_atomic(path, "".join(_line(sample) for sample in self.done))
            write_atomic(self.results_path, self._text(None))
            self._file = open_own(path, "a", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"the samples file {path} cannot be written: {error}.") from error

    def add(self, samples: Sequence[EvalSample]) -> None:
        """Append samples."""
        try:
            self._file.write("".join(map(_line, samples)))
            self._file.flush()
        except OSError as error:
            raise StoreError(
                f"the samples file {self.path} cannot be written: {error}. Its samples are complete; the same command "
                "resumes from there."
            ) from error

    def finish(self, evaluation: Evaluation, gains: Mapping[str, MeanEstimate] | None = None) -> None:
        """Write the results, with the ``gains`` since an earlier evaluation by label."""
        self._file.close()
        results = {label: each.as_json() for label, each in evaluation.results.items()}
        rest: dict[str, Any] = {
            "cut_off": evaluation.cut_off,
            "tokens": evaluation.tokens,
            "notes": list(evaluation.notes),
        }
        if evaluation.calls is not None:
            rest |= {"calls": evaluation.calls, "failed_calls": evaluation.failed_calls}
        rest |= {"gain": {label: asdict(each) for label, each in gains.items()}} if gains else {}
        write_atomic(self.results_path, self._text({"verifiers": results, **rest}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _resumed(self) -> list[EvalSample]:
        remedy = "Name another file, or pass --overwrite."
        try:
            settings = dict(json.loads(read_text(self.results_path))["settings"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            present = self.path if self.path.exists() else self.results_path
            problem = f"{present} exists, but {self.results_path} does not name its evaluation"
            raise StoreError(f"{problem}. {remedy}") from error
        if settings != self._settings:
            other = [
                f"{name} was {settings.get(name)!r}, now {self._settings.get(name)!r}"
                for name in dict.fromkeys((*self._settings, *settings))
                if settings.get(name) != self._settings.get(name)
            ]
            raise StoreError(f"{self.path} is of another evaluation ({'; '.join(other)}). {remedy}")
        if not self.path.exists():
            return []
        try:
            lines = read_text(self.path).splitlines(keepends=True)
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path} is not text ({error}). {remedy}") from error
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # incomplete: the process was killed while writing
        samples = []
        for number, line in enumerate(lines, 1):
            try:
                samples.append(EvalSample.from_json(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(f"{self.path}, line {number}: {error} {remedy}") from error
        return samples

    def _text(self, results: Mapping[str, Any] | None) -> str:
        return json.dumps({"settings": self._settings, "results": results}, indent=2, ensure_ascii=False) + "\n"


def _line(sample: EvalSample) -> str:
    # Lone surrogates cannot be written as UTF-8; escaped they survive.
    return json.dumps(sample.as_json(), ensure_ascii=True) + "\n"
