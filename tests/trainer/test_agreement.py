"""What the processes of a run compare, and what each may have of its own."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grpo_verifiers.errors
from grpo_plus import GRPOPlusConfig
from grpo_plus.training.resume import rank_check
from tests.trainer.conftest import BASE


def told(**settings):
    config = GRPOPlusConfig(**BASE, **settings)
    return rank_check._start_settings(config, config.recipe)


def differing(one, other):
    return rank_check.disagreement([("rank 0", told(**one)), ("rank 1", told(**other))])


@pytest.mark.parametrize(("one", "other"), [
    ({"device_map": {"": 0}, "cache_dir": "/disk/a"}, {"device_map": {"": 1}, "cache_dir": "/disk/b"}),
    ({"max_memory": {0: "20GiB"}, "offload_folder": "/a"}, {"max_memory": {0: "40GiB"}, "offload_folder": "/b"}),
    ({"local_files_only": True, "token": "one"}, {"local_files_only": False, "token": None}),
])  # fmt: skip
def test_a_place_of_its_own_is_no_difference(one, other):
    own = ({"log_completions": True, "dataloader_num_workers": 2}, {"dataloader_num_workers": 0})
    pair = [{"model_init_kwargs": kwargs, "verifiers": ["math"]} for kwargs in (one, other)]
    assert not differing(pair[0] | own[0], pair[1] | own[1])


@pytest.mark.parametrize(("one", "other", "named"), [
    ({"beta": 0.0}, {"beta": 0.1}, "beta: 0.0 on rank 0, 0.1 on rank 1"),
    ({"model_init_kwargs": {"dtype": "float32"}}, {"model_init_kwargs": {"dtype": "bfloat16"}}, "dtype"),
    ({"verifiers": ["math"]}, {"verifiers": ["exact"]}, "verifiers"), ({"logging_steps": 1}, {"logging_steps": 2}, "logging_steps"),
])  # fmt: skip
def test_what_decides_the_result_or_the_steps_is_named(one, other, named):
    assert named in differing(one, other)


def test_versions_are_compared(monkeypatch):
    ours = told()
    monkeypatch.setattr(
        rank_check, "version", lambda name: "0.1" if name == "trl" else importlib.metadata.version(name)
    )
    found = rank_check.disagreement([("rank 0", ours), ("rank 1", told())]).splitlines()
    assert found[1:] == [f"  version.trl: '{importlib.metadata.version('trl')}' on rank 0, '0.1' on rank 1"]


def test_where_an_environment_lies_and_secrets_are_not_sent_and_the_config_is_left_as_it_was():
    parts = told(verifiers=["math", "code"])["parts"]
    assert parts.keys() == {"math", "code"}
    assert str(Path(grpo_verifiers.errors.__file__).parents[2]) not in json.dumps(parts)
    secret = "hf_" + "abcdefgh" * 4
    assert secret not in json.dumps(told(model_init_kwargs={"api_key": secret}), default=str)
    config = GRPOPlusConfig(**BASE, model_init_kwargs={"dtype": torch.float32})
    rank_check._start_settings(config, config.recipe)
    assert config.model_init_kwargs == {"dtype": torch.float32}


@pytest.mark.parametrize(("sizes", "machines"), [(("", "", ""), 1), ((8, 8, ""), 1), ((16, 8, ""), 2), ((12, 8, 2), 2), ((12, 4, 2), 2)])  # fmt: skip
def test_machines_are_counted_alike_by_all_ranks(sizes, machines, monkeypatch):
    for name, size in zip(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), sizes, strict=True):
        monkeypatch.setenv(name, str(size)) if size else monkeypatch.delenv(name, raising=False)
    assert rank_check.machines() == machines


@pytest.mark.nightly
def test_processes_that_do_not_know_of_each_other_train_nothing(tmp_path, tiny_model, clean_environment):
    """Started for a CPU without use_cpu, accelerate makes each of them a run of its own, into one folder."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import datasets
from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

config = GRPOPlusConfig(output_dir={str(tmp_path)!r}, bf16=False, report_to="none")
rows = datasets.Dataset.from_list([{{"prompt": "a"}}] * 8)
GRPOPlusTrainer({tiny_model!r}, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, train_dataset=rows)
""")
    environment = {**clean_environment, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert re.search(r"ConfigError: .*2 processes were started for one run .* uses 1.* use_cpu: true", done.stderr)


def test_checkpoints_on_each_machine_are_refused(monkeypatch):
    setup = SimpleNamespace(args=SimpleNamespace(save_on_each_node=True, world_size=16))
    assert rank_check.RankCheck(None).problems(setup) == []
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert "save_on_each_node: true" in rank_check.RankCheck(None).problems(setup)[0]
    setup.args.save_on_each_node = False
    assert rank_check.RankCheck(None).problems(setup) == []
