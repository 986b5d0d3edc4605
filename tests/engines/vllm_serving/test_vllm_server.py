"""Completions from a real vLLM server: adapters alone and whole weights by file, compared with the trainer's own.

Every step's log-probabilities from the server are compared with those that the trained model gives to the same tokens.
"""

import json
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback

from grpo_plus.sampling.vllm_http import ServerError
from grpo_plus.sampling.vllm_server import VllmServer
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError

from .conftest import GAP, logged

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow]

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
EXAMPLES = TESTS.parent / "examples/accelerate"


def learnt(run):
    rewards = logged(run, "reward")
    return (sum(rewards[-2:]) - sum(rewards[:2])) / 2


class At(TrainerCallback):
    def __init__(self, step, do):
        self.step, self.do = step, do

    def on_step_end(self, _args, state, _control, **_):
        if state.global_step == self.step:
            self.do()


class Texts(Hook):
    def __init__(self, seen):
        self.seen = seen

    def scored(self, completions, rewards_NK):
        self.seen += [text if isinstance(text, str) else text[-1]["content"] for text in completions.texts]
        return rewards_NK


class TestAdapters:
    def test_on_a_plain_base_every_step_draws_from_its_own_weights_and_learns(self, server, make, exact, tmp_path):
        run = make(server.url, lora=True)
        run.train()
        exact(run)
        assert learnt(run) > 0.15
        assert server.adapters() == []
        assert not (tmp_path / "out/_vllm_adapter").exists()

    @pytest.mark.parametrize("lora", [True, False])
    def test_without_the_update_the_gap_shows(self, server, make, monkeypatch, lora):
        monkeypatch.setattr(VllmServer, "sync_weights", lambda self: None)
        run = make(server.url, lora=lora, max_steps=4)
        run.train()
        gaps = logged(run, GAP)
        assert gaps[0] < 1e-4
        assert min(gaps[1:]) > 1e-2

    def test_on_a_base_in_4_bits_whose_server_holds_the_same_numbers(self, dequantised_server, make, exact):
        run = make(dequantised_server.url, four=True, optim="adamw_torch")
        run.train()
        exact(run)
        assert learnt(run) > 0.15

    def test_a_server_with_another_base_is_off_by_the_rounding_and_the_correction_sees_it(self, server, make):
        run = make(server.url, four=True, optim="adamw_torch", max_steps=2)
        run.train()
        assert min(logged(run, GAP)) > 1e-3

    def test_on_a_model_that_was_changed_in_memory_is_refused_and_where_asked_for_the_difference_is_logged(
        self, server, make
    ):
        model = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
        with torch.no_grad():
            model.lm_head.weight.mul_(0.45)
        with pytest.raises(ConfigError, match=r"handed over as an object, .* set rollout: \{vllm_sync: adapter"):
            make(server.url, model=model, lora=True)
        run = make(server.url, model=model, lora=True, rollout={"vllm_sync": "adapter"}, max_steps=1)
        run.train()
        (mean,) = logged(run, "rollout/logp_drift")
        assert 0.05 < mean < 0.2

    def test_two_runs_share_a_server_without_taking_each_others_weights(self, server, make, exact):
        first, second = make(server.url, "one", lora=True, max_steps=4), make(server.url, "two", lora=True, max_steps=4)
        seen = []
        # The second run trains as a whole while the first stands between two steps, with its adapter on the server.
        look = lambda: seen.append(server.adapters())  # noqa: E731 - three times
        first.add_callback(At(2, lambda: (look(), second.train(), look())))
        second.add_callback(At(2, look))
        first.train()
        exact(first, 4)
        exact(second, 4)
        assert [len(names) for names in seen] == [1, 2, 1]
        assert seen[0] == seen[2]


