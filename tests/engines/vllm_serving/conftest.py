"""Real vLLM servers for the tests of this folder, each started once, and runs of the quickstart's task against them."""

import json
import urllib.request
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.cli import quickstart
from grpo_plus.sampling import vllm_http
from tests.engines import vllm_server

GAP = "sampling/sampling_logp_difference/max"
RATIOS = tuple(f"sampling/importance_sampling_ratio/{which}" for which in ("min", "mean", "max"))
NF4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setattr(vllm_http, "PAUSES", (0.1, 0.2))


@pytest.fixture(scope="session")
def warm():
    return vllm_server.warm_model()


@pytest.fixture(scope="session")
def rows():
    return quickstart.dataset()["train"].select(range(256))


class Servers:
    """A server that tests may kill and start again, always at the same address."""

    def __init__(self, model, log):
        self.model, self.log, self.port = model, log, vllm_server.free_port()
        self.now = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, patience=240):
        arguments = (*vllm_server.ADAPTERS, "--max-loras", "2", "--served-model-name", str(self.model))
        self.now = vllm_server.start(self.model, *arguments, log=self.log, port=self.port, patience=patience)

    def kill(self):
        vllm_server.kill(self.now)

    def alive(self):
        if self.now.process.poll() is not None:
            self.start()

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def adapters(self):
        return [model["id"] for model in self.ask("GET", "/v1/models")["data"] if model["parent"]]

    def scores(self):
        """Log-probabilities of some tokens under the server's base."""
        body = {"model": str(self.model), "prompt": list(range(5, 25)), "max_tokens": 1, "prompt_logprobs": 0}
        (choice,) = self.ask("POST", "/v1/completions", body)["choices"]
        return [value["logprob"] for place in choice["prompt_logprobs"][1:] for value in place.values()]

    def as_at_the_start(self):
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.model)}}
        self.ask("POST", "/collective_rpc", body)
        self.ask("POST", "/collective_rpc", {"method": "__setattr__", "args": ["grpo_plus_weights", ""]})


@pytest.fixture(scope="session")
def _server(warm, tmp_path_factory):
    server = Servers(warm, tmp_path_factory.mktemp("vllm") / "log")
    yield server
    vllm_server.stop(server.now)


@pytest.fixture
def server(_server):
    """The server of the quickstart's model, with the weights that it was started with."""
    _server.alive()
    yield _server
    if _server.now.process.poll() is None:
        _server.as_at_the_start()


@pytest.fixture(scope="session")
def _dequantised(warm, tmp_path_factory):
    """The 4-bit base as float32: what a server must hold for its log-probabilities to be those of the trained model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path_factory.mktemp("dequantised") / "model"
    model = AutoModelForCausalLM.from_pretrained(warm, quantization_config=NF4, dtype=torch.float32)
    model.dequantize().save_pretrained(path)
    AutoTokenizer.from_pretrained(warm).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def dequantised_server(_dequantised, tmp_path_factory):
    log = tmp_path_factory.mktemp("vllm") / "log"
    arguments = (*vllm_server.ADAPTERS, "--served-model-name", vllm_server.warm_model())
    with vllm_server.serving(_dequantised, *arguments, log=log) as server:
        yield server


@pytest.fixture
def make(warm, rows, tmp_path):

    def make(url, name="out", *, model=warm, data=rows, test=None, lora=False, four=False, **changes):
        values = {"output_dir": str(tmp_path / name), "verifiers": ["math"], "advantage": "zscore", "objective": "dapo"}
        values |= {"max_steps": 8, "num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": 48}
        values |= {"learning_rate": 3e-3 if lora or four else 4e-4, "seed": 1}
        values |= {"vllm_server_base_url": url, "vllm_server_timeout": 120.0}
        adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        return GRPOPlusTrainer(
            str(model) if isinstance(model, str | Path) else model,
            args=GRPOPlusConfig(**{**vllm_server.RUN, **values, **changes}),
            train_dataset=data,
            eval_dataset=test,
            quantization_config=NF4 if four else None,
            peft_config=adapter if lora or four else None,
        )

    return make


def logged(run, name):
    return [entry[name] for entry in run.state.log_history if name in entry]


@pytest.fixture
def exact():
    """See that every step of a run was drawn from the weights of that step."""

    def exact(run, steps=8):
        gaps = logged(run, GAP)
        assert len(gaps) == steps
        assert max(gaps) < 1e-4
        for name in RATIOS:
            assert logged(run, name) == pytest.approx([1.0] * steps, abs=1e-4)

    return exact
