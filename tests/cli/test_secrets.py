"""Secrets given in every way there is, and a run, its card, record, report and errors searched for them."""

import dataclasses
import json
import os
import pickle
import re
import sys
import types
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
import transformers.trainer
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from pyarrow import parquet
from transformers import GenerationConfig
from trl import ModelConfig, ScriptArguments

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.cli import main
from grpo_plus.evaluation.store import SampleStore
from grpo_plus.sweep.manifest import open_manifest
from grpo_plus.sweep.plan import make_plan
from grpo_verifiers import get_verifier
from grpo_verifiers.errors import ConfigError, KeywordError
from grpo_verifiers.redaction import HIDDEN, redact, redact_text
from grpo_verifiers.redaction.names import secret_kind
from grpo_verifiers.sandbox.confine import clean_environment
from tests import started

CANARY = "c4naryTHATmustNOTfly"
SECRET = """
token hub_token api_key apikey password client_secret aws_secret_access_key access_key private_key openai_key
Authorization authorization auth passwd db_password_ro credentials bearer x-api-key apiToken accessToken
clientSecret cookie dsn database_url hf_pat wandb_key tokens secret_key api_keys connection_string connectionString
passphrase pat webhook webhookUrl sas sasToken signature session sessionid sessionToken hfToken HF_TOKEN hftoken
authtoken AUTH_TOKEN github_pat smtp_pass proxy_authorization set-cookie Set-Cookie Api-Token apikeys userPassword pwd
jwt refresh_token bearerToken signing_key encryption_key ssh_key license_key service_account_key redis_url mongo_uri
bot_token slackToken vllm_api_key judge_token secrets credential creds cookies dsns private-key id_token csrf_token
access-tokens api-secret-key OPENAIKEY azure_openai_key anthropicApiKey tokenValue auth_header basic_auth webhook_url
hmac_key account_key shared_access_signature judge.api_key --hub_token kwargs.client.apiKey personal_access_token
oauth_token master_key masterkey userpwd psk pre_shared_key passw hf_tok token_hf key_api csrftoken authz mongourl
teams_hook_url seed_phrase basicauth PGPASS totp jwks user_pin recovery_codes
"""
NAMES = SECRET.split()
HARMLESS = """
max_tokens token_budget pad_token eos_token bos_token unk_token tokenizer tokenizer_name tokens_per_pass think api_key_env answer_key
token_type_ids monkey keyboard author passes path stop_token num_tokens total_tokens special_tokens max_new_tokens sort_key json_key k
passk pattern sequence_token stop_tokens gradient_checkpointing seed answer column name label threshold weights model base_url rubric reference_key
dataloader_pin_memory token_level key_dim num_key_value_heads tok_s tokens_per_s pinned keypoints keyword passing_score bypass pass_rate token_acc
"""
TOKENS = [
    "sk-proj-abcDEF123456", "hf_abcdefghijKLMNOP1234", "ghp_abcdefghij0123456789", "gho_abcdefghij0123456789", "github_pat_11ABCDE_abcdefgh", "xoxb-123456-abcdef",
    "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-1234567890abcdef", "glpat-abcdefghij012345", "npm_abcdefghij0123456789", "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "Bearer abcDEF123456", "Basic dXNlcjpwYXNz",
    "sk-ant-api03-abcDEF", "gsk_abcDEF123456", "nvapi-abcDEF12345", "pypi-AgEIcHlwaS5vcmcCJ", "hvs.CAESIabcdefgh",
    "hf_abcdefghijklmnopqrstuvwxyzabcdefgh", "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-x", "dapi0123456789abcdef0123456789abcdef", "ATATT3xFfGF0AbCdEf1234567890",
    "secret_AbCdEf1234567890AbCdEf12", "wandb_v1_AbCdEf1234567890AbCdEf12", "csk-AbCdEf1234567890AbCdEf", "EAAAEAbCdEf1234567890AbCdEf1234567890AbCdEf",
]  # fmt: skip

