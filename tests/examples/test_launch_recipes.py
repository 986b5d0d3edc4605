"""The launcher recipes: linted, and their commands read by our own parser. None of them was run on a cluster."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from grpo_plus.cli._arguments import parse

NAMES = ("slurm.sbatch", "skypilot.yaml", "kubernetes.yaml")
SET_BY_THE_CLUSTER = {"CONFIG": "first_run.yaml", "MACHINES": "2", "MAIN_HOST": "10.0.0.1", "MAIN_PORT": "29500"}
SET_BY_THE_CLUSTER |= {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "GPUS_PER_MACHINE": "8", "JOB_COMPLETION_INDEX": "1"}
SET_BY_THE_CLUSTER |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_RANK": "1"}
OF_SKYPILOT = {
    "name", "num_nodes", "workdir", "resources", "envs", "secrets", "volumes", "file_mounts", "setup", "run", "config",
}  # fmt: skip


def at(values, dotted):
    for key in dotted.split("."):
        values = values[key]
    return values


@pytest.fixture(params=NAMES)
def recipe(request, examples):
    return examples / "launch" / request.param


def scripts(recipe):
    text = recipe.read_text()
    if recipe.suffix == ".sbatch":
        inner = re.search(r"bash -c '\n(.+?)\n'", text, re.DOTALL)[1]
        return [text, inner]
    documents = list(yaml.safe_load_all(text))
    if recipe.name == "skypilot.yaml":
        return [documents[0]["setup"], documents[0]["run"]]
    return [each["args"][0] for each in at(documents[1], "spec.template.spec.containers")]


def test_its_first_lines_say_that_it_was_not_run(recipe):
    first = " ".join(line.lstrip("# ") for line in recipe.read_text().splitlines()[:5])
    assert "Linted by a test" in first
    assert re.search(r"not run on a c(luster|loud)", first)


def test_its_scripts_are_bash(recipe, tmp_path):
    for number, script in enumerate(scripts(recipe)):
        path = tmp_path / f"script{number}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        if shutil.which("shellcheck"):
            done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stdout


def test_its_fields_are_those_that_the_launcher_reads(examples):
    sky = yaml.safe_load((examples / "launch" / "skypilot.yaml").read_text())
    service, job = yaml.safe_load_all((examples / "launch" / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"].keys() >= {"clusterIP", "publishNotReadyAddresses"}
    assert job["spec"]["completionMode"] == "Indexed"
    assert {"num_nodes", "resources", "envs", "setup", "run"} <= sky.keys() <= OF_SKYPILOT
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(variables["MACHINES"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(variables["GPUS_PER_MACHINE"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert f"--main_process_ip {first} " in container["args"][0]
    text = (examples / "launch" / "slurm.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
    assert (asked["ntasks-per-node"], asked["nodes"]) == ("1", "2")
    assert f"GPUS_PER_MACHINE={asked['gpus-per-node']}\n" in text
    assert text.index("#SBATCH --requeue") < text.index("set -euo")  # behind a command SLURM reads no more of them


def test_a_mistake_is_not_tried_again(examples, tmp_path):
    _, job = yaml.safe_load_all((examples / "launch" / "kubernetes.yaml").read_text())
    lost, mistake = job["spec"]["podFailurePolicy"]["rules"]  # the first that fits counts
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    (container,) = at(job, "spec.template.spec.containers")
    codes = {"containerName": container["name"], "operator": "In", "values": [2]}
    assert mistake == {"action": "FailJob", "onExitCodes": codes}
    assert at(job, "spec.template.spec.restartPolicy") == "Never"  # without it the policy is refused

    for name in ("scontrol", "srun"):
        program = tmp_path / name
        text = '#!/bin/bash\n[ "$1" = requeue ] && echo "requeued $2"\n[ "${0##*/}" != srun ] || exit "$CODE"\n'
        program.write_text(text)
        program.chmod(0o755)
    found = {}
    for code in (0, 1, 2, 143):
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CODE": str(code)}
        variables |= {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1"}
        words = ["bash", examples / "launch" / "slurm.sbatch"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == code, done.stderr
        found[code] = done.stdout.strip()
    assert found == {0: "", 1: "", 2: "", 143: "requeued 7"}


def test_its_commands_are_read_by_our_parser(recipe, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(examples)
    script = scripts(recipe)[-1]
    found = re.findall(r"grpo-plus train (.+?)(?:\n\s*$|\n(?! )|\Z)", script.replace("\\\n", " "), re.DOTALL)
    assert len(found) == 1
    # Bash itself fills in what the cluster would set.
    words = subprocess.run(
        ["bash", "-euc", f"printf '%s\\n' {found[0]}"], env=SET_BY_THE_CLUSTER | {"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.splitlines()  # fmt: skip
    assert words[0] == "first_run.yaml"
    parsed = parse("grpo-plus train", [*words, "--output_dir", str(tmp_path)])
    launch = shlex.join(parsed.launch)
    assert parsed.processes == 16
    assert parsed.training.resume_from_checkpoint == "auto"
    for part in ("config_file accelerate/ddp.yaml", "num_machines 2", "machine_rank 1", "main_process_port 29500"):
        assert f"--{part}" in launch
