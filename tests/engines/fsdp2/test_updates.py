"""An update on two FSDP2 ranks, on the engine's path, is that of one process on TRL's own."""

import json

import pytest
import torch

pytestmark = pytest.mark.nightly

NAMES = (
    "full", "full, trimmed", "full, TRL's path", "gradient checkpointing", "dead rows on one rank", "LoRA", "KL",
    "KL of LoRA", "KL of LoRA, weights kept whole", "reference", "reference, weights kept whole", "reference of LoRA",
    "reference of LoRA, weights kept whole", "target", "inner iterations", "process supervision",
)  # fmt: skip


OTHERS = {"trimmed": 1.0, "TRL's path": None}
HALF = ("bf16", "bf16, trimmed", "bf16, TRL's path")


@pytest.fixture(scope="module")
def updates(tmp_path_factory, tiny_model, alone, ranks):
    folder = tmp_path_factory.mktemp("updates")
    with alone("updates.py", folder, tiny_model, log=folder / "log of 1"):
        pass
    with ranks("updates.py", folder, tiny_model, log=folder / "log of 2"):
        pass
    return folder


def read(folder, rank, world):
    return json.loads((folder / f"rank {rank} of {world}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_log_and_end_with_what_one_process_does(updates, name):
    found = read(updates, 0, 2)[name]
    truth = read(updates, 0, 1)[found["alone"]]
    assert len(found["steps"]) == len(truth["steps"]) >= 3
    for mine, step in zip(found["steps"], truth["steps"], strict=True):
        assert mine["loss"] == pytest.approx(step["loss"], rel=1e-6, abs=2e-6)
        assert mine["grad_norm"] == pytest.approx(step["grad_norm"], rel=2e-6)
        assert mine.get("reward", 0) == pytest.approx(step.get("reward", 0), rel=1e-6)
    ended, expected = (
        torch.load(updates / f"{case} of {world}.pt") for case, world in ((name, 2), (found["alone"], 1))
    )
    assert ended.keys() == expected.keys()
    for model, weights in expected.items():
        assert ended[model].keys() == weights.keys()
        for key, weight in weights.items():
            assert float((ended[model][key] - weight).abs().max()) < 1e-6, (model, key)


def test_the_engine_was_at_work_and_one_rank_had_none(updates):
    mine, other = read(updates, 0, 2), read(updates, 1, 2)
    layouts = {name: {step.get("engine/layout") for step in case["steps"]} for name, case in mine.items()}
    others = {f"{name}, {kind}": {layout} for name in ("full", "bf16") for kind, layout in OTHERS.items()}
    assert layouts == {name: others.get(name, {2.0}) for name in (*NAMES, *HALF)}
    dead = "dead rows on one rank"
    assert [step["engine/rows_skipped"] for step in other[dead]["steps"]] == [1.0] * 3
    assert all(step["engine/rows_skipped"] < 0.5 for step in mine[dead]["steps"])


def test_under_bf16_the_engine_rounds_no_more_than_the_path_of_trl(updates):
    truth, whole = read(updates, 0, 1)["full"]["steps"], torch.load(updates / "full of 1.pt")["model"]

    def off(name):
        steps, ended = read(updates, 0, 2)[name]["steps"], torch.load(updates / f"{name} of 2.pt")["model"]
        norm = max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(steps, truth, strict=True))
        return norm, sum(float((ended[key].float() - whole[key]).square().sum()) for key in whole) ** 0.5

    stock = off("bf16, TRL's path")
    assert 0 < stock[1] < 1
    for name in ("bf16", "bf16, trimmed"):
        norm, weights = off(name)
        assert norm < 2 * stock[0] + 0.01
        assert weights < 2 * stock[1]


def test_the_references_moved_and_stayed_apart_from_the_policy(updates):
    full = torch.load(updates / "reference of 2.pt")
    assert any(not torch.equal(full["model"][key], full["reference"][key]) for key in full["reference"])
    lora = torch.load(updates / "reference of LoRA of 2.pt")["model"]
    copies = [key for key in lora if ".ref." in key]
    assert copies
    same = {torch.equal(lora[key], lora[key.replace(".ref.", ".default.")]) for key in copies}
    assert same == {True}  # refreshed after the last step
