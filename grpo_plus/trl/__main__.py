"""``python -m grpo_plus.trl``: print changes of the installed TRL that break grpo_plus."""

import importlib.metadata
import sys

from grpo_plus.trl.versions import seam_problems


def main() -> int:
    """Print each member in use that the installed TRL lacks or has changed; exit code 1 if there is one."""
    problems = seam_problems()
    print(f"TRL {importlib.metadata.version('trl')}: " + ("all seams as expected" if not problems else ""))
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
