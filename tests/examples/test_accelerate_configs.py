"""The configs for several processes: read by accelerate's own loader, as TRL's where both have one, and run on CPUs."""

import sys
from importlib.resources import files

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from grpo_plus.cli import UserError, _launch
from grpo_plus.cli._arguments import parse
from grpo_plus.record import open_run

NAMES = ("ddp", "ddp_cpu", "fsdp2", "zero2", "zero3")
OF_TRL = {"ddp": "multi_gpu", "fsdp2": "fsdp2", "zero2": "zero2", "zero3": "zero3"}


@pytest.mark.parametrize("name", NAMES)
def test_accelerates_own_loader_takes_it(examples, name):
    found = load_config_from_file(str(examples / "accelerate" / f"{name}.yaml"))
    kinds = {"ddp": "MULTI_GPU", "ddp_cpu": "MULTI_CPU", "fsdp2": "FSDP"}
    assert found.distributed_type == kinds.get(name, "DEEPSPEED")
    assert found.num_machines == 1
    assert found.num_processes == (2 if name == "ddp_cpu" else 8)


@pytest.mark.parametrize(("name", "theirs"), OF_TRL.items())
def test_it_says_what_the_config_of_the_host_says(examples, name, theirs):
    """``--accelerate_config fsdp2`` and ours are the same run; theirs spells out defaults that ours leaves away."""
    ours = yaml.safe_load((examples / "accelerate" / f"{name}.yaml").read_text())
    host = yaml.safe_load(files("trl.accelerate_configs").joinpath(f"{theirs}.yaml").read_text())
    assert {key: host.get(key) for key in ours} == ours
    defaults = {"downcast_bf16": "no", "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False}
    assert {key: value for key, value in host.items() if key not in ours} == defaults


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_takes_it_by_its_path_and_from_a_config(examples, name, tmp_path, monkeypatch):
    monkeypatch.chdir(examples)
    path = f"accelerate/{name}.yaml"
    flags = ["first_run.yaml", "--output_dir", str(tmp_path)]
    given = parse("grpo-plus train", [*flags, "--accelerate_config", path])
    assert given.launch == ("--config_file", path)
    assert given.processes == (2 if name == "ddp_cpu" else 8)
    fewer = parse("grpo-plus train", [*flags, "--accelerate_config", path, "--num_processes", "4"])
    assert fewer.processes == 4
    config = tmp_path / "config.yaml"
    (tmp_path / "rewards.py").write_text((examples / "rewards.py").read_text())
    config.write_text((examples / "first_run.yaml").read_text() + f"accelerate_config: {examples / path}\n")
    assert parse("grpo-plus train", [str(config)]).processes == given.processes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp_cpu", pytest.param("fsdp2", marks=pytest.mark.nightly)])
def test_two_processes_on_the_cpu(name, place, steps, beside, port):
    examples = place.examples
    given = {"model_name_or_path": place.model, "dataset_name": place.data, "output_dir": place.out, "max_steps": 2}
    given |= {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 12, "logging_steps": 1}
    given |= {"log_completions": False, "bf16": False, "num_processes": 2, "main_process_port": port()}
    given |= {"accelerate_config": examples / "accelerate" / f"{name}.yaml"}
    flags = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "grpo_plus.cli", "train", str(examples / "verifiers.yaml"), *flags]
    log = place.folder / "log"
    with beside(command, log, cwd=place.folder):
        pass
    text = log.read_text()
    assert text.count("The model is in") == 1
    found = steps(place.out)
    assert len(found) == 2
    for values in found:
        shares = [value for key, value in values.items() if key.startswith("verifiers/near/status/")]
        assert sum(shares) == pytest.approx(1)
    assert (place.out / "model.safetensors").exists()
    assert open_run(place.out).info["processes"] == 2


def test_deepspeed_that_is_not_installed_and_fsdp_without_accelerators_are_said(examples, monkeypatch, capsys):
    monkeypatch.setattr(_launch, "installed", lambda _: False)
    for given in (["--config_file", str(examples / "accelerate/zero2.yaml")], ["--use_deepspeed"]):
        with pytest.raises(UserError, match="pip install deepspeed"):
            _launch._spread_over_cpu(launch_command_parser().parse_args([*given, "script"]), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    for name, said in (("fsdp2", True), ("ddp_cpu", False)):
        given = ["--config_file", str(examples / "accelerate" / f"{name}.yaml"), "script"]
        _launch._spread_over_cpu(launch_command_parser().parse_args(given), use_cpu=True)
        assert ("plain DDP" in capsys.readouterr().err) == said
