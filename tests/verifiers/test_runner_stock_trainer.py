"""Verifiers as reward functions of TRL's own GRPOTrainer, trained for real."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_verifiers_are_reward_functions_of_a_stock_trainer(tiny_model, tmp_path):
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_verifiers import Verdict, all_of, get_verifier

    def letters(completion, target, *, bonus: float = 0.0):
        share = completion.count(target) / max(1, len(completion))
        return Verdict(share + bonus, detail=f"{share:.2f} of {target!r}")

    async def length(completion):
        return float(len(completion))

    funcs = [
        get_verifier(letters, bonus=0.5),
        get_verifier(length),
        all_of(get_verifier("think_format"), get_verifier("exact", columns={"answer": "target"}), label="both"),
    ]
    data = Dataset.from_dict({"prompt": ["one", "two"] * 4, "target": ["e", "o"] * 4})
    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=2,
        report_to="none", logging_steps=1, use_cpu=True, reward_weights=[1.0, 0.1, 1.0], log_completions=False,
    )  # fmt: skip
    trainer = GRPOTrainer(model=tiny_model, reward_funcs=funcs, args=args, train_dataset=data)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2
    for entry in logs:
        assert entry["rewards/letters/mean"] == pytest.approx(entry["verifiers/letters/mean"], abs=1e-5)
        assert entry["rewards/letters/mean"] >= 0.5
        assert entry["rewards/length/mean"] >= 0
        assert entry["verifiers/both/status/wrong"] + entry["verifiers/both/status/unparsable"] == 1.0
        assert entry["verifiers/letters/latency_p95"] > 0
    assert set(trainer._logs["extra"]) >= {"letters_status", "letters_reason", "length_status", "both_reason"}
    assert all("of" in reason for reason in trainer._logs["extra"]["letters_reason"])
