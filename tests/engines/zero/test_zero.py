"""Two ranks under ZeRO train as one process on TRL's own path does, and draw as two ranks under DDP."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.engines.zero.zero_jobs import CASES, FIRST_STAGE, RESUMED

pytestmark = [pytest.mark.engine("deepspeed"), pytest.mark.slow, pytest.mark.timeout(1200)]

STAGES = [*((1, name) for name in FIRST_STAGE), *((stage, name) for stage in (2, 3) for name in CASES)]
STAGES += [(2, "four")]


def read(folder, name):
    found = json.loads((folder / f"{name}.json").read_text())
    assert "error" not in found, found["error"]
    return found


def weights(folder, name):
    (path,) = (folder / name).glob("*model.safetensors")
    return load_file(path)


def off(mine, other):
    assert mine.keys() == other.keys()
    return max(float((mine[key].float() - other[key].float()).abs().max()) for key in mine)


def alike(mine, other, *names, rel=2e-6, least=2e-6):
    assert len(mine["logs"]) == len(other["logs"]) >= 3
    for entry, truth in zip(mine["logs"], other["logs"], strict=True):
        for name in names:
            assert (name in entry) == (name in truth), (name, entry["step"])
        for name in filter(truth.__contains__, names):
            assert entry[name] == pytest.approx(truth[name], rel=rel, abs=least), (name, entry["step"])


@pytest.mark.parametrize(("stage", "name"), STAGES)
def test_two_ranks_log_and_end_with_what_one_process_does(trained, stage, name):
    single, ranks = trained
    truth, mine = read(single, name), read(ranks, f"{name}_{stage}")
    alike(mine, truth, "loss", "grad_norm", "learning_rate", "reward")
    assert off(weights(ranks, f"{name}_{stage}"), weights(single, name)) < 1e-6


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_was_deepspeed_and_the_engine_that_trained_and_a_rank_of_dead_rows_ran_none(trained, stage):
    _, ranks = trained
    mine = read(ranks, f"full_{stage}")
    assert mine["wrapper"] == "DeepSpeedEngine"
    assert mine["kind"] == ("sharded" if stage == 3 else "replicated")
    assert (mine["in_pieces"] > 0) == (stage == 3)
    assert [engine["engine/layout"] for engine in mine["engine"]] == [2.0, 2.0]
    assert min(engine["engine/tokens_saved"] for engine in mine["engine"]) > 0.3
    mine, other = read(ranks, f"dead_{stage}")["engine"]
    assert mine["engine/rows_skipped"] < 1 == other["engine/rows_skipped"]


@pytest.mark.parametrize("stage", [2, 3])
def test_references_move_and_are_found_again_in_checkpoints(trained, stage):
    """The second refresh, after four steps, is not yet there while the third and the fourth are made."""
    single, ranks = trained
    for name in ("reference", "lora_reference"):
        assert read(ranks, f"{name}_{stage}")["reference"] == 4
        kls = [entry["kl"] for entry in read(ranks, f"{name}_{stage}")["logs"]]
        assert kls[2] < kls[1] / 2
        assert kls == pytest.approx([entry["kl"] for entry in read(single, name)["logs"]], rel=0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("stage", "name"), [(stage, name) for stage in (1, 2, 3) for name in RESUMED if stage > 1 or name == "adam"]
)
def test_a_resumed_run_ends_as_the_whole_one(trained, stage, name):
    _, ranks = trained
    whole, resumed = read(ranks, f"{name}_{stage}"), read(ranks, f"{name}_{stage}_resumed")
    assert [len(batches) for batches in resumed["drawn"]] == [2, 2]  # two of four steps
    assert resumed["drawn"] == [batches[2:] for batches in whole["drawn"]]
    alike(resumed, whole, "loss", "grad_norm", "learning_rate", rel=0, least=0)
    assert off(weights(ranks, f"{name}_{stage}_resumed"), weights(ranks, f"{name}_{stage}")) == 0


DRAWN = [(1, "drawn"), (2, "drawn"), (3, "drawn"), (3, "drawn_lora"), (3, "drawn_top_p")]


@pytest.mark.parametrize(("stage", "name"), DRAWN)
def test_our_rollouts_draw_what_they_draw_under_ddp(trained, stage, name):
    _, ranks = trained
    truth, mine = read(ranks, f"{name}_ddp"), read(ranks, f"{name}_{stage}")
    assert mine["lean"]
    assert mine["stock_drew"] is None
    assert sum("rollout/row_steps" in entry for entry in mine["logs"]) == (2 if "top_p" in name else 3)
    assert mine["drawn"] == truth["drawn"]
    assert mine["drawn"][0] != mine["drawn"][1]
    alike(mine, truth, "loss", "grad_norm", "rollout/row_steps")
    assert off(weights(ranks, f"{name}_{stage}"), weights(ranks, f"{name}_ddp")) < 1e-6
    rewards = [[entry["eval_reward"] for entry in run["evaluations"]] for run in (mine, truth)]
    assert rewards[0] == rewards[1]
    assert len(rewards[0]) == (3 if name == "drawn" else 0)


@pytest.mark.parametrize(
    ("stage", "name"), [*((stage, "measured") for stage in (1, 2, 3)), (2, "measured_lora"), (3, "measured_lora")]
)
def test_the_same_completions_are_measured_before_and_after_training(trained, stage, name):
    single, ranks = trained
    truth, mine = read(single, name), read(ranks, f"{name}_{stage}")
    assert mine["said"] == truth["said"]
    assert mine["measured"] == truth["measured"]
    assert len(mine["measured"]["after"]) == 15
    assert mine["measured"]["before"] != mine["measured"]["after"]
    alike(mine, truth, "loss", "grad_norm")
    assert off(weights(ranks, f"{name}_{stage}"), weights(single, name)) < 1e-6


def test_weights_that_stay_in_pieces_are_left_to_trl_to_draw_from(trained):
    _, ranks = trained
    mine = read(ranks, "drawn_in_pieces")
    assert not mine["lean"]
    assert not any("rollout/row_steps" in entry for entry in mine["logs"])
    assert len(mine["logs"]) == 3


@pytest.mark.parametrize("stage", [2, 3])
def test_rows_may_be_trimmed_in_place_of_packed(trained, stage):
    single, ranks = trained
    mine = read(ranks, f"trimmed_{stage}")
    assert {engine["engine/layout"] for engine in mine["engine"]} == {1.0}
    alike(mine, read(single, "full"), "loss", "grad_norm")
    assert off(weights(ranks, f"trimmed_{stage}"), weights(single, "full")) < 1e-6


@pytest.mark.parametrize("stage", [2, 3])
def test_an_optimizer_in_cpu_memory_trains_as_well(trained, stage):
    """DeepSpeed then puts an Adam of its own in the place of torch's, which rounds otherwise."""
    single, ranks = trained
    alike(read(ranks, f"offloaded_{stage}"), read(single, "offloaded"), "loss", "grad_norm", rel=1e-4, least=1e-5)
    assert off(weights(ranks, f"offloaded_{stage}"), weights(single, "offloaded")) < 2e-5


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("adapted", ["", "lora_"])
def test_under_bf16_the_engine_trains_as_trl_does(trained, stage, adapted):
    """DeepSpeed holds the weights in bf16 and gives log-probabilities in it: rounding is all that differs."""
    _, ranks = trained
    truth, mine = (read(ranks, f"half_{adapted}{kind}_{stage}") for kind in ("stock", "packed"))
    assert mine["dtype"] == "torch.bfloat16"
    assert {one["engine/layout"] for one in mine["engine"]} == {2.0}
    alike(mine, truth, "loss", "grad_norm", rel=2e-2, least=2e-3)
    ended = [weights(ranks, f"half_{adapted}{kind}_{stage}") for kind in ("stock", "packed")]
    assert torch.cat([(ended[0][key] - ended[1][key]).float().flatten() for key in ended[0]]).abs().mean() < 5e-4


