"""Every part says what it is for: its docstring is complete, its config loads, its example runs, and the pages show it."""

import functools
import importlib.util
import runpy
from pathlib import Path

import pytest
import yaml

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli.plugins import file_text, kinds, own_text
from grpo_plus.recipe.forms import PARTS_FILE
from grpo_plus.recipe.parts import DEAD_GROUPS
from grpo_verifiers import get_verifier
from grpo_verifiers.turns import Call, Turn

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "parts"
if not FOLDER.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
WRITER = runpy.run_path(str(FOLDER / "write.py"))
PARTS = [
    pytest.param(kind, entry.name, id=f"{kind.words}: {entry.name}".replace(" ", "_"))
    for kind in kinds()
    for entry in kind.registry.entries()
    if entry.way == "built-in"
]
EXAMPLES = ("advantage estimator", "verifier", "composition of verifiers", "segmenter")
"""Kinds whose parts have examples; test_doctests.py runs them."""
WITH_FORMULA = ("advantage estimator", "objective", "ratio", "surrogate", "KL estimator", "reduction", "selection")
NOT_IN_CONFIGS = "composition of verifiers"
OUTSIDE = ("judge", "prm")
"""Verifiers that need a server or a checkpoint, so that no example of theirs runs anywhere."""
NEEDS = {"json_schema": "jsonschema", "search_documents": "bm25s"}
BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none"}


@functools.cache
def reference(words, name):
    (kind,) = [kind for kind in kinds() if kind.words == words]
    return WRITER["reference"](kind, name)


def labelled(part, label):
    return next((text for text in part.prose if text.startswith(label)), "")


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_a_part_says_what_it_is_and_when_to_use_it(kind, name):
    part = reference(kind.words, name)
    assert part.summary
    assert any(text.startswith(WRITER["USE"]) for text in part.prose), "its docstring has no paragraph: Use it when …"
    assert part.config or part.example, "its docstring has neither Config: nor an example"
    assert part.formula or kind.words not in WITH_FORMULA
    papers = [text for text in (part.summary, *part.prose) if "arXiv" in text]
    assert not papers or labelled(part, "Paper:"), "a paper is named outside of a paragraph: Paper: …"
    assert [name for name, (_, meaning) in part.keywords.items() if not meaning] == [], "not in Args: of its docstring"
    assert not part.problems
    if kind.words == "verifier":
        assert labelled(part, "Scores:"), "its docstring has no paragraph: Scores: …"
    if kind.words in EXAMPLES and name not in OUTSIDE:
        assert part.example


@pytest.mark.slow
def test_nothing_of_a_docstring_is_lost():
    """All that the docstrings of a part and of its file say is printed, word for word, but for other summaries."""
    for kind, name in (part.values for part in PARTS):
        value = kind.registry.get(name)
        fn = getattr(value, "fn", None) or value
        shown = "\n".join(WRITER["blocks"](reference(kind.words, name), str))
        for docs in (own_text(fn), file_text(fn, name)):
            for text in WRITER["read_docs"](docs).prose:
                assert text in shown, name


