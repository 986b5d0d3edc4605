"""Checkpoints of two FSDP2 ranks: a killed run goes on as the whole one, in both layouts of accelerate."""

import json

import pytest

pytestmark = pytest.mark.nightly

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
RUNS = (FULL, SHARDED, f"{FULL}, LoRA", f"{SHARDED}, full")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, tiny_model, alone, ranks):
    """Each rank's findings, and what one process says to a checkpoint of two ranks."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in (FULL, SHARDED):
        log = folder / f"log of {name}"
        with pytest.raises(AssertionError), ranks("checkpoints.py", folder, tiny_model, name, log=log):
            pass
        assert "Signal 9 (SIGKILL)" in log.read_text(), log.read_text()[-3000:]
    with ranks("checkpoints.py", folder, tiny_model, log=folder / "log"):
        pass
    with alone("checkpoints.py", folder, tiny_model, log=folder / "log of one"):
        pass
    return [json.loads((folder / f"rank {rank}.json").read_text()) for rank in range(2)], folder / "alone.txt"


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_ends_with_the_weights_reference_optimizer_and_log_of_the_whole_one(resumed, name):
    ranks, _ = resumed
    for found in ranks:
        assert found[name]["unlike"] == []
        assert found[name]["killed"] is (name in {FULL, SHARDED})
    again, whole = ranks[0][name]["history"]
    assert len(whole) == 4
    assert again == whole


@pytest.mark.parametrize("name", RUNS)
def test_the_manifest_lists_the_files_of_both_ranks(resumed, name):
    files = set(resumed[0][0][name]["files"])
    expected = {"rng_state_0.pth", "rng_state_1.pth"}
    if name.startswith(SHARDED):
        expected |= {f"{kind}/__{rank}_0.distcp" for kind in ("optimizer_0", "pytorch_model_fsdp_0") for rank in (0, 1)}
    else:
        expected |= {"optimizer.bin", "pytorch_model_fsdp.bin"}
    if name in {FULL, f"{SHARDED}, full"}:
        parts = ("generation_batch", "reference_model")
        expected |= {f"grpo_plus_{part}_{rank}.safetensors" for part in parts for rank in (0, 1)}
    assert expected <= files


def test_a_torn_part_makes_a_checkpoint_none_the_final_model_is_whole_and_another_layout_is_refused(resumed):
    assert [found["torn"] for found in resumed[0]] == [[4], [4]]
    assert resumed[0][0]["final"] == []
    for found in resumed[0]:
        assert ["sharding", f"FSDP ({FULL})", f"FSDP ({SHARDED})"] in cells(found["other layout"])
    assert ["sharding", f"FSDP ({FULL})", "unset"] in cells(resumed[1].read_text())


def cells(text):
    return [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines()]
