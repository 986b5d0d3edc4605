"""Adapter-only completions from a server that speaks vLLM's interface (a stand-in: vLLM itself does not run here)."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.memory.advice import settings_of
from grpo_plus.memory.estimate import estimate
from grpo_plus.memory.shape import shape_of
from grpo_plus.sampling import vllm_http
from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_plus.sampling.vllm_push import AdapterPush, Weights, adapter_problems
from grpo_plus.sampling.vllm_server import OWN, VllmServer, request_problems
from grpo_verifiers.errors import ConfigError
from tests.qlora import vllm_like
from tests.qlora.runs import ROWS, RUN, digits, logged, lora, nf4


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(vllm_http, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.fixture
def state(folder):
    base = AutoModelForCausalLM.from_pretrained(folder, quantization_config=nf4(), dtype=torch.float32)
    for layer in base.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return vllm_like.State(base, folder)


@pytest.fixture
def url(state):
    with vllm_like.serving(state) as address:
        yield address


def config(tmp_path, url, **changes):
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "vllm_server_timeout": 0.2}
    values = {**RUN, **server, "gradient_accumulation_steps": 2, "max_steps": 3, "lr_scheduler_type": "constant"}
    return GRPOPlusConfig(output_dir=str(tmp_path / "out"), **{**values, **changes})


def trainer(folder, args, **changes):
    return GRPOPlusTrainer(folder, digits, args, ROWS, ROWS, quantization_config=nf4(), peft_config=lora(**changes))


PARTS = {"weights": Weights(lambda: None), "accelerator": None, "folder": Path(), "name": "model"}
GAP = "sampling/sampling_logp_difference/max"


@pytest.mark.slow
class TestTraining:
    def test_each_step_draws_from_the_weights_of_that_step_and_leaves_nothing_behind(
        self, folder, tmp_path, state, url
    ):
        run = trainer(folder, config(tmp_path, url))
        before = {n: p.detach().clone() for n, p in run.model.named_parameters() if p.requires_grad}
        run.train()
        assert any(not torch.equal(p, before[n]) for n, p in run.model.named_parameters() if n in before)
        gaps = logged(run, GAP)
        assert len(gaps) == 3
        assert max(gaps) < 1e-4
        assert logged(run, "sampling/importance_sampling_ratio/mean") == pytest.approx([1, 1, 1], abs=1e-3)
        assert len(set(state.loads)) == 3
        by_adapter = [body["model"] for body in state.completions]
        assert by_adapter == [name for name in state.loads for _ in range(2)]  # two prompts a step
        assert {(body["n"], body["max_tokens"], body["logprobs"]) for body in state.completions} == {(4, 6, 0)}
        assert run.args.use_vllm is True
        assert state.adapters == {}
        assert not (tmp_path / "out" / "_vllm_adapter").exists()
        run.evaluate()
        assert (len(state.loads), len(state.adapters)) == (4, 1)

    def test_temperature_and_end_tokens_arrive(self, folder, tmp_path, state, url):
        asked = {"temperature": 0.7, "top_k": 5, "max_steps": 1, "generation_kwargs": {"seed": 3}}
        run = trainer(folder, config(tmp_path, url, **asked))
        run.train()
        assert max(logged(run, GAP)) < 1e-4
        (body, *_) = state.completions
        assert (body["temperature"], body["top_k"], body["seed"]) == (0.7, 5, 3)
        assert body["stop_token_ids"] == list(run.eos_token_ids)

    def test_a_policy_with_a_reference_copy_sends_the_policy(self, folder, tmp_path, state, url):
        args = config(tmp_path, url, beta=0.05, sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1.0)
        run = trainer(folder, args)
        run.train()
        assert "ref" in run.model.peft_config
        assert max(logged(run, GAP)) < 1e-4


@pytest.mark.slow
def test_two_ranks_share_one_server(tmp_path, state, url, two_ranks):
    script = Path(__file__).with_name("vllm_ranks.py")
    with two_ranks(script, state.name, url, tmp_path, 5, log=tmp_path / "output"):
        pass
    log = json.loads((tmp_path / "log.json").read_text())
    gaps = [entry[GAP] for entry in log if GAP in entry]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4
    assert len(state.loads) == 2  # one rank talks to the server, for both
    assert [body["n"] for body in state.completions] == [4] * 4


class TestServer:
    def refusal(self, *arguments, **keywords):
        with pytest.raises(ConfigError) as caught:
            trainer(*arguments, **keywords)
        return str(caught.value)

    def test_nobody_there(self, folder, tmp_path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        text = self.refusal(folder, config(tmp_path, None, vllm_server_host="127.0.0.1", vllm_server_port=port))
        assert f"no vLLM server answers at http://127.0.0.1:{port} within 0.2 s" in text
        assert f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {folder} --enable-lora" in text

    @pytest.mark.parametrize(("sampling", "flag"), [
        ({}, "processed_logprobs."), ({"top_p": 0.9}, "processed_logprobs --max-logprobs 128."),
        ({"top_k": 200}, "processed_logprobs --max-logprobs 201."),
        ({"generation_kwargs": {"top_k": 200}}, "processed_logprobs --max-logprobs 201."),
        ({"top_k": 10}, "processed_logprobs."),
    ], ids=str)  # fmt: skip
    @pytest.mark.parametrize("way", ["adapter", "files"])
    def test_the_command_is_for_what_the_run_will_ask(self, way, sampling, flag, folder, tmp_path):
        args = config(tmp_path, "http://127.0.0.1:9", vllm_server_timeout=0.01, rollout={"vllm_sync": way}, **sampling)
        adapter = LoraConfig(r=4, target_modules="all-linear") if way == "adapter" else None
        with pytest.raises(ConfigError) as caught:
            GRPOPlusTrainer(folder, digits, args, ROWS, peft_config=adapter)
        assert str(caught.value).replace("\n", " ").rstrip(".").endswith(flag.rstrip("."))

    def test_a_server_that_tells_fewer_is_asked_for_fewer(self, tmp_path):
        class Least(Client):
            def complete(self, *payloads, read=list):
                seen.append(payloads[0]["logprobs"])
                if seen[-1] > most:
                    raise ServerError(f"Requested sample logprobs of {seen[-1]}, greater than max allowed: {most}")
                return [read([{"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}])]

        for allowed, asked in [(201, [201]), (130, [201, 128]), (20, [201, 128, 20])]:
            seen, most = [], allowed
            client = Least("http://127.0.0.1:9", patience=0.1)
            server = VllmServer(client, AdapterPush(), sampling={"top_k": 200}, **PARTS)
            server._complete([[1, 2]])
            assert seen == asked

    @pytest.mark.slow
    def test_another_model(self, folder, tmp_path, state, url):
        state.name = "Qwen/Qwen3-8B"
        text = self.refusal(folder, config(tmp_path, url))
        assert f"serves Qwen/Qwen3-8B, but {folder} is trained" in text
        assert f"--served-model-name {folder}" in text

    @pytest.mark.slow
    @pytest.mark.parametrize("rank", [24, 32])
    def test_no_permission_to_load_adapters(self, folder, tmp_path, state, url, rank):
        state.updating = False
        text = self.refusal(folder, config(tmp_path, url), r=rank)
        assert "has no /v1/load_lora_adapter" in text
        assert "--max-lora-rank 32" in text  # vLLM makes room for some ranks only

    @pytest.mark.slow
    @pytest.mark.parametrize(("field", "value", "said"), [
        ("most_rank", 2, r"HTTP 500: LoRA rank 4 is greater than max_lora_rank 2\."),
        ("blind", True, "HTTP 404: .*No adapter found for .*on a disk that both share"),
        ("hide_ids", True, "must know return_token_ids"),
    ])  # fmt: skip
    def test_one_that_cannot_serve_the_adapter_or_tell_ids(self, field, value, said, folder, tmp_path, state, url):  # noqa: PLR0917
        setattr(state, field, value)
        run = trainer(folder, config(tmp_path, url))
        with pytest.raises(ServerError, match=said):
            run.train()

    @pytest.mark.slow
    def test_a_busy_one_is_asked_again_and_one_that_stays_busy_is_given_up(self, folder, tmp_path, state, url):
        run = trainer(folder, config(tmp_path, url, max_steps=1))
        state.busy = 3
        run.train()
        assert state.busy == 0
        state.busy = 1000
        with pytest.raises(ServerError, match="HTTP 503"):
            run.evaluate()

    @pytest.mark.slow
    def test_one_that_dies_is_named(self, folder, tmp_path, state):
        with vllm_like.serving(state) as address:
            run = trainer(folder, config(tmp_path, address))
        with pytest.raises(ServerError, match=r"cannot be reached any more: .*refused"):
            run.train()

    def test_one_that_hangs_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            client = Client(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/", patience=0.1, timeout=0.2)
            with pytest.raises(ServerError, match=r"/v1/models gave no answer within 0\.2 s"):
                client.models()

    @pytest.mark.slow
    def test_a_key_is_sent_and_an_answer_that_was_lost_does_not_fail_the_second_try(self, state, url, monkeypatch):
        state.adapters["mine"] = Path()
        assert Client(url, patience=1).load("mine", "/x") is None
        state.key = "secret"
        client = Client(url, patience=0.1)
        with pytest.raises(ServerError, match="HTTP 401"):
            client.models()
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        assert client.models()[0]["id"] == state.name

    @pytest.mark.slow
    def test_what_is_no_server_of_vllm(self, state, url, monkeypatch):
        for address in ("localhost:8000", "http://[localhost"):
            with pytest.raises(ServerError, match="expected something like http://localhost:8000"):
                Client(address, patience=1)
        monkeypatch.setattr(state, "get", lambda _: (200, "<html>"))
        with pytest.raises(ServerError, match="answered no JSON"):
            Client(url, patience=1).models()


class TestRequests:
    @pytest.mark.parametrize("name", OWN)
    def test_what_the_request_sets_itself_is_refused(self, name):
        (problem,) = request_problems({name: 5, "seed": 1, "stop": ["x"]}, None)
        assert problem.startswith(f"generation_kwargs has {name} (5), which ")
        assert request_problems({"seed": 1, "max_tokens": 8, "structured_outputs": {"regex": "a"}}, None) == []
        (problem,) = request_problems({"structured_outputs": 1}, "b")
        assert "would override vllm_structured_outputs_regex ('b')" in problem

    def test_no_field_of_the_request_is_left_out_of_that_list(self):
        class Asked(Client):
            def complete(self, *payloads, read=list):
                seen.extend(payloads)
                raise ServerError("enough")

        seen = []
        client = Asked("http://127.0.0.1:9", patience=0.1)
        server = VllmServer(client, AdapterPush(), sampling={"top_p": 0.5}, **PARTS)
        with pytest.raises(ServerError, match="enough"):
            server._complete([[1, 2]])
        assert set(seen[0]) - {"top_p"} <= set(OWN)

    @pytest.mark.parametrize("mode", ["server", "colocate"])
    def test_a_run_ends_before_anything_loads(self, mode, folder, tmp_path):
        kwargs = {"vllm_mode": mode, "generation_kwargs": {"logprobs": 5}}
        with pytest.raises(ConfigError, match=r"generation_kwargs has logprobs \(5\), which is set by training itself"):
            trainer(folder, config(tmp_path, "http://127.0.0.1:9", **kwargs))


class TestAdapters:
    def test_what_vllm_cannot_serve_is_refused_before_anything_is_asked(self, folder, tmp_path):
        for changes, name in (
            ({"use_dora": True}, "use_dora"),
            ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
            ({"bias": "lora_only"}, "bias"),
            ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
            ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
            ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ):
            with pytest.raises(ConfigError, match=rf"vLLM cannot serve adapters with {name}") as caught:
                trainer(folder, config(tmp_path, "http://127.0.0.1:9"), **changes)
            assert "rollout: auto" in str(caught.value)

    def test_what_it_can_is_let_through_and_a_loss_that_needs_weights_per_token_says_so(self, folder, tmp_path):
        assert adapter_problems(LoraConfig(r=8, use_rslora=True, init_lora_weights="gaussian")) == []
        assert "this one is IA3" in adapter_problems(IA3Config())[0]
        args = config(tmp_path, "http://127.0.0.1:9", loss_type="vespo")
        with pytest.raises(ConfigError, match="set vllm_importance_sampling_mode to 'token_truncate'"):
            trainer(folder, args)


def test_what_the_server_draws_takes_no_memory_here(tmp_path):
    model = AutoConfig.for_model("qwen3", num_hidden_layers=4)

    def planned(url, **changes):
        return settings_of(config(tmp_path, url, max_completion_length=2048, **changes), None, bits=4)

    elsewhere = planned("http://127.0.0.1:9", rollout="stock")
    there, here = (estimate(shape_of(model), each) for each in (elsewhere, planned(None, use_vllm=False)))
    assert there.cache == 0 < here.cache
    assert (there.prefill, there.train) == (0, here.train)


@pytest.mark.slow
class TestHostileServers:
    @staticmethod
    @contextmanager
    def answering(status, script):
        """A server that answers with this status and what a script writes."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with suppress(OSError):
                    self.send_response(status)
                    script(self)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    @pytest.mark.parametrize("status", vllm_http.REDIRECTS)
    def test_a_redirect_is_refused_and_nobody_else_is_asked(self, status, monkeypatch):
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        asked = []

        def other(handler):
            asked.append(handler.headers.get("Authorization"))
            handler.end_headers()

        with self.answering(200, other) as elsewhere:

            def away(handler):
                handler.send_header("Location", f"{elsewhere}/v1/models")
                handler.end_headers()

            refused = pytest.raises(ServerError, match="vllm_server_base_url to the final")
            with self.answering(status, away) as url, refused:
                Client(url, patience=1).models()
        assert asked == []

    def test_an_answer_that_trickles_ends_at_the_deadline(self):
        sent = []

        def trickle(handler):
            handler.end_headers()
            while len(sent) < 600:
                handler.wfile.write(b" ")
                sent.append(1)
                time.sleep(0.05)

        with self.answering(200, trickle) as url, pytest.raises(ServerError, match=r"gave no answer within 0\.5 s"):
            Client(url, patience=1, timeout=0.5).models()
        assert len(sent) < 300

    def test_an_endless_answer_is_left_after_what_was_asked_for(self):
        sent = []

        def endless(handler):
            handler.end_headers()
            while len(sent) < 4000:
                handler.wfile.write(b" " * (1 << 20))
                sent.append(1)

        wanted = {"n": 2, "max_tokens": 1000, "prompt": [1] * 24}
        assert vllm_http.largest_answer(wanted) == (4 << 20) + 512 * 2 * 1024
        with (
            self.answering(200, endless) as url,
            pytest.raises(ServerError, match=r"5 MiB.*more than this request can need"),
        ):
            Client(url, patience=1).complete(wanted)
        assert len(sent) < 100

    @pytest.mark.parametrize("body", [
        b'{"a":' * 100_000, b"[" * 100_000, b'{"choices": [1]}', b'{"choices": {"0": 1}}', b'{"choices": [{"index": "x"}]}', b'{"choices": [{"index": 1e999}]}', b'{"choices": null}',
        b'{"choices": [{"token_ids": "ab", "logprobs": {"token_logprobs": [0, 0]}}]}', b'{"choices": [{"token_ids": [1.5], "logprobs": {"token_logprobs": [0]}}]}',
        b'{"choices": [{"token_ids": [-1], "logprobs": {"token_logprobs": [0]}}]}', b'{"choices": [{"token_ids": [1], "logprobs": [0]}]}', b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": ["x"]}}]}',
        *(b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [%s]}}]}' % logp for logp in (b"NaN", b"-Infinity", b"0.5", b"true", b"-1e999")),
        b'{"choices": [{"token_ids": [1, 2, 3], "logprobs": {"token_logprobs": [-1, -1, -1]}}]}',
    ], ids=lambda body: body[:60].decode())  # fmt: skip
    def test_an_answer_of_wrong_types_is_the_servers_fault(self, body):
        def answer(handler):
            handler.end_headers()
            handler.wfile.write(body)

        with self.answering(200, answer) as url:
            server = VllmServer(Client(url, patience=1), AdapterPush(), sampling={"max_tokens": 2}, **PARTS)
            with pytest.raises(ServerError, match=url):
                server._complete([[1, 2]])

    def test_a_key_that_a_server_repeats_is_not_shown(self, monkeypatch):
        monkeypatch.setenv("VLLM_API_KEY", "zq7Xw2Lk9Pm4Rt")

        def echo(handler):
            handler.end_headers()
            handler.wfile.write(str(handler.headers).encode())

        with self.answering(400, echo) as url, pytest.raises(ServerError) as caught:
            Client(url, patience=1).models()
        assert "400" in str(caught.value)
        assert "zq7Xw2Lk9Pm4Rt" not in str(caught.value)

    def test_a_password_in_the_address_is_refused_and_not_repeated(self):
        with pytest.raises(ServerError, match="VLLM_API_KEY") as caught:
            Client("http://user:hunter2@localhost:8000", patience=1)
        assert "hunter2" not in str(caught.value)
