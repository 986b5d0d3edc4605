"""Python, of the version that the trainer runs."""

from grpo_verifiers.code.languages import Language

LANGUAGE = Language(
    names=("python", "py", "python3", "py3", "ipython", "ipython3", "pypy", "pypy3"), file="main.py", piston="python"
)
