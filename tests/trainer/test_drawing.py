"""Dead groups: which rows are trained with, against batches that are put together by hand."""

import torch


def by_prompt(completions, prompts, **_):
    """0 and 1 in turn where the number in the prompt is even; 1 for all completions of the others."""
    return [1.0 if int(prompt.split("+")[0]) % 2 else float(row % 2) for row, prompt in enumerate(prompts)]


def prompts_of(trainer, output):
    tokenizer = trainer.processing_class
    return tokenizer.batch_decode(output["prompt_ids"], skip_special_tokens=True)


def test_resample_replaces_dead_groups_by_fresh_prompts(build, capture):
    settings = {"dead_groups": "resample", "dead_groups_kwargs": {"rounds": 8}, "per_device_train_batch_size": 16}
    trainer = build(trainer={"reward_funcs": by_prompt}, **settings, max_steps=1)
    kept = capture(trainer)
    trainer.train()
    prompts = prompts_of(trainer, kept[0])
    assert all(int(prompt.split("+")[0]) % 2 == 0 for prompt in prompts)
    assert len(set(prompts)) == 4
    assert (kept[0]["advantages"] != 0).all()


def test_roulette_stops_ties_or_goes_on_with_weight(build, capture):
    settings = {"dead_groups": "roulette", "dead_groups_kwargs": {"keep": 0.5}, "per_device_train_batch_size": 32}
    trainer = build(trainer={"reward_funcs": by_prompt}, **settings, max_steps=1)
    kept = capture(trainer)
    trainer.train()
    shares_G4, lengths_G4 = kept[0]["share"].view(-1, 4), kept[0]["completion_mask"].sum(1).view(-1, 4)
    prompts = prompts_of(trainer, kept[0])[::4]
    assert {0.0, 1.0, 2.0} == set(shares_G4.flatten().tolist())
    for prompt, shares_4, lengths_4 in zip(prompts, shares_G4.tolist(), lengths_G4.tolist(), strict=True):
        assert len(set(shares_4)) == 1
        assert (shares_4[0] == 1.0) == (int(prompt.split("+")[0]) % 2 == 0)
        assert (min(lengths_4[2:]) > 0) == (shares_4[0] > 0)
        assert min(lengths_4[:2]) > 0
    assert torch.isfinite(kept[0]["advantages"]).all()
