"""A disk that is full."""

from pathlib import Path


def fill(disk: Path, left: int) -> None:
    with (disk / "other").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - left)
