import dataclasses
import pickle
import re

import pytest
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser

from grpo_plus import GRPOPlusConfig, register_advantage
from grpo_plus.advantages import advantages
from grpo_plus.recipe.rewards import equivalent_advantage
from grpo_plus.recipe.table import PARTS
from grpo_verifiers.errors import ConfigError, PluginError
from tests.device import DEVICE
from tests.trainer.conftest import BASE

OURS = {field.name for field in dataclasses.fields(GRPOPlusConfig)} - {
    field.name for field in dataclasses.fields(GRPOConfig)
}
# Fields of TRL 1.14.2 that later releases renamed or dropped would be missed by looking at the installed one only.
RESERVED = {"config", "env", "prompt", "reward_funcs", "datasets", "dataset_name", "use_peft", "load_in_4bit"}


def problems(**values):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE, **values)
    return caught.value.problems


def test_with_nothing_set_every_field_of_the_host_is_as_the_host_has_it():
    ours, host = GRPOPlusConfig(**BASE), GRPOConfig(**BASE)
    for field in dataclasses.fields(GRPOConfig):
        assert getattr(ours, field.name) == getattr(host, field.name), field.name


def test_no_new_field_shadows_one_of_the_host():
    hosts = {field.name for kind in (GRPOConfig, ModelConfig, ScriptArguments) for field in dataclasses.fields(kind)}
    declared = set(vars(GRPOPlusConfig)["__annotations__"])
    assert declared == OURS
    assert declared & (hosts | RESERVED) == set()


def test_everything_that_is_wrong_is_said_at_once():
    wrong = {"advantage": {"name": "sgn", "band": 0.2}, "scale_rewards": "none", "objective": "drgrpo"}
    wrong |= {"epsilon": 0.3, "loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum"}
    wrong |= {"verifiers": [{"name": "math", "wieght": 2.0}, 3], "verifier_column": "kind", "num_generations": 3}
    found = problems(**wrong, engine={"layout": "fast", "tokens_per_pass": 0})
    text = "\n".join(found)
    told = (
        "'sgn'. Did you mean 'sign'?|advantage 'sgn' replaces scale_rewards ('none')|'drgrpo'. Did you mean 'dr_grpo'?"
    )
    told += "|multi_objective_aggregation ('normalize_then_sum')|epsilon (0.3)|loss_type ('grpo')|does not divide"
    told += "|unknown option 'wieght'. Did you mean the key 'weight'|verifiers[1] is 3|'layout' is 'fast'"
    for expected in f"{told}|tokens_per_pass is 0".split("|"):
        assert expected in text, expected
    assert len(found) == len(set(found))


def test_several_problems_are_numbered_and_survive_pickling():
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE, advantage={"name": "sign", "band": -1.0}, engine="x")
    assert str(caught.value).startswith("the config has 2 problems:\n  1. ")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


