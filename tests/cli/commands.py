"""The command line in the process of the tests, and what it finds installed."""

import re
import sys

from tests import started


def install(source, site):
    """Have pip install a package in a folder, without its dependencies and without a network."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    done = started.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return site


class Commands:
    """Runs a command; gives exit code, output and errors."""

    def __init__(self, run):
        self.run = run

    def __call__(self, *words):
        return self.run(*words)

    def done(self, *words):
        code, out, err = self.run(*words)
        assert code == 0, err
        return out

    def refused(self, *words):
        code, out, err = self.run(*words)
        assert code == 2, out + err
        return err + re.sub(r"\s*\n\s+", " ", out) * (words[0] == "check")  # a report is wrapped