class TestFiles:
    def test_every_step_draws_from_its_own_weights_and_learns(self, server, make, exact, tmp_path):
        run, before = make(server.url), server.scores()
        folders, seen, kept = [], [], tmp_path / "out/_vllm_weights"
        run.add_callback(At(6, lambda: seen.append(server.scores())))
        run.add_callback(At(3, lambda: folders.extend(sorted(path.name for path in kept.iterdir()))))
        run.train()
        exact(run)
        assert learnt(run) > 0.1
        assert seen[0] != pytest.approx(before, abs=1e-2)
        assert server.scores() == pytest.approx(before, abs=1e-4)  # its own weights, as it was found
        assert len(folders) == 1  # of one version, and none half written
        assert folders[0].endswith("-3")
        assert not kept.exists()

    def test_a_server_that_is_killed_and_started_again_is_handed_the_weights_again(self, server, make, exact, caplog):
        run = make(server.url, max_steps=5, learning_rate=2e-3)

        def restart():
            server.kill()
            threading.Thread(target=server.start, kwargs={"patience": None}).start()

        run.add_callback(At(2, restart))  # training goes on at once, and finds nobody there
        run.train()
        exact(run, 5)
        assert "Waiting for it, 120 s at most" in caplog.text

    def test_somebody_who_writes_to_the_server_between_two_steps_is_noticed(self, server, make, exact, caplog):
        run = make(server.url, max_steps=4, learning_rate=2e-3)
        draw = VllmServer._complete
        others = iter([False, False, True, False, False])

        def complete(self, prompts):
            found = draw(self, prompts)
            if next(others):  # while it draws
                server.as_at_the_start()
            return found

        run.add_callback(At(1, server.as_at_the_start))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VllmServer, "_complete", complete)
            run.train()
        exact(run, 4)
        assert caplog.text.count("They are handed over again") == 1

    def test_a_request_of_somebody_else_that_is_under_way_during_a_push_changes_nothing(self, server, make, exact):
        body = {"model": str(server.model), "prompt": "1+", "max_tokens": 200, "ignore_eos": True, "logprobs": 0}
        ended, under_way, going = [], threading.Event(), True

        def ask():
            while going:
                under_way.set()
                ended.append(server.ask("POST", "/v1/completions", body))

        others = [threading.Thread(target=ask) for _ in range(2)]
        for thread in others:
            thread.start()
        under_way.wait(30)
        try:
            run = make(server.url, max_steps=3, learning_rate=2e-3)
            run.train()
        finally:
            going = False
            for thread in others:
                thread.join(60)
        exact(run, 3)
        assert len(ended) > 3
        assert all(len(answer["choices"][0]["logprobs"]["tokens"]) == 200 for answer in ended)

    def test_a_disk_that_is_full_at_a_push_ends_the_run_in_words_and_gives_the_server_back(
        self, server, make, small_disk
    ):
        disk, before = small_disk("2200k"), server.scores()  # a version takes 1.3 MB, and the last one stands beside it
        run = make(server.url, output_dir=str(disk / "out"), max_steps=3, report=False)
        with pytest.raises(ServerError, match=r"could not be written to .*_vllm_weights: .* Free some space"):
            run.train()
        assert run.state.global_step == 1
        assert server.scores() == pytest.approx(before, abs=1e-4)
        assert not (disk / "out/_vllm_weights").exists()

    def test_a_pattern_holds_for_all_that_is_drawn(self, server, make):
        run, texts = make(server.url, max_steps=1, vllm_structured_outputs_regex=r"[1-4]{3}"), []
        run.pipeline.stages.append(Texts(texts))
        run.train()
        assert len(texts) == 64
        assert all(re.fullmatch("[1-4]{3}", text) for text in texts), set(texts)


@pytest.mark.timeout(600)  # DeepSpeed may have to compile first
class TestRanks:
    @pytest.fixture
    def draws_from_its_own_weights(self, server, beside, port, tmp_path):
        def see(engine, config, **environment):
            launch = ["--config_file", config, "--mixed_precision", "no", "--num_processes", "2"]
            command = [sys.executable, "-m", "accelerate.commands.launch", *launch, "--main_process_port", port()]
            arguments = [TESTS / "rank.py", HERE / "ranks.py", engine, server.url, server.model, tmp_path]
            with beside([*command, *arguments], tmp_path / "log", 500, environment=environment):
                pass
            log = json.loads((tmp_path / "log.json").read_text())
            assert log.pop("gathered") == 2  # the reference, at the first of three steps and after its refresh
            gaps = [[entry[GAP] for entry in entries if GAP in entry] for entries in log.values()]
            assert [len(of) for of in gaps] == [3, 3]
            assert max(map(max, gaps)) < 1e-4

        return see

    def test_under_fsdp2(self, draws_from_its_own_weights):
        draws_from_its_own_weights("fsdp2", EXAMPLES / "fsdp2.yaml", ACCELERATE_TORCH_DEVICE="cpu")

    @pytest.mark.engine("deepspeed")
    def test_under_zero_3(self, draws_from_its_own_weights, compiled, tmp_path):
        text = (EXAMPLES / "zero2.yaml").read_text().replace("zero_stage: 2", "zero_stage: 3")
        (tmp_path / "zero3.yaml").write_text(text)
        environment = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(compiled)}
        draws_from_its_own_weights("zero3", tmp_path / "zero3.yaml", **environment)


class TestLost:
    def test_a_server_that_is_gone_ends_the_run_and_its_last_checkpoint_goes_on(self, server, make, exact):
        saves = {"lora": True, "max_steps": 5, "save_strategy": "steps", "save_steps": 2}
        run = make(server.url, vllm_server_timeout=1.0, **saves)
        run.add_callback(At(3, server.kill))
        with pytest.raises(ServerError) as caught:
            run.train()
        text = str(caught.value)
        assert "cannot be reached any more" in text
        assert f"no vLLM server answers at {server.url} within 1 s" in text
        assert "The command is: VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve" in text
        server.start()
        again = make(server.url, **saves)
        again.train(resume_from_checkpoint="last")
        assert again.state.global_step == 5
        exact(again, 5)


class TestAnotherServer:
    def test_no_room_for_the_completions(self, server, make):
        with pytest.raises(ConfigError, match=r"(?s)has room for 256 tokens.*--max-model-len"):
            make(server.url, max_completion_length=256)

    def test_no_room_for_a_prompt_beside_them_ends_the_run_with_the_way_out(self, server, make, rows):
        long = [{**row, "prompt": [{"role": "user", "content": "1+" * 110 + "1"}]} for row in rows.select(range(8))]
        run = make(server.url, data=Dataset.from_list(long), max_steps=1)
        with pytest.raises(ServerError, match=r"\d+ input tokens.* Start it with a larger --max-model-len"):
            run.train()

    def test_a_token_that_the_model_does_not_know(self, server, make):
        run = make(server.url, max_steps=1)
        run.pipeline.vllm_server.server._vocabulary = 20
        with pytest.raises(ServerError, match=r"drew the token \d+, but .* knows 20 tokens"):
            run.train()
