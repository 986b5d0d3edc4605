"""Removing a folder that a hostile program has filled: any depth, any permissions, no link followed."""

import contextlib
import os
import stat


def wipe(root: str) -> None:
    """Remove ``root`` and everything below it; what is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(OSError):
            os.rmdir(root)  # noqa: PTH106 - no pathlib in the box
            return
        _open_up(root)
        prefix = os.path.join(root, "." + os.urandom(12).hex())  # noqa: PTH118 - no pathlib in the box
        count = 0
        while entries := os.listdir(root):  # noqa: PTH208 - same
            for name in entries:
                path = os.path.join(root, name)  # noqa: PTH118 - same
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)  # noqa: PTH108 - same
                    continue
                # Lifting the contents up one level, instead of descending, needs neither a stack nor long paths.
                _open_up(path)
                for inner in os.listdir(path):  # noqa: PTH208 - same
                    deep = os.path.join(path, inner)  # noqa: PTH118 - same
                    _open_up(deep)
                    os.rename(deep, f"{prefix}{count}")  # noqa: PTH104 - same
                    count += 1
                os.rmdir(path)  # noqa: PTH106 - same
        os.rmdir(root)  # noqa: PTH106 - same


def _open_up(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.chmod(path, 0o700)  # noqa: PTH101 - same
