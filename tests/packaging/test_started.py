"""Programs forked for a test behave as in a new interpreter."""

import os
import signal
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_is_its_status(number):
    process = started.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL)
    assert process.poll() is None
    os.kill(process.pid, number)
    assert process.wait(20) == -number


def test_the_status_of_ranks_is_that_of_the_first_that_fails():
    code = "import os, sys, time; sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(60)"
    ranks = started.Ranks(2, 1, [sys.executable, "-c", code], started.clean_environment())
    assert ranks.wait(30) == 5
    for each in ranks.processes:
        each.kill()
        each.wait()


def test_one_that_was_collected_with_its_connection_disturbs_no_other():
    process = started.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process._connection.close()
    subprocess._active.append(process)  # as when it is collected unfinished
    try:
        assert started.run([sys.executable, "-c", ""], check=False).returncode == 0
    finally:
        os.kill(process.pid, signal.SIGKILL)
