"""Configs that are wrong in ways a file or a flag can be wrong, and launch arguments on a machine without a card."""

import sys

import pytest

BROKEN = "import grpo_plus\n\n1 / 0\n"


def test_all_problems_of_a_file_are_in_one_report(cli, config, folder):
    (folder / "broken.py").write_text(BROKEN)
    path = config(
        advantge="sign",
        num_generations="four",
        learning_rate="fast",
        beta=[1],
        advantage="sgn",
        objective="grp",
        prompt={"colum": "question"},
        env={"NAME": {}},
        plugins=["./broken.py"],
        verifiers=[{"name": "math", "wieght": 1}],
        engine="fast",
    )
    code, _, err = cli("explain", path)
    assert code == 2
    assert "the config has 11 problems" in err
    for expected in (
        "unknown key 'advantge'. Did you mean 'advantage'?",
        "num_generations is 'four'",
        "learning_rate is 'fast'",
        "beta is [1], expected a number.",
        "Did you mean 'sign'?",
        "Did you mean 'grpo'?",
        "prompt has colum: 'question'",
        "env has NAME: {}",
        "broken.py cannot be imported: ZeroDivisionError",
        "unknown key 'wieght'. Did you mean 'weight'?",
        "engine is 'fast'",
    ):
        assert expected in err
    assert "    1 / 0" in err  # the plug-in's own traceback


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "chosen",
    [
        {"plugins": ["./broken.py"]},
        {"advantage": "./broken.py:mine"},
        {"objective": "./broken.py:mine"},
        {"objective": "grpo", "objective_kwargs": {"surrogate": "./broken.py:mine"}},
        {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": {"estimator": "./broken.py:mine"}}},
        {"verifiers": ["./broken.py:mine"]},
    ],
    ids=str,
)
def test_a_plug_in_that_fails_shows_its_own_traceback(cli, config, folder, chosen):
    (folder / "broken.py").write_text(BROKEN)
    code, _, err = cli("explain", config(**chosen))
    assert code == 2
    assert "ZeroDivisionError: division by zero" in err
    assert "    1 / 0" in err


def test_two_broken_plug_ins_show_both_tracebacks(cli, config, folder):
    (folder / "broken.py").write_text(BROKEN)
    (folder / "worse.py").write_text("{}['missing']\n")
    code, _, err = cli("explain", config(plugins=["./broken.py", "./worse.py"]))
    assert code == 2
    assert "ZeroDivisionError: division by zero" in err
    assert "KeyError: 'missing'" in err


