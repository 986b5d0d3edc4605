"""Model-written programs, run in a box and graded outside of it.

The box gets inputs only. The expected values stay in the trusted parent, which compares exact built-in values and
complete outputs; no exit code, no marker and no other output of the program counts.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.code._code import code as code
    from grpo_verifiers.code.levels import SandboxError as SandboxError
    from grpo_verifiers.code.levels import choose as choose
    from grpo_verifiers.code.levels import probe as probe

_WHERE = {"_code": "code", "levels": "SandboxError choose probe"}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