@pytest.mark.sample(16)
@pytest.mark.parametrize(("kind", "name"), [part for part in PARTS if part.values[0].words != NOT_IN_CONFIGS])
def test_the_config_of_a_part_loads(kind, name, tmp_path, monkeypatch):
    part = reference(kind.words, name)
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    (tmp_path / "game.py").write_text((ROOT / "examples" / "game.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "documents").mkdir()
    monkeypatch.chdir(tmp_path)
    fields = yaml.safe_load(part.config)
    assert any(name in str(value) for value in fields.values()) or f"{kind.words}: {name}" == "ratio: none"
    config = GRPOPlusConfig(**BASE, **fields)
    assert config.recipe is not None


TURNS = [Turn(0, 9, "", (Call("calculator", {"expression": "2+2"}, "4"),)), Turn(30, 31, "4")]
TESTS = [{"function": "add", "args": [1, 2], "expected": 3}, {"function": "add", "args": [1, 1], "expected": 2}]
PROGRAM = "```python\ndef add(a, b):\n    return {}\n```"
CASES = [
    ("choice", "(B)", {"answer": "none"}, (None, "error")),
    ("exact", "4", {"answer": ""}, (None, "error")),
    ("numeric", "4", {"answer": "four"}, (None, "error")),
    ("math", "The answer is 0.6.", {"answer": r"\frac{"}, (None, "not_applicable")),
    ("json_schema", "{}", {"options": {"schema": {}}, "row_schema": {"type": "no"}}, (None, "error")),
    ("language", "four 四四", {"options": {"language": "en"}}, (2 / 3, "partial")),
    ("language", "four", {"prompt": "4"}, (None, "not_applicable")),
    ("regex", "a" * 60 + "!", {"options": {"pattern": "(a+)+b"}, "timeout": 0.5}, (0, "timeout")),
    ("length_cosine", "x", {"completion_ids": [], "options": {"max_len": 4}}, (1, "correct")),
    ("length_cosine", "x", {"completion_ids": [1] * 4, "options": {"max_len": 4}}, (0, "wrong")),
    ("length_overlong", "x", {"completion_ids": [1], "options": {"max_len": 4, "cache": 2}}, (0, "correct")),
    ("length_overlong", "x", {"completion_ids": [1] * 3, "options": {"max_len": 4, "cache": 2}}, (-0.5, "partial")),
    ("length_overlong", "x", {"completion_ids": [1] * 4, "options": {"max_len": 4, "cache": 2}}, (-1, "wrong")),
    ("length_kimi", "x", {"completion_ids": [1], "prompt": "q"}, (0, "correct")),
    ("repetition", "one two three four", {}, (0, "correct")),
    ("repetition", "a a a a a a", {}, (-0.75, "partial")),
    ("tag_count", "<think>x</think>4", {}, (0.5, "partial")),
    ("tool_valid", "", {"turns": TURNS}, (1, "correct")),
    ("tool_valid", "", {"turns": TURNS[1:]}, (None, "not_applicable")),
    ("turn_reward", "", {"turns": TURNS}, (None, "not_applicable")),
    ("math_steps", "four", {}, (None, "not_applicable")),
    pytest.param("code", PROGRAM.format("3"), {"tests": TESTS, "options": {"scoring": "share"}}, (0.5, "partial"), marks=pytest.mark.slow),
    pytest.param("code", "no program", {"tests": TESTS}, (0, "unparsable"), marks=pytest.mark.slow),
    pytest.param("code", PROGRAM.format("3"), {"tests": []}, (None, "error"), marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("name", "completion", "given", "expected"), CASES)
def test_a_verifier_gives_the_scores_and_statuses_that_its_docstring_names(name, completion, given, expected):
    """Each case is a verdict that `Scores: …` names with this status and, where it is one number, this score."""
    given = dict(given)
    options, timeout = given.pop("options", {}), given.pop("timeout", None)
    check = get_verifier(name, timeout=timeout, **options)
    verdict = check.fn(completion, given["turns"], **options) if "turns" in given else check.verify(completion, **given)
    score, status = expected
    assert (verdict.score, verdict.status.value) == (score if score is None else pytest.approx(score), status)
    said = labelled(reference("verifier", name), "Scores:")
    assert status.replace("_", " ") in said
    assert score is not None or "None" in said


@pytest.mark.slow
def test_the_pages_are_those_of_the_code():
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert found == WRITER["pages"](), f"run {WRITER['COMMAND']}"
    assert PARTS_FILE.read_text(encoding="utf-8") == WRITER["summaries"](), f"run {WRITER['COMMAND']}"


def test_every_way_with_dead_groups_is_shown():
    (kind,) = [kind for kind in kinds() if kind.words == "way with dead groups"]
    assert {entry.name for entry in kind.registry.entries()} == set(DEAD_GROUPS)
