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
_PAPER_FILES: Mapping[str, tuple[str, ...]] = {"gigpo": ("game.py",), "mt_grpo": ("game.py",)}
"""Further files of a recipe, in the folder above its own."""


def recipes_folder() -> Path:
    """Return the folder of the recipes: in the installed package, or examples/ in a checkout."""
    package = Path(grpo_plus.__file__).parent
    for folder in (package / "recipes", package.parent / "examples"):
        if (folder / "quickstart.yaml").is_file():
            return folder
    raise UserError(f"the recipes are missing from this installation in {package}: install grpo-plus again.")


def _titles() -> dict[str, str]:
    """Return the names of the recipes by paper, with the first line of each file."""
    files = sorted((recipes_folder() / "papers").glob("*.yaml"))
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].strip("# .") for path in files}


PAPERS = _titles()
"""Title of each recipe ``paper:NAME``, in the file ``papers/NAME.yaml``."""


@dataclass(frozen=True)
class RecipeFiles:
    """Files of a recipe; ``about`` describes it in one line.

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


_CARD = "math on a card of {} GB: {}, 4-bit base, LoRA"

RECIPES = {
    "quickstart": RecipeFiles(
        "a small model learns sums on a CPU in minutes, nothing to download", ("quickstart.yaml", "my_verifiers.py")
    ),
    "8gb": RecipeFiles(_CARD.format(8, "Qwen2.5-3B"), ("math_8gb.yaml",)),
    "12gb": RecipeFiles(_CARD.format(12, "Qwen3-8B"), ("math_12gb.yaml",)),
    "16gb": RecipeFiles(_CARD.format(16, "Qwen3-14B"), ("math_16gb.yaml",)),
    "24gb": RecipeFiles(_CARD.format(24, "Qwen3-14B, long answers"), ("math_24gb.yaml",)),
    "estimators": RecipeFiles("swap the advantage estimator in one line, and compare several", ("estimators.yaml",)),
    "verifier": RecipeFiles("verifiers of your own, weights, a gated format", ("verifiers.yaml", "my_verifiers.py")),
    "process": RecipeFiles("process supervision: every line of a solution scored separately", ("process.yaml",)),
    "tools": RecipeFiles("a small model that cannot carry learns to call the calculator", ("tools.yaml",)),
    "environment": RecipeFiles("a small model learns a game of several turns", ("environment.yaml", "game.py")),
    "code": RecipeFiles("programs judged by tests in a sandbox", ("code_rl.yaml", "code_rl.py")),
    "estimator": RecipeFiles(
        "an advantage estimator as a package of its own, with tests",
        tuple(
            f"estimator_package/{name}"
            for name in ("train.yaml", "grpo_quantile.py", "pyproject.toml", "README.md", "tests/test_quantile.py")
        ),
        "pip install -e {folder}estimator_package && grpo-plus train {folder}{first}",
    ),
    "accelerate": RecipeFiles(
        "several GPUs, several machines: DDP, FSDP2, DeepSpeed ZeRO-2 and 3",
        tuple(f"accelerate/{name}.yaml" for name in ("ddp", "ddp_cpu", "fsdp2", "zero2", "zero3")),
        "grpo-plus train config.yaml --accelerate_config {folder}{first} --num_processes 2",
    ),
    **{
        f"{PREFIX}{name}": RecipeFiles(about, (f"papers/{name}.yaml", *_PAPER_FILES.get(name, ())))
        for name, about in PAPERS.items()
    },
    "stock": RecipeFiles("our verifiers in TRL's own trainer", ("stock_trainer.py",), "python {folder}{first}"),
}


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
    if options.recipe.startswith(PREFIX) and options.recipe not in RECIPES:
        name = options.recipe.removeprefix(PREFIX)
        raise UserError(f"{unknown('recipe by paper', name, PAPERS)} {PROG} {PREFIX} describes them.")
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
        taken = [path for path in texts if path.exists() or path.is_symlink()]
        different = [path for path in taken if not path.is_file() or path.read_bytes() != texts[path]]
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
