"""A reward model's folder, replaced while processes are killed and others write there."""

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest

from grpo_plus.checkpoints.reward_model import read_kind, write_problem, write_reward_model
from grpo_plus.cli._gather import resolve_rewards
from tests import started

KILLED = """
import json, os, signal, sys
from pathlib import Path
import filelock
from grpo_plus.checkpoints.reward_model import write_reward_model
from grpo_plus.checkpoints.reward_model import write_reward_model
from grpo_verifiers import files

home, swaps = Path(sys.argv[1]), sys.argv[2] == "swaps"
if not swaps:
    files._swap = lambda *_: False
EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "ctypes.dlsym"}

def write(word):
    def fill(draft):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (draft / name).write_text(json.dumps(word))
    return fill

for last in range(200):
    folder = home / str(last) / "made"
    write_reward_model(folder, write("old"), {})
    child = os.fork()
    if child == 0:
        seen = 0
        def hook(event, arguments):
            global seen
            if event in EVENTS:
                seen += 1
                if seen > last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        write_reward_model(folder, write("new"), {})
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(last)
        break
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def words(folder):
    files = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert files.pop("grpo_plus_reward_model.json") == {}
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json"}
    (word,) = set(files.values())
    return word


@pytest.mark.parametrize("way", ["swaps", "renames"])
@pytest.mark.slow
def test_killed_anywhere_the_old_or_the_new_model_stands_there_whole(tmp_path, clean_environment, way):
    if way == "swaps" and sys.platform != "linux":
        pytest.skip("folders are swapped on Linux")
    done = started.run(
        [sys.executable, "-c", KILLED, tmp_path, way],
        env=clean_environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    points, found, missing = int(done.stdout), [], 0
    assert points > 12
    for last in range(points):
        folder = tmp_path / str(last) / "made"
        if not folder.exists():
            missing += 1
            assert write_problem(folder) is None  # which puts it back
            assert folder.exists()
        found.append(words(folder))
        write_reward_model(folder, lambda draft: (draft / "config.json").write_text("later"), {})
        assert {path.name for path in folder.iterdir()} == {"config.json", "grpo_plus_reward_model.json"}
        assert [path.name for path in folder.parent.iterdir()] == ["made"]
    assert found == sorted(found, reverse=True)
    assert set(found) == {"old", "new"}
    assert missing == (0 if way == "swaps" else 1)


def test_every_reader_puts_back_what_a_killed_process_had_moved_away(tmp_path):
    config = json.dumps({"architectures": ["LlamaForSequenceClassification"]})
    folder, aside = tmp_path / "made", tmp_path / ".made.old"
    write_reward_model(folder, lambda draft: (draft / "config.json").write_text(config), {"kind": "pairs"})
    looks = [lambda: read_kind(folder), lambda: resolve_rewards(str(folder), [], tmp_path)]
    for look in (*looks, lambda: write_problem(folder)):
        folder.rename(aside)
        look()
        assert (folder / "config.json").read_text() == config
        assert not aside.exists()


def test_of_two_that_write_at_once_the_second_waits_for_the_first(tmp_path):
    folder, inside, go_on, seen = tmp_path / "made", threading.Event(), threading.Event(), []

    def slowly(draft):
        inside.set()
        assert go_on.wait(60)
        (draft / "model").write_text("first")

    first = threading.Thread(target=write_reward_model, args=(folder, slowly, {}))
    first.start()
    assert inside.wait(60)

    def second(draft):
        seen.append((folder / "model").read_text())
        (draft / "model").write_text("second")

    other = threading.Thread(target=write_reward_model, args=(folder, second, {}))
    other.start()
    other.join(0.3)
    assert other.is_alive()
    go_on.set()
    first.join(60)
    other.join(60)
    assert (seen, (folder / "model").read_text()) == (["first"], "second")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_link_keeps_its_place_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "made").symlink_to(tmp_path / "disk", target_is_directory=True)
    for word in ("old", "new"):
        write_reward_model(tmp_path / "made", lambda draft, w=word: (draft / "model").write_text(w), {})
    assert (tmp_path / "made").is_symlink()
    assert (tmp_path / "disk" / "model").read_text() == "new"
    shutil.rmtree(tmp_path / "disk")


@pytest.mark.parametrize("swaps", [True, False])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, swaps):
    folder = tmp_path / "made"
    write_reward_model(folder, lambda draft: (draft / "model").write_text("old"), {"kind": "pairs"})

    def fail(draft):
        (draft / "model").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_reward_model(folder, fail, {})
    assert ((folder / "model").read_text(), names(tmp_path)) == ("old", ["made"])

    rename = Path.rename

    def stale(path, target):
        if path.name == ".made.new":
            raise OSError(116, "Stale file handle")
        return rename(path, target)

    if not swaps:
        with monkeypatch.context() as patched:
            patched.setattr("grpo_verifiers.files._swap", lambda *_: False)
            patched.setattr(Path, "rename", stale)
            with pytest.raises(OSError, match="Stale"):
                write_reward_model(folder, lambda draft: (draft / "other").write_text("new"), {})
        assert ((folder / "model").read_text(), names(tmp_path)) == ("old", ["made"])
    write_reward_model(folder, lambda draft: (draft / "other").write_text("new"), {"kind": "pairs"})
    assert (names(folder), names(tmp_path)) == (["grpo_plus_reward_model.json", "other"], ["made"])


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="holds other files and no reward model of grpo_plus"):
        write_reward_model(tmp_path, lambda draft: (draft / "model").write_text("new"), {})
    assert names(tmp_path) == ["thesis.txt"]
