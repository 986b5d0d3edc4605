import ast
import math
import re
from pathlib import Path

import pytest
import torch

from grpo_plus.heads.losses import bradley_terry, process_losses
from grpo_plus.heads.reward_scores import ranked_right, separation

FILE = Path(__file__).parents[2] / "docs" / "formulas.md"
if not FILE.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
TABLE = FILE.read_text(encoding="utf-8").partition("\n### Golden numbers of reward models\n")[2].partition("\n#")[0]
ROWS = re.findall(r"^\| `(\w+)` \| `(.*)` \| (.*) \|$", TABLE, re.MULTILINE)
FUNCTIONS = {one.__name__: one for one in (bradley_terry, process_losses, ranked_right, separation)}


def read(text):
    return ast.literal_eval(f"[{text}]".replace("−", "-"))


@pytest.mark.parametrize(("name", "arguments", "written"), ROWS)
def test_the_numbers_of_the_page_are_those_of_the_code(name, arguments, written):
    given = [[math.nan if value is None else value for value in column] for column in read(arguments)]
    found = FUNCTIONS[name](*(torch.tensor(column, dtype=torch.float64) for column in given))
    assert torch.as_tensor(found).flatten().tolist() == pytest.approx(read(written), abs=6e-7)


def test_every_function_has_a_number():
    assert {name for name, _, _ in ROWS} == set(FUNCTIONS)
