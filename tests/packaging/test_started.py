"""Programs forked for a test behave as in a new interpreter."""

import subprocess
import sys

import pytest

from tests import started

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are forked on Linux")
PROGRAM = """
import os, sys
def f(): raise ValueError("of the program")
print(input(), __name__, sys.argv[1:], os.getcwd(), os.environ["WORD"], os.getsid(0) == os.getpid(), flush=True)
f() if sys.argv[1] == "raise" else sys.exit(int(sys.argv[1]))
"""


def test_streams_folder_variables_arguments_errors_and_status_are_those_of_an_interpreter(tmp_path):
    options = {"input": "line\n", "capture_output": True, "text": True, "cwd": tmp_path, "start_new_session": True}
    options["env"] = {**started.clean_environment(), "WORD": "é"}
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    for words in (["-c", PROGRAM, "3"], [file, "raise"], ["-m", "program", "0"], ["-u", "program.py", "0"]):
        forked, new = (run([sys.executable, *words], check=False, **options) for run in (started.run, subprocess.run))
        assert (forked.stdout, forked.stderr, forked.returncode) == (new.stdout, new.stderr, new.returncode)


def test_torch_is_imported_in_a_fork_and_not_where_variables_of_imports_differ(tmp_path):
    command = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    home = {**started.clean_environment(), "HOME": str(tmp_path)}
    said = [started.run(command, capture_output=True, check=True, env=env).stdout for env in (None, home)]
    assert said == [b"True\n", b"False\n"]
