"""Check before data and model load that what the config asks for is installed."""

from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.recipe.packages import attention_problems, package_problems

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


def check_packages(parsed: "Parsed") -> None:
    """Raise `UserError` with all packages that are missing here."""
    asked = {"attn_implementation": parsed.model.attn_implementation}
    if problems := [*package_problems(parsed.training), *attention_problems(asked)]:
        raise UserError(" ".join(problems))
