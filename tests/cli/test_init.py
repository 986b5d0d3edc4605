"""Recipes written into a folder: from a checkout and from a wheel, with companions, and never over somebody's work."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from grpo_plus.cli.init import RECIPES, recipes_folder
from tests import started

ROOT = Path(__file__).parents[2]
FILES = sorted({name for recipe in RECIPES.values() for name in recipe.files})


@pytest.fixture
def init(cli, tmp_path, monkeypatch):
    def init(*arguments):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        return cli("init", *arguments)

    return init


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_comes_whole_and_says_what_is_next(init, name):
    code, out, err = init(name)
    assert code == 0, err
    here = Path.cwd()
    written = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert written == sorted(RECIPES[name].files)
    for file in written:
        assert (here / file).read_bytes() == (recipes_folder() / file).read_bytes()
    (command,) = re.findall(r"^next: (.*)$", out, re.MULTILINE)
    for word in command.split():
        if word.endswith((".yaml", ".py")) and word != "config.yaml":
            assert (here / word).is_file()
    for file in written:  # whatever a file of a recipe refers to by a relative path is part of the recipe
        for reference in re.findall(r"(\.{1,2}/[\w/]+\.py)(?=[:,\]\s])", re.sub(r"#.*", "", (here / file).read_text())):
            assert ((here / file).parent / reference).is_file(), (file, reference)


@pytest.mark.parametrize("name", [None, "paper:", "paper"])
def test_without_a_name_all_are_listed_and_those_by_paper_by_themselves(init, name):
    code, out, _ = init(*filter(None, [name]))
    assert code == 0
    shown = {each: recipe.about for each, recipe in RECIPES.items() if name is None or each.startswith("paper:")}
    assert re.findall(r"^  (\S+) +(.*)$", out, re.MULTILINE) == [*shown.items()]
    assert not list(Path.cwd().iterdir())


def test_an_unknown_name_says_which_there_are(init):
    unknown = {
        "quickstrat": "recipe 'quickstrat'. Did you mean 'quickstart'?",
        "paper:dapoo": "Did you mean 'paper:dapo'? There is: ",
    }
    for name, said in unknown.items():
        code, _, err = init(name)
        assert code == 2
        assert said in err


def test_nothing_is_written_over(init):
    init("verifier")
    mine = Path("my_verifiers.py")
    mine.write_text("# mine\n")
    Path("verifiers.yaml").unlink()
    code, _, err = init("verifier")
    assert code == 2
    assert "my_verifiers.py: there already, and different. Nothing was written" in err
    assert mine.read_text() == "# mine\n"
    assert not Path("verifiers.yaml").exists()
    code, out, _ = init("verifier", "--force")
    assert code == 0
    assert "wrote my_verifiers.py" in out
    assert mine.read_bytes() == (recipes_folder() / "my_verifiers.py").read_bytes()
    assert init("verifier")[0] == 0


def test_into_another_folder(init):
    code, out, err = init("estimator", "--out", "a/b")
    assert code == 0, err
    assert Path("a/b/estimator_package/tests/test_quantile.py").is_file()
    assert "next: pip install -e a/b/estimator_package && grpo-plus train a/b/estimator_package/train.yaml" in out


def test_what_stands_in_the_way_is_named_before_anything_is_written(init, tmp_path):
    (tmp_path / "here" / "my_verifiers.py").mkdir(parents=True)
    for flags in ((), ("--force",)):
        code, _, err = init("verifier", *flags)
        assert code == 2
        assert "my_verifiers.py" in err
        assert not Path("verifiers.yaml").exists()
    Path("taken").touch()
    code, _, err = init("quickstart", "--out", "taken/x")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the sources are not here")
def test_the_wheel_holds_every_recipe_and_writes_it(tmp_path, clean_environment):
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = started.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    held = tmp_path / "site" / "grpo_plus" / "recipes"
    assert sorted(str(path.relative_to(held)) for path in held.rglob("*") if path.is_file()) == FILES
    for name in FILES:
        assert (held / name).read_bytes() == (ROOT / "examples" / name).read_bytes()
    (tmp_path / "user").mkdir()
    done = started.run(
        [sys.executable, "-m", "grpo_plus.cli", "init", "code"],
        cwd=tmp_path / "user", env=clean_environment | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "user").iterdir()) == ["code_rl.py", "code_rl.yaml"]