WRONG = {
    "a mapping of plug-ins": ({"plugins": {"a": 1}}, (), "plugins is {'a': 1}, expected a list"),
    "a list for a number": ({"num_generations": [4]}, (), "num_generations is [4], expected an integer."),
    "a broken integer": ({"num_generations": 4.5}, (), "num_generations is 4.5, expected an integer."),
    "a number that is none": ({"beta": float("nan")}, (), "beta is nan, expected a number."),
    "a word for a switch": ({"use_cpu": "maybe"}, (), "use_cpu is 'maybe'"),
    "a word in a flag": ({}, ("--num_generations", "four"), "invalid int value: 'four'"),
    "an unfinished mapping in a flag": (
        {"advantage": "sign"},
        ("--advantage_kwargs", "{band: 0.25"),
        "argument --advantage_kwargs: advantage_kwargs is no valid JSON or YAML",
    ),
    "an unknown way to scale": ({"scale_rewards": "sum"}, (), "scale_rewards is 'sum', expected one of"),
    "a negative epsilon of TRL": ({"epsilon": -0.2}, (), "epsilon is -0.2, expected at least 0."),
    "a list for a schedule": (
        {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": {"schedule": ["warmup"]}}},
        (),
        "unknown schedule ['warmup']",
    ),
    "an endless target": (
        {
            "objective": "grpo",
            "beta": 0.1,
            "objective_kwargs": {"kl": {"schedule": {"name": "adaptive", "target": float("inf")}}},
        },
        (),
        "target is inf, expected a finite number",
    ),
    "an endless weight": ({"verifiers": [{"name": "math", "weight": float("inf")}]}, (), "weight is inf"),
    "a prompt of one word": ({"prompt": "question"}, (), "prompt is 'question', expected a mapping"),
    "an environment of words": ({"env": ["NAME"]}, (), "env is ['NAME'], expected a mapping"),
    "a variable without a value": ({"env": {"NAME": None}}, (), "env has NAME: None"),
    "an unknown launch file": ({"accelerate_config": "./nope.yaml"}, (), "nope.yaml"),
    "endless rewards": ({}, ("--rewards", "inf,1"), "expected finite numbers"),
    "a negative length": ({}, ("--lengths", "1,2,3,-4"), "expected whole numbers of at least 1"),
    "half a token": ({}, ("--lengths", "1,2,3,1.5"), "expected whole numbers of at least 1"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", WRONG)
def test_each_is_one_message_without_a_traceback(cli, config, case):
    values, flags, expected = WRONG[case]
    code, _, err = cli("explain", config(**values), *flags)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err


def test_target_is_a_piece_like_any_other(cli, config):
    """Its reduction and its lack of a KL term come with it; only what was written is complained about."""
    settings = {"objective": "grpo", "objective_kwargs": {"surrogate": "target"}, "num_iterations": 2}
    code, out, err = cli("explain", config(**settings))
    assert code == 0, err
    assert "w = 1/occurrences" in out
    code, _, err = cli("explain", config(**settings, beta=0.1))
    assert code == 2
    assert "beta is 0.1" in err
    assert "remove kl" not in err


def test_keywords_of_built_in_objectives_are_flags_of_any_parser():
    from trl import TrlParser

    from grpo_plus import GRPOPlusConfig
    from grpo_plus.config import OBJECTIVE_FLAGS
    from grpo_plus.objectives import piece_registries

    pieces = [
        registry.get(e.name)
        for registry in piece_registries.values()
        for e in registry.entries()
        if e.way == "built-in"
    ]
    assert {keyword for piece in pieces for keyword in piece.keywords()} <= set(OBJECTIVE_FLAGS)
    flags = ["--objective", "dapo", "--objective_kwargs.epsilon_high", ".28", "--objective_kwargs.reduce", "constant"]
    given = ["--output_dir", "out", "--use_cpu", "true", "--bf16", "false", "--report_to", "none", *flags]
    (config,) = TrlParser((GRPOPlusConfig,)).parse_args_and_config(given)
    assert config.objective_kwargs == {"epsilon_high": 0.28, "reduce": "constant"}


def test_launch_files_are_found_beside_the_config(config, folder):
    from grpo_plus.cli._arguments import parse

    (folder / "two.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\n"
    )
    parsed = parse("grpo-plus train", [config(accelerate_config="two.yaml")])
    assert parsed.launch == ("--config_file", str(folder / "two.yaml"))
    assert parsed.processes == 2
    parsed = parse("grpo-plus train", [config(), f"--accelerate_config={folder / 'two.yaml'}"])
    assert parsed.launch == ("--config_file", str(folder / "two.yaml"))


@pytest.mark.slow
def test_several_cpu_processes_are_several_ranks(config, folder, beside):
    """``accelerate launch --cpu --num_processes 2`` alone would start one, and train on half of the batch."""
    path = config(per_device_train_batch_size=4, max_steps=1)
    command = [sys.executable, "-m", "grpo_plus.cli", "train", path, "--num_processes", "2", "--cpu"]
    with beside(command, folder / "log", cwd="/"):
        pass
    text = (folder / "log").read_text()
    assert text.count("The model is in") == 1
    assert "'epoch': '0.125'" in text  # 2 of 16 prompts: each rank drew one
