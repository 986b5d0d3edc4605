"""The reward functions of docs/other_frameworks.md, called as each framework calls them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT, blocks

PAGE = ROOT / "docs" / "other_frameworks.md"
if not PAGE.exists():
    pytest.skip("the sources are not here", allow_module_level=True)


@pytest.fixture(scope="module")
def functions():
    """Every name that the page's own files define, by file."""
    found = {}
    for block in blocks(PAGE, "python"):
        if block.file and not block.needs:
            names = {}
            exec(compile(block.text, block.file, "exec"), names)
            found[block.file] = names
    return found


def test_each_framework_gets_its_rewards_by_completion_by_queries_that_begin_with_prompts_or_by_messages(functions):
    score = functions["verl_reward.py"]["compute_score"]
    asked = {"data_source": "gsm8k", "ground_truth": "42", "extra_info": {"index": 3}}
    assert [score(solution_str=text, **asked) for text in ("so \\boxed{42}", "so \\boxed{41}", "")] == [1.0, 0.0, 0.0]
    reward = functions["openrlhf_reward.py"]["reward_func"]
    prompts = ["6*7=", "1+1="]
    found = reward(queries=["6*7=\\boxed{42}", "1+1=\\boxed{3}"], prompts=prompts, labels=["42", "2"])
    assert (found["rewards"].tolist(), found["scores"].tolist()) == ([1.0, 0.0], [1.0, 0.0])
    right = functions["prime_reward.py"]["right"]
    said = [{"role": "assistant", "content": "so \\boxed{42}"}]
    assert right(completion=said, answer="42", prompt=[], state={}, parser=None) == 1.0
    assert right(completion=said, answer="41", prompt=[], state={}, parser=None) == 0.0
