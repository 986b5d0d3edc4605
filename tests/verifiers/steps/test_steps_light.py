"""Step verifiers are configured, and those that need no model run, without PyTorch."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from grpo_verifiers import get_verifier
from grpo_verifiers.steps import segment, step_verdict

assert get_verifier("prm", model="a/b", style="shepherd").gives_steps
assert get_verifier("math_steps").verify("3+4=7\\n3+4=8").score == 0.0
assert not {"torch", "trl", "transformers"} & set(sys.modules), sorted(sys.modules)
"""


def test_without_torch():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)