@pytest.mark.parametrize(("values", "expected"), [
    ({"advantage": {"band": 1.0}}, "which lacks a name"), ({"objective": "{kl: k1}"}, "which lacks a name"),
    ({"advantage": [1]}, "expected a word or a mapping with the key 'name'"), ({"advantage": {"name": 3}}, "lacks a name"),
    ({"advantage": "{name: "}, "no valid JSON or YAML"), ({"engine": True}, "engine is True, expected a word or a mapping"),
    ({"advantage_kwargs": {"band": 1.0}}, "write advantage: {name: NAME"),
    ({"max_prompt_length": 256, "lr": 1}, "leave out the rows that are too long; grpo-plus check counts them.\nGRPOPlusConfig"),
    ({"lora_r": 8, "lr": 1}, "'lora_r': it is an option of the command line"), ({"lr": 1}, "Did you mean 'learning_rate'?"),
    ({"stop_on": ["nan"], "record": True}, "write diagnosis: {stop_on: [FINDING]}"),
    ({"verifiers": [{"name": "math", "kwargs": {"last_number": True}}]}, "without kwargs: {'name': 'math', 'last_number': True}"),
    ({"report": 5}, "report is 5, expected true, false or a mapping"), ({"diagnosis": {"every": 5}}, "there is no judge"),
    ({"verifier_column": "kind"}, "verifier_column needs verifiers"), ({"plugins": [3]}, "plugins is [3]"),
    ({"generation_batch_size": 12, "steps_per_generation": 2}, "steps_per_generation"), ({"plugins": 3}, "plugins is 3, expected a list"),
    ({"verifiers": 3}, "verifiers is 3, expected a list"),
    ({"engine": {"layout": "stock", "tokens_per_pass": 64}}, "layout 'stock' is TRL's own path"),
    ({"engine": {"tokens_per_pass": True}}, "expected a positive integer"), ({"verifiers": [{"label": "x"}]}, "has no name"),
    ({"verifiers": [{"name": "math", "weight": "much"}]}, "expected a finite number"),
    ({"verifiers": [{"name": "math", "timeout": 0}]}, "expected a positive number of seconds"),
    ({"verifiers": [{"name": "math", "columns": {"answer": 3}}]}, "parameter names mapped to column names"),
])  # fmt: skip
def test_each_wrong_value_is_named(values, expected):
    assert expected in "\n".join(problems(**values))


def test_one_wrong_key_of_a_field_is_one_problem():
    assert [len(problems(**{field: keys})) for field, keys in (
        ("rollout", {"rows": 1.5}), ("report", {"record": True, "every": -1}),
    )] == [1, 1]  # fmt: skip


REPLACED = [(part.who, rule.target) for part in PARTS for rule in part.rules if rule.relation == "replaces"]