VERIFIER = """
import os
from grpo_verifiers import Verdict, verifier

@verifier("graded")
def graded(completion, *, api_key, endpoint="", headers=None, client=None, argv=()):
    if len(completion) % 3 == 0:
        raise ValueError(f"cannot log in with {api_key} at {endpoint}: {headers}")
    return Verdict(float(len(completion) % 2), detail=f"asked with {api_key} {headers}")
"""


def entry(**more):
    kwargs = {
        "api_key": CANARY,
        "endpoint": f"https://user:{CANARY}@host/v1?api_key={CANARY}",
        "headers": {"Authorization": f"Bearer {CANARY}"},
        "client": {"auth": {"api_key": [CANARY], "parts": [{"name": "X-Api-Key", "value": CANARY}]}},
        "argv": ["--judge.api_key", CANARY, f"--token={CANARY}"],
    }
    return {"name": "./graded.py:graded", "label": "graded", **(kwargs | more)}


def plus(folder, **values):
    return GRPOPlusConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **values)


def everything_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.binary(max_size=9)


def deeper(inner):
    return (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3) | st.tuples(inner, inner)
    )


class TestNames:
    @pytest.mark.parametrize("name", NAMES)
    def test_what_stands_under_the_name_of_a_secret_is_hidden(self, name):
        assert redact({name: "S3CR3T"}) == {name: HIDDEN}
        assert "S3CR3T" not in str(redact({name: ["S3CR3T", {"x": ("S3CR3T",)}]}))
        assert "S3CR3T" not in redact_text(f"unknown keyword {name}='S3CR3T'")
        assert "S3CR3T" not in redact_text(json.dumps({name: "S3CR3T"}))
        assert "S3CR3T" not in str(redact([f"--{name.lstrip('-')}", "S3CR3T"]))

    @pytest.mark.parametrize("name", HARMLESS.split())
    def test_what_stands_under_others_stays(self, name):
        for value in ("some text", 5, 0.5, ["a", "b"], None, True, {"x": "y"}):
            assert redact({name: value}) == {name: value}
        assert redact_text(f"{name}='text', {name}: 5") == f"{name}='text', {name}: 5"

    def test_two_words_side_by_side_are_a_pair_only_after_the_name_of_a_header(self):
        for pair in (["token", "sequence"], ["1 of 2 rows pass.", "row 1: weak"], ["session", "user"]):
            assert redact(pair) == pair
        hidden = [("Authorization", HIDDEN), ["x-api-key", HIDDEN]]
        assert redact([("Authorization", "x"), ["x-api-key", "y"]]) == hidden

    def test_of_all_fields_of_the_config_only_tokens_of_hubs_are_hidden(self):
        kinds = (GRPOPlusConfig, ModelConfig, ScriptArguments, LoraConfig)
        names = [field.name for kind in kinds for field in dataclasses.fields(kind)]
        assert [name for name in [*names, *GenerationConfig().to_dict()] if secret_kind(name)] == ["hub_token"]

    def test_no_default_of_the_config_is_masked(self, tmp_path):
        config = plus(tmp_path)
        assert {name for name, value in config.to_dict().items() if HIDDEN in str(value)} <= {"hub_token"}
        assert config.without_secrets() == config

    def test_a_worker_sees_no_variable_of_these_names(self):
        given = {name.lstrip("-").upper().replace("-", "_").replace(".", "_"): "x" for name in NAMES}
        assert not clean_environment(given).keys() & given.keys()
        kept = dict.fromkeys(("PATH", "HOME", "LANG", "PYTHONPATH", "HF_HOME", "MONKEY"), "x")
        kept |= {"TOKENIZERS_PARALLELISM": "false"}
        assert clean_environment(kept | {"TOKENIZERS_PARALLELISM": "true"}).items() >= kept.items()


