"""The distinct prompts of a dataset, with their rows."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.selection.history import digest_of

PICTURES = ("image", "images")


class DatasetPrompts:
    """The distinct prompts of a dataset in the order of their first rows, by digest.

    Attributes:
        digests: one a prompt.
        index: digest to number.
        rows: (P,) number of rows of each.
        columns: columns of the dataset by name, one value a prompt.
    """

    def __init__(self, data: Any) -> None:
        self.index: dict[bytes, int] = {}
        rows_of: list[list[int]] = []
        data_hash = hashlib.sha256()
        for row, prompt in enumerate(column_of(data, "prompt")):
            digest = digest_of(prompt)
            data_hash.update(digest)
            number = self.index.setdefault(digest, len(rows_of))
            if number == len(rows_of):
                rows_of.append([])
            rows_of[number].append(row)
        self.digests = list(self.index)
        self.rows = torch.tensor([len(rows) for rows in rows_of], dtype=torch.float64)
        self.columns: Mapping[str, Sequence[Any]] = Columns(data, [rows[0] for rows in rows_of])
        self.data = data_hash.hexdigest()
        self._rows_of = rows_of
        self._number = {row: number for number, rows in enumerate(rows_of) for row in rows}

    def __len__(self) -> int:
        return len(self.digests)

    def row(self, prompt: int, generator: torch.Generator) -> int:
        """Return a random row of a prompt; with one row the generator does not advance."""
        rows = self._rows_of[prompt]
        if len(rows) == 1:
            return rows[0]
        return rows[int(torch.randint(len(rows), (1,), generator=generator))]

    def of_row(self, row: int) -> int:
        """Return the prompt of a row."""
        return self._number[row]

    def packed(self, chosen: Sequence[int]) -> Tensor:
        """(len, 16) bytes: the digests of some prompts."""
        joined = bytearray(b"".join(self.digests[prompt] for prompt in chosen))
        return torch.frombuffer(joined, dtype=torch.uint8).reshape(-1, 16) if joined else _NO_DIGESTS.clone()

    def numbers_of(self, packed: Tensor) -> list[int | None]:
        """Return the numbers of packed digests; None: no such prompt."""
        return [self.index.get(bytes(row)) for row in packed.tolist()]


_NO_DIGESTS = torch.zeros((0, 16), dtype=torch.uint8)


class Columns(Mapping[str, Sequence[Any]]):
    """The columns of a dataset at some rows, each read at its first use."""

    def __init__(self, data: Any, rows: Sequence[int]) -> None:
        self._data, self._rows = data, rows
        self._read: dict[str, Sequence[Any]] = {}

    def __getitem__(self, name: str) -> Sequence[Any]:
        if name not in self._names():
            raise KeyError(name)
        if name not in self._read:
            values = list(column_of(self._data, name))
            self._read[name] = [values[row] for row in self._rows]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> Sequence[str]:
        names = getattr(self._data, "column_names", None)
        if names is not None:
            return list(names)
        return list(self._data[0]) if len(self._data) else []


def column_of(data: Any, name: str) -> Iterator[Any]:
    """Return the values of a column, without reading the rest."""
    if hasattr(data, "select_columns"):
        batches = data.select_columns([name]).iter(1000)  # row by row takes three times as long
        return (value for batch in batches for value in batch[name])
    return (data[row][name] for row in range(len(data)))
