"""One rank of a test: runs a script, and leaves at once when every rank has come to its end.

Without this, a rank's exit races gloo's threads: now and then one aborts, or waits for a rank that has left.
"""

import os
import runpy
import sys
from pathlib import Path

from torch import distributed

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    if distributed.is_initialized():
        distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