class TestTexts:
    @pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:12])
    def test_what_looks_like_a_secret_is_hidden_wherever_it_stands(self, token):
        for value in (f"error: {token} is wrong", {"note": token}, [[token]], {token: 1}, f"x={token}", f'"{token}"'):
            assert token not in str(redact(value))
            assert token.split()[-1][-8:] not in str(redact(value))

    @pytest.mark.sample(22)
    @pytest.mark.parametrize("text", [
        "hf_hub_download of sk-learn", "Set the token in HF_TOKEN", "token: the next one", "a basic auth with a user", "the answer is 5: wrong key", "https://host:8000/v1?limit=5",
        "eos_token='</s>', max_tokens=5, token=5", "git@github.com:x/y", "KeyError: 'model.layers.0.self_attn.q_proj.weight'", "unexpected token Qwen2ForCausalLM", "api_key=None", "auth: none", "Basic Algebra and Token Ids",
        "token: '<|im_end|>'", "signature: (x, y=3)", "The key is to note that x1=2", "ThisIsALongCamelCaseNameWith2Digits", "mailto:me@host.org/x", "12:30@noon", "Bearer token missing", "ratio: token", "revision 0123456789abcdef0123456789abcdef01234567", "f(x) = x: y", "session=12",
    ])  # fmt: skip
    def test_ordinary_texts_stay(self, text):
        assert redact_text(text) == text

    @pytest.mark.parametrize("text", [
        "https://user:S3CR3T@host/v1", "https://S3CR3T@host", "postgres://u:p@S3CR3T@host/db", "https://host/v1?api_key=S3CR3T&x=1", "https://host?x=1&sig=S3CR3T", "https://host/?key=S3CR3T",
        "--judge.api_key=S3CR3T", "--hub_token S3CR3T --x", "curl -H 'X-Api-Key: S3CR3T'", "Authorization: Basic S3CR3T", "{'cookie': 'a=S3CR3T; b=S3CR3T'}", "api_key=['S3CR3T', 'S3CR3T']", "Judge(api_key='S3CR3T x S3CR3T')",
        r'{\"password\": \"S3CR3T\"}', "https://hooks.slack.com/services/T0/S3CR3T/S3CR3T", "password: S3CR3T", "s3://b?X-Amz-Signature=S3CR3T",
        "me:S3CR3T@host:5432/db", "https%3A%2F%2Fuser%3AS3CR3T%40host", "curl -u me:S3CR3T https://h", "['-u', 'me:S3CR3T']", "X-Key: S3CR3T", "model: x\ntoken: S3CR3T\nseed: 1", "api_key=b'S3CR3T'",
        json.dumps(json.dumps(json.dumps({"api_key": "S3CR3T"}))), "Incorrect API key provided: aS3CR3Tb2c4d", "the password is aS3CR3Tb2c4d", "invalid token aS3CR3Tb2c4d",
    ])  # fmt: skip
    def test_addresses_options_and_headers(self, text):
        assert "S3CR3T" not in redact_text(text)

    @pytest.mark.parametrize("value", [
        {"note": f"uses {CANARY}", "kwargs": {"api_key": CANARY}}, {CANARY: 1, "api_key": CANARY}, {"name": "Authorization", "val": CANARY}, {"field": "password", "content": CANARY},
        NamedTuple("Client", [("api_key", str)])(CANARY), types.SimpleNamespace(api_key=CANARY), {b"api_key": CANARY}, {("client", "api_key"): CANARY}, {"api_key": PurePosixPath(CANARY)},
        ["Authorization", "Bearer", "aB3dE5gH7jK9mN1p"], ["curl", "--key", "aB3dE5gH7jK9"], ["curl", "-u", f"me:{CANARY}"],
    ], ids=str)  # fmt: skip
    def test_every_shape_in_which_a_secret_is_passed(self, value):
        found = str(redact(value))
        assert HIDDEN in found
        assert not re.search(rf"{CANARY}|aB3dE5gH7jK9", found)

    def test_a_secret_that_was_seen_is_hidden_without_its_name(self, monkeypatch):
        monkeypatch.setenv("MY_SERVICE_TOKEN", "from-the-environment-9")
        redact({"api_key": "seen-under-its-name-7"})
        assert redact_text("bad: seen-under-its-name-7, from-the-environment-9") == f"bad: {HIDDEN}, {HIDDEN}"
        monkeypatch.setenv("MY_SERVICE_TOKEN", "another-since-then-8")
        assert redact_text("from-the-environment-9, another-since-then-8") == f"from-the-environment-9, {HIDDEN}"

    @given(st.recursive(LEAVES, deeper, max_leaves=20), st.sampled_from(NAMES))
    def test_at_any_depth_and_what_is_no_secret_survives(self, value, name):
        found = redact({"before": 5, "a": [{"b": ({name: [value, CANARY]},)}]})
        assert CANARY not in str(found)
        assert found["before"] == 5
        assert redact(found) == found

    def test_dataclasses_cycles_and_hostile_lengths(self):
        made = dataclasses.make_dataclass("Client", [("api_key", str), ("url", str, "http://x")])
        assert redact([made(CANARY)]) == [{"api_key": HIDDEN, "url": "http://x"}]
        endless = {"x": 1}
        endless["me"] = endless
        assert redact(endless)["x"] == 1
        texts = ("a=", "token ", "--a ", "://", "x", "key: '", "eyJ", "-----BEGIN PRIVATE KEY-----", "Bearer ", '\\"')
        for part in texts:
            redact_text((part * 20_000)[:50_000])


