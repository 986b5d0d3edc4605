"""``python -m grpo_plus.cli``: the same as the console script."""

import sys

from grpo_plus.cli import main

if __name__ == "__main__":
    sys.exit(main())