@pytest.mark.parametrize("stage", [2, 3])
def test_under_bf16_the_reference_of_lora_moves_as_in_one_process_in_float32(trained, stage):
    single, ranks = trained
    truth, distances = read(single, "lora_reference"), {}
    for engine in ("stock", "packed"):
        mine = read(ranks, f"half_lora_reference_{engine}_{stage}")
        assert mine["dtype"] == "torch.bfloat16"
        assert mine["reference"] == 4
        assert len(mine["logs"]) == 4
        ended = weights(ranks, f"half_lora_reference_{engine}_{stage}"), weights(single, "lora_reference")
        distances[engine] = {
            name: max(abs(a[name] - b[name]) for a, b in zip(mine["logs"], truth["logs"], strict=True))
            for name in ("loss", "kl", "grad_norm")
        } | {"weights": off(*ended)}
        kls = [entry["kl"] for entry in mine["logs"]]
        assert kls[2] < kls[1] / 2
    for name, rounding in distances["stock"].items():
        assert distances["packed"][name] <= 2 * rounding + 5e-3, name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("measured_in_pieces", "ds3_gather_for_generation: false forbids"),
        ("four_3", "ZeRO-3 cannot shard a 4-bit base"),
        *((f"bound_{stage}", "it works on a single device only") for stage in (2, 3)),
    ],
)
def test_what_cannot_be_done_in_pieces_is_refused(trained, name, said):
    assert said in json.loads((trained[1] / f"{name}.json").read_text())["error"]