class TestErrors:
    def test_unknown_keywords_of_verifiers_show_none(self):
        with pytest.raises(KeywordError, match="api_key") as caught:
            get_verifier("math", api_key=CANARY, headers={"Authorization": CANARY})
        assert CANARY not in str(caught.value)

    def test_problems_of_a_config_show_none(self, tmp_path):
        wrong = [{"name": "math", "api_key": CANARY, "timeout": CANARY}]
        with pytest.raises(ConfigError, match="learning_rate") as caught:
            plus(tmp_path, verifiers=wrong, hub_token=CANARY, learning_rate=CANARY)
        assert CANARY not in str(caught.value) + str(caught.value.problems)


class TestConfig:
    @pytest.fixture
    def config(self, tmp_path):
        (tmp_path / "graded.py").write_text(VERIFIER)
        item = entry() | {"name": f"{tmp_path}/graded.py:graded"}
        return plus(tmp_path, verifiers=[item], hub_token=CANARY, model_init_kwargs={"token": CANARY})

    def test_its_text_and_what_trackers_get_show_none(self, config):
        written = (config.to_dict(), config.to_json_string(), config.to_sanitized_dict())
        for text in (repr(config), *map(str, (config, *written))):
            assert CANARY not in text
            assert "graded" in text
        assert config.hub_token == config.model_init_kwargs["token"] == CANARY, "the run itself needs them"

    def test_a_pickle_of_what_the_host_writes_down_has_none(self, config):
        twin = config.as_written()
        assert twin.hub_token == CANARY, "pushing needs it"
        raw = pickle.dumps(twin)
        assert CANARY.encode() not in raw
        assert type(pickle.loads(raw)) is GRPOPlusConfig
        assert CANARY.encode() in pickle.dumps(config), "another process of the run needs it"


def test_a_push_while_training_uploads_none(tiny_model, tmp_path, monkeypatch):
    (tmp_path / "graded.py").write_text(VERIFIER)
    item = entry() | {"name": f"{tmp_path}/graded.py:graded"}
    args = plus(tmp_path / "out", verifiers=[item], num_generations=2, per_device_train_batch_size=2)
    trainer = GRPOPlusTrainer(tiny_model, None, args, Dataset.from_list([{"prompt": "1+1="}] * 4))
    trainer.args.hub_token, trainer.hub_model_id, trainer.push_in_progress = CANARY, "me/model", None
    uploads = []

    class Hub:
        def upload_folder(self, *, folder_path, token, **_):
            uploads.append(token)
            assert all(CANARY.encode() not in file.read_bytes() for file in everything_below(Path(folder_path)))

    monkeypatch.setattr(transformers.trainer, "hf_api", Hub)
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "out").mkdir(exist_ok=True)
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert uploads == [CANARY], "the upload itself is signed with it"
    assert (tmp_path / "out" / "training_args.bin").is_file()


