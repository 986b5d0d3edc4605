"""The check of the page on verifiers keeps the contract that the page's own test asks for."""

import re
from pathlib import Path

from grpo_verifiers.verdict import Status
from grpo_verifiers.verifying import REGISTRY, get_verifier

README = Path(__file__).parents[2] / "verifiers/README.md"


def python_of(heading):
    section = README.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_check_of_the_page_passes_the_tests_of_the_page(tmp_path, monkeypatch):
    code, test, kit = python_of("Write")[0], *python_of("Test")
    assert code.startswith("# my_checks.py\n")
    (tmp_path / "my_checks.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    try:
        names = {}
        exec(test + "test_even_digits()\n" + kit, names)
        marks = names["test_contract"].pytestmark
        for parameters in marks[0].args[1]:
            names["test_contract"](*parameters.values)
        check = get_verifier("./my_checks.py:even_digits", most_odd=1)
        assert check.verify("3, so 4", answer="4").score == 1.0
        assert check.verify("3 and 1, so 4", answer="4").detail == "2 odd digits"
        assert check.verify("4", answer=None).status is Status.NOT_APPLICABLE
    finally:
        if "even_digits" in REGISTRY:
            REGISTRY.unregister("even_digits")
