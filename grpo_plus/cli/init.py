"""``grpo-plus init``: write a recipe of the project and its files into a folder."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpo_plus
from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.files import write_atomic

PROG = "grpo-plus init"
PREFIX = "paper:"


def recipes_folder() -> Path:
    """Return the folder of the recipes: in the installed package, or examples/ in a checkout."""
    package = Path(grpo_plus.__file__).parent
    for folder in (package / "recipes", package.parent / "examples"):
        if (folder / "quickstart.yaml").is_file():
            return folder
    raise UserError(f"the recipes are missing from this installation in {package}: install grpo-plus again.")


@dataclass(frozen=True)
class RecipeFiles:
    """Files of a recipe; ``about`` is the first line of its config.

    ``files`` are paths below the recipes' folder and below the target, first the config. ``command`` is the next one;
    None for training from the first file.
    """

    about: str
    files: tuple[str, ...]
    command: str | None = None

    def next(self, folder: Path) -> str:
        """Return the next command, relative to the working directory."""
        where = "" if folder == Path() else f"{folder}/"
        return (self.command or "grpo-plus train {folder}{first}").format(folder=where, first=self.files[0])


_PACKAGE = ("train.yaml", "grpo_quantile.py", "pyproject.toml", "README.md", "tests/test_quantile.py")
_FILES: Mapping[str, tuple[str, ...]] = {
    "quickstart": ("quickstart.yaml", "my_verifiers.py"),
    **{f"{size}gb": (f"math_{size}gb.yaml",) for size in (8, 12, 16, 24)},
    "estimators": ("estimators.yaml",),
    "verifier": ("verifiers.yaml", "my_verifiers.py"),
    "process": ("process.yaml",),
    "tools": ("tools.yaml",),
    "environment": ("environment.yaml", "game.py"),
    "code": ("code_rl.yaml", "code_rl.py"),
    "estimator": tuple(f"estimator_package/{name}" for name in _PACKAGE),
    "accelerate": tuple(f"accelerate/{name}.yaml" for name in ("ddp", "ddp_cpu", "fsdp2", "zero2", "zero3")),
    "stock": ("stock_trainer.py",),
}
_NEXT = {
    "estimator": "pip install -e {folder}estimator_package && grpo-plus train {folder}{first}",
    "accelerate": "grpo-plus train config.yaml --accelerate_config {folder}{first} --num_processes 2",
    "stock": "python {folder}{first}",
}
_OF_PAPERS: Mapping[str, tuple[str, ...]] = {"gigpo": ("game.py",), "mt_grpo": ("game.py",)}
"""Further files of a recipe by paper, in the folder above its own."""


def _recipes() -> dict[str, RecipeFiles]:
    folder = recipes_folder()
    papers = sorted(path.stem for path in (folder / "papers").glob("*.yaml"))
    by_paper = {f"{PREFIX}{name}": (f"papers/{name}.yaml", *_OF_PAPERS.get(name, ())) for name in papers}
    recipes = {}
    for name, files in [*_FILES.items(), *by_paper.items()]:
        title = (folder / files[0]).read_text(encoding="utf-8").partition("\n")[0].strip('"#.: ')
        recipes[name] = RecipeFiles(title, files, _NEXT.get(name))
    return recipes


RECIPES = _recipes()
PAPERS = tuple(name.removeprefix(PREFIX) for name in RECIPES if name.startswith(PREFIX))


def run(arguments: Sequence[str]) -> int:
    """Write a recipe, or list them all."""
    parser = CommandParser(
        prog=PROG, description=__doc__, epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", help="a recipe below; without it, list all; paper: lists those by paper")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into; default: this one")
    parser.add_argument("--force", action="store_true", help="replace files that are there and differ")
    options = parser.parse_args(list(arguments))
    if options.recipe in (None, PREFIX, PREFIX.rstrip(":")):
        print(listing(PREFIX if options.recipe else ""))
        return 0
    if options.recipe not in RECIPES:
        raise UserError(f"{unknown('recipe', options.recipe, RECIPES)} {PROG} alone describes them.")
    recipe = RECIPES[options.recipe]
    lines = write(recipe, recipes_folder(), options.out.expanduser(), force=options.force)
    print(*lines, f"next: {recipe.next(options.out)}", sep="\n")
    return 0


def listing(prefix: str = "") -> str:
    """Return one line for every recipe with ``prefix`` in front of its name."""
    width = max(map(len, RECIPES))
    shown = {name: recipe for name, recipe in RECIPES.items() if name.startswith(prefix)}
    return "\n".join(["recipes:", *(f"  {name:<{width}}  {recipe.about}" for name, recipe in shown.items())])


def write(recipe: RecipeFiles, source: Path, target: Path, *, force: bool) -> list[str]:
    """Copy a recipe's files; refuse to replace different files without ``force``, and folders at all."""
    texts = {target / name: (source / name).read_bytes() for name in recipe.files}
    path = target
    try:
        present = [path for path in texts if path.exists() or path.is_symlink()]
        different = [path for path in present if not path.is_file() or path.read_bytes() != texts[path]]
        if different and not (force and all(path.is_file() or path.is_symlink() for path in different)):
            raise UserError(
                f"{', '.join(map(str, different))}: there already, and different. Nothing was written: --force "
                "replaces files, --out names another folder."
            )
        for path, text in texts.items():
            write_atomic(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    return [f"wrote {path}" for path in texts]
