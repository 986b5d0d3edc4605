import contextlib
import textwrap

import pytest

from tests.cli.commands import Commands
from tests.two_steps import TRAINING, write_data

REWARDS = '''
def digits(completions, **columns):
    """Share of digits."""
    return [sum(c.isdigit() for c in str(text)) / 8 for text in completions]


def by_answer(completions, answer, **columns):
    assert len(answer) == len(completions)
    return [float(len(text) % len(wanted)) if (wanted := str(given) + "1") else 0.0 for text, given in zip(completions, answer)]


not_callable = 3
'''


@pytest.fixture(autouse=True)
def _parts_of_this_test_only(tmp_path):
    """What plug-in files of a test registered is gone after it."""
    yield
    from grpo_plus.advantages import advantages
    from grpo_verifiers.verifying import REGISTRY

    for registry in (advantages, REGISTRY):
        for entry in registry.entries():
            if entry.way == "registered" and str(tmp_path) in entry.source:
                registry.unregister(entry.name)


@pytest.fixture
def folder(tmp_path):
    write_data(tmp_path, REWARDS)
    (tmp_path / "empty.jsonl").touch()
    return tmp_path


@pytest.fixture
def cli(cli):
    return Commands(cli)


@pytest.fixture
def ranked(two_ranks, folder):
    """Runs the command as two ranks, without a launcher; gives their exit codes and what they said."""

    def ranked(*words, **options):
        script = folder / "ranked.py"
        script.write_text("import sys\nfrom grpo_plus.cli import main\nif __name__ == '__main__': sys.exit(main())\n")
        with contextlib.suppress(AssertionError), two_ranks(script, *words, log=folder / "log", **options) as running:
            codes = [each.wait(240) for each in running.processes]
        return codes, (folder / "log").read_text(errors="replace")

    return ranked


@pytest.fixture
def config(folder, tiny_model):
    """Writes a config that trains for two steps, with further lines; gives its path."""

    def config(text="", name="config.yaml", **changes):
        import yaml

        values = yaml.safe_load(TRAINING.format(model=tiny_model, folder=folder))
        values |= (yaml.safe_load(textwrap.dedent(text)) or {}) | changes
        values = {key: value for key, value in values.items() if value is not None}
        path = folder / name
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return config
