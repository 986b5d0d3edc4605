"""Model-written programs, run in a box and graded outside of it.

The box is given inputs only. The expected values stay in the trusted parent, which compares exact built-in values and
whole outputs; no exit code, no marker and nothing that the program printed elsewhere counts.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.code._code import code as code
    from grpo_verifiers.code.levels import SandboxError as SandboxError
    from grpo_verifiers.code.levels import choose as choose
    from grpo_verifiers.code.levels import probe as probe

_NAMES = {
    "SandboxError": f"{__name__}.levels",
    "code": f"{__name__}._code",
    "choose": f"{__name__}.levels",
    "probe": f"{__name__}.levels",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two