@pytest.mark.parametrize(("part", "name"), REPLACED)
def test_a_part_and_the_option_of_the_host_that_it_would_ignore_conflict(part, name):
    default = GRPOConfig.__dataclass_fields__[name].default
    others = {"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "epsilon_high": 0.28, "delta": 4.0}
    others |= {"scale_rewards": "batch", "multi_objective_aggregation": "normalize_then_sum"}
    other = others.get(name)
    other = (not default if isinstance(default, bool) else default * 1.5) if other is None else other
    field, value = ("advantage", "center") if "advantage" in part else ("objective", "grpo")
    (problem,) = problems(**{field: value, name: other})
    assert all(words in problem for words in (f"{name} ({other!r})", f"{field} {value!r} replaces"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("loss", ["grpo", "dapo", "luspo", "sapo", "cispo", "vespo", "dr_grpo", "bnpo"])
def test_the_hosts_sequence_ratio_does_not_go_with_advantages_per_token(loss):
    register_advantage("config_per_token", per="token")(lambda table: table.totals()[:, None].expand(-1, table.width))
    mixed = {"advantage": {"name": "mix", "parts": {"zscore": 1.0, "process": 0.5}}}
    steps = {"loss_type": loss, "verifiers": [{"name": "math_steps", "weight": 1.0}]}
    own = {"advantage": "config_per_token", "loss_type": loss}
    try:
        for settings in ({"advantage": "process", **steps}, {**mixed, **steps}, own):
            (problem,) = problems(**settings, importance_sampling_level="sequence")
            GRPOPlusConfig(**BASE, **settings)
            told = (
                "importance_sampling_level ('sequence')",
                "'token'",
                "'gspo_token'",
            )
            assert [word for word in told if word not in problem] == []
        GRPOPlusConfig(**BASE, advantage="zscore", loss_type=loss, importance_sampling_level="sequence")
    finally:
        advantages.unregister("config_per_token")


@pytest.mark.parametrize(("keywords", "k"), [({}, 4), ({"k": 8}, 8), ({"k": 2}, 2)])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_subset_of_k_needs_more_generations_than_k(keywords, k, mixed):
    whole = {"parts": {"passk": 0.5, "sign": 1.0}, "passk": keywords}
    chosen = {"name": "mix", **whole} if mixed else {"name": "passk", **keywords}
    given = {"advantage": chosen, "num_generations": k}
    (problem,) = problems(**given)
    told = f"its k is {k} and compares {k} completions.*takes {k + 1}. Set k to at most {k - 1}, or num_gen.* least {k + 1}"
    assert re.search(f"num_generations is {k}. .*'passk'.*{told}", problem)
    GRPOPlusConfig(**{**BASE, **given, "num_generations": k + 1, "generation_batch_size": 45 * 8})


@pytest.mark.parametrize("scale", ["group", True, "batch", "none", False])
def test_what_the_hosts_own_fields_amount_to(scale):
    name, keywords = "center" if scale in {"none", False} else "zscore", {"scale": "batch"} if scale == "batch" else {}
    assert equivalent_advantage(GRPOPlusConfig(**BASE, scale_rewards=scale)) == (name, keywords)
    both = GRPOPlusConfig(**BASE, scale_rewards=scale, multi_objective_aggregation="normalize_then_sum")
    assert scale != "group" or equivalent_advantage(both) == ("gdpo", {})


def full():
    process = {"advantage": {"name": "process", "credit": "return", "eps": 1e-6}}
    objective = {"objective": {"name": "grpo", "kl": "k3"}, "beta": 0.1, "learning_rate": 3e-5}
    batch = {"num_generations": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    return GRPOPlusConfig(**BASE, **process, **objective, **batch, engine={"layout": "trimmed", "tokens_per_pass": 512})


def test_a_config_can_be_built_from_its_own_values():
    config = full()
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    assert GRPOPlusConfig(**values) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, learning_rate=1.0).learning_rate == 1.0


def test_keywords_are_copied_not_shared():
    steps = {"parts": {"process": 1.0, "raw": 1.0}, "process": {"steps_from": "a"}}
    assert GRPOPlusConfig(**BASE, advantage={"name": "mix", **steps}).advantage == {"name": "mix", **steps}
    given = {"parts": {"sign": 1.0}, "sign": {"band": 0.5}}
    config = GRPOPlusConfig(**BASE, advantage={"name": "mix", **given})
    given["sign"]["band"] = 9.0
    assert config.advantage["sign"]["band"] == 0.5


PLUGIN = """
from grpo_plus.advantages import register_advantage

@register_advantage("from_config_file")
def from_config_file(table, *, gain: float = 1.0):
    return gain * table.rewards[:, 0].nan_to_num()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    yield tmp_path
    advantages.unregister("from_config_file")


def parse(folder, text, *flags, groups=(GRPOPlusConfig,)):
    """As a script does it that names its own groups: `TrlParser` and ``--config``."""
    path = folder / "config.yaml"
    path.write_text("output_dir: out\nuse_cpu: true\nbf16: false\nreport_to: none\n" + text)
    return TrlParser(groups, allow_abbrev=False).parse_args_and_config(["--config", str(path), *flags])


def test_a_yaml_file_through_the_hosts_parser_and_references_relative_to_it(folder, monkeypatch):
    monkeypatch.setattr("sys.argv", ["script.py", "--config", str(folder / "config.yaml")])
    parts = "plugins: [./mine.py]\nadvantage: {name: from_config_file, gain: 3e-4}\n"
    (config,) = parse(folder, parts + "learning_rate: 3e-4\nengine: {tokens_per_pass: 128}\n")
    assert config.advantage == {"name": "from_config_file", "gain": 3e-4}
    assert (config.learning_rate, config.engine) == (3e-4, {"tokens_per_pass": 128})
    assert config.plugins == [str(folder / "mine.py")]
    monkeypatch.setattr("sys.argv", ["script.py", f"--config={folder / 'config.yaml'}"])
    (config,) = parse(folder, "advantage: {name: ./mine.py:from_config_file, gain: 2}\n")
    assert config.advantage == {"name": f"{folder / 'mine.py'}:from_config_file", "gain": 2}
    (config,) = parse(folder, "advantage: {name: mix, parts: {./mine.py:from_config_file: 1.0}}\n")
    assert config.advantage == {"name": "mix", "parts": {f"{folder / 'mine.py'}:from_config_file": 1.0}}


FLAGS = [
    (["--advantage", '{"name": "sign", "band": .25}'], {"band": 0.25}),
    (["--advantage", "sign", "--advantage.band", ".25"], {"band": 0.25}),
    (["--advantage.band=.25", "--advantage", "sign"], {"band": 0.25}),
    (["--advantage={name: sign, band: 0.25}"], {"band": 0.25}),
    (["--advantage=zscore", "--advantage.eps=3e-4", "--advantage.ddof=0"], {"eps": 3e-4, "ddof": 0}),
    (["--advantage", "{name: zscore, eps: 1}", "--advantage.ddof", "0"], {"eps": 1, "ddof": 0}),
]


@pytest.mark.parametrize(("flags", "expected"), FLAGS)
def test_flags_through_the_hosts_parser(folder, flags, expected):
    (config,) = parse(folder, "", *flags)
    assert config.advantage == {"name": "sign" if "band" in expected else "zscore", **expected}


def test_a_flag_overrides_one_keyword_of_the_yaml_and_a_wrong_one_is_named(folder, capsys):
    text = "advantage: {name: zscore, eps: 0.5, ddof: 0}\nengine: {tokens_per_pass: 64}\n"
    for flags, expected in (
        (["--advantage.eps", "0.25"], {"name": "zscore", "eps": 0.25, "ddof": 0}),
        (["--advantage", "{name: zscore, eps: 0.25}"], {"name": "zscore", "eps": 0.25}),
        (["--advantage", "sign"], "sign"),
    ):
        (config,) = parse(folder, text, *flags)
        assert config.advantage == expected
    (config,) = parse(
        folder,
        "objective: grpo\nbeta: 0.1\nengine: {tokens_per_pass: 64}\n",
        "--objective.kl",
        "k1",
        "--engine",
        "packed",
    )
    assert config.objective == {"name": "grpo", "kl": "k1"}
    assert config.engine == {"layout": "packed", "tokens_per_pass": 64}, "the layout alone is replaced"
    with pytest.raises(SystemExit):
        parse(folder, "", "--critic", "[1]")
    assert "expected a mapping" in capsys.readouterr().err


@pytest.mark.parametrize("groups", [(GRPOPlusConfig,), (ScriptArguments, GRPOPlusConfig, ModelConfig)])
def test_one_parser_reads_twice_alike(folder, groups):
    flags = ["--advantage", "sign", "--advantage.band", "0.5"]
    first, second = (
        next(group for group in parse(folder, "", *flags, groups=groups) if isinstance(group, GRPOPlusConfig))
        for _ in range(2)
    )
    assert first.advantage == second.advantage == {"name": "sign", "band": 0.5}


@pytest.mark.parametrize(("text", "expected"), [("import no_such_module_xyz\n", "ModuleNotFoundError"), ("raise RuntimeError('mine')\n", "mine")])  # fmt: skip
def test_a_plugin_that_fails_ends_the_config_with_its_traceback(folder, text, expected):
    (folder / "bad.py").write_text(text)
    with pytest.raises(PluginError, match=re.escape(expected)) as caught:
        GRPOPlusConfig(**BASE, plugins=[str(folder / "bad.py")])
    assert caught.value.__cause__.__traceback__.tb_next is not None
    with pytest.raises(PluginError, match=re.escape(expected)):
        GRPOPlusConfig(**BASE, advantage=f"{folder / 'bad.py'}:f")


def test_a_backend_for_ranks_is_kept_by_the_process_that_starts_them():
    config = GRPOPlusConfig(**BASE, ddp_backend="gloo")
    assert (config.ddp_backend, config.world_size, config.device.type) == ("gloo", 1, DEVICE)