def test_a_sweep_and_an_evaluation_write_none_down(config, folder):
    path = config(hub_token=CANARY)
    options = [f"--vllm_api_key={CANARY}", "--hub_token", CANARY]
    plan = make_plan(folder / "config.yaml", [], [1], options, folder / "sweep")
    open_manifest(plan).save()
    assert CANARY not in "".join(file.read_text() for file in everything_below(folder / "sweep"))
    assert open_manifest(plan), "the same options are recognised"
    for _ in range(2):
        SampleStore(folder / "samples.jsonl", {"option": [f"api_key={CANARY}"], "model": path}).close()
        assert CANARY not in (folder / "samples.json").read_text()


def test_explain_shows_none(config, folder, capfd):
    (folder / "graded.py").write_text(VERIFIER)
    path = config(reward_funcs=None, verifiers=[entry()], hub_token=CANARY)
    assert main(["check", "--only=config", path, f"--hub_token={CANARY}"]) == 0
    out, err = capfd.readouterr()
    assert "graded" in out
    assert HIDDEN in out
    assert CANARY not in out + err


@pytest.mark.slow
def test_a_run_leaves_none_in_any_file_nor_says_one(config, folder):
    (folder / "graded.py").write_text(VERIFIER)
    given = {"reward_funcs": None, "verifiers": [entry()], "model_init_kwargs": {"token": CANARY}, "advantage": "sign"}
    given |= {"save_strategy": "steps", "save_steps": 1, "log_completions": True, "run_name": f"token={CANARY}"}
    env = {**os.environ, "VLLM_API_KEY": CANARY, "WANDB_API_KEY": CANARY, "MY_SERVICE_TOKEN": CANARY}

    def command(*words):
        words = [sys.executable, "-m", "grpo_plus.cli", *words]
        done = started.run(words, capture_output=True, env=env, timeout=280, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        return done.stdout + done.stderr

    said = command("train", config(hub_token=CANARY, **given), f"--hub_token={CANARY}")
    assert CANARY.encode() not in said + command("report", str(folder / "out"))
    files = everything_below(folder / "out")
    written = {"README.md", "run.json", "groups.jsonl", "report.html", "training_args.bin", "trainer_state.json"}
    assert written <= {path.name for path in files}
    assert any(path.suffix == ".parquet" for path in files)
    for file in files:
        held = str(parquet.read_table(file).to_pylist()).encode() if file.suffix == ".parquet" else file.read_bytes()
        assert CANARY.encode() not in held, file
    groups = (folder / "out" / "grpo_plus" / "groups.jsonl").read_text()
    assert "cannot log in with (hidden)" in groups, "the check's words are kept, its key is not"


@pytest.mark.slow
def test_a_run_that_fails_says_none(config, folder):
    fails = "from grpo_verifiers.errors import VerifierFailedError; raise VerifierFailedError"
    (folder / "graded.py").write_text(VERIFIER.replace("raise ValueError", fails).replace("% 3 == 0", ">= 0"))
    path = config(reward_funcs=None, verifiers=[entry()], advantage="sign")
    words = [sys.executable, "-m", "grpo_plus.cli", "train", path]
    done = started.run(words, capture_output=True, timeout=280, check=False)
    assert done.returncode != 0
    assert b"cannot log in with (hidden)" in done.stderr
    assert CANARY.encode() not in done.stdout + done.stderr
    assert all(CANARY.encode() not in file.read_bytes() for file in everything_below(folder / "out"))
