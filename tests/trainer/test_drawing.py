"""Dead groups in a trainer: which rows are trained with, against batches put together by hand and given to stock code."""

import math
from collections import defaultdict

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from grpo_plus.record import open_run
from grpo_plus.training.hooks import Hook
from grpo_plus.trl.rollout import use_vllm_server
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE
from tests.trainer.conftest import weights
from tests.trainer.test_drop_in import Doubling

PLAIN = {"max_steps": 1, "max_grad_norm": 0.0, "per_device_train_batch_size": 32, "temperature": 1.0}
RESAMPLE = {**PLAIN, "dead_groups": {"name": "resample", "rounds": 6}}
ROULETTE = {**PLAIN, "dead_groups": {"name": "roulette", "after": 3, "keep": 0.5}, "num_generations": 8}
both_ways = pytest.mark.parametrize("settings", [RESAMPLE, ROULETTE], ids=["resample", "roulette"])


def number(prompt):
    return int((prompt if isinstance(prompt, str) else prompt[-1]["content"]).split("+")[0])


def tied_if_odd(completions, prompts, **_):
    """1 for every completion of an odd prompt; 0 and 1 in turn for the others."""
    return [1.0 if number(prompt) % 2 else float(row % 2) for row, prompt in enumerate(prompts)]


def contrast(completions, **_):
    return [float(row % 2) for row in range(len(completions))]


class Watch(Hook):
    def __init__(self):
        self.rounds, self.batches, self.sizes = [], [], []

    def sampled(self, batch):
        self.sizes.append(self.host.num_generations)
        self.rounds.append((list(batch.completions.rows), dict(batch.output), list(batch.completions.ids)))
        return batch

    def batch(self, batch):
        self.batches.append((dict(batch.output), batch))


@pytest.fixture
def watched(build):
    """A trainer that has trained, what was seen, and the weights that it began with."""

    def watched(reward=tied_if_odd, *, trainer=None, **settings):
        watch = Watch()
        made = build(trainer={"reward_funcs": reward, "hooks": [watch], **(trainer or {})}, **settings)
        start = [parameter.detach().clone() for parameter in made.model.parameters()]
        made.train()
        return made, watch, start

    return watched


def gradients(trainer, start):
    rate = trainer.args.learning_rate
    return [(was - now.detach()) / rate for was, now in zip(start, trainer.model.parameters(), strict=True)]


def tokens_of(watch, at, row):
    _, output, ids = watch.rounds[at]
    prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()]
    return prompt, torch.tensor(ids[row], dtype=torch.long, device=DEVICE)


def by_hand(watch, places, fill):
    """A batch of the rows (round, row), None for one that is not there, as TRL pads it."""
    rows = [tokens_of(watch, *place[:2]) for place in places]
    rows = [(prompt, ids if len(place) == 2 else ids[:0]) for (prompt, ids), place in zip(rows, places, strict=True)]
    prompts, completions = zip(*rows, strict=True)
    ones = [[torch.ones_like(ids) for ids in part] for part in (prompts, completions)]
    return {
        "prompt_ids": pad(list(prompts), fill, "left"), "prompt_mask": pad(ones[0], 0, "left"),
        "completion_ids": pad(list(completions), fill, "right"), "completion_mask": pad(ones[1], 0, "right"),
    }  # fmt: skip


def stock_gradients(build, batch, start, **settings):
    settings = {name: value for name, value in settings.items() if not name.startswith(("dead_groups", "objective"))}
    stock = build(GRPOTrainer, GRPOConfig, **settings)
    for parameter, value in zip(stock.model.parameters(), start, strict=True):
        parameter.data.copy_(value)
    stock.model.train()
    stock.current_gradient_accumulation_steps = 1
    stock._compute_loss(stock.model, batch).backward()
    return [parameter.grad for parameter in stock.model.parameters()]


def assert_near(found, expected):
    norm = torch.cat([one.flatten() for one in expected]).norm()
    apart = torch.cat([(one - other).flatten() for one, other in zip(found, expected, strict=True)]).norm()
    assert norm > 1e-3
    assert apart <= 1e-3 * norm


@pytest.mark.sample(1)
def test_resample_trains_on_live_groups_and_fresh_prompts_exactly(build, watched):
    trainer, watch, start = watched(**RESAMPLE)
    output, drawn = watch.batches[0]
    places, live, seen = [], [], []
    for turn, (rows, *_) in enumerate(watch.rounds):
        assert len(rows) % 4 == 0
        for group in range(len(rows) // 4):
            members = rows[4 * group : 4 * group + 4]
            assert len({number(row["prompt"]) for row in members}) == 1
            seen.append(number(members[0]["prompt"]))
            if turn and not seen[-1] % 2:
                live.append((turn, group))
    assert len(set(seen)) == len(seen)  # 16 prompts, none of them drawn twice
    for group in range(8):
        dead = number(watch.rounds[0][0][4 * group]["prompt"]) % 2
        turn, at = live.pop(0) if dead and live else (0, group)
        places += [(turn, 4 * at + member) for member in range(4)]
    assert any(turn > 0 for turn, _ in places)
    expected = by_hand(watch, places, trainer._tokenizer.pad_token_id)
    for name, values in expected.items():
        assert torch.equal(output[name], values), name
    assert output["num_items_in_batch"].item() == expected["completion_mask"].sum()
    assert "share" not in output
    known = [[0.0, 1.0, 0.0, 1.0], [1.0] * 4]
    rewards = torch.tensor([known[number(row["prompt"]) % 2] for row in drawn.completions.rows[::4]], device=DEVICE)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(output["advantages"], advantages.flatten(), atol=1e-6)
    batch = expected | {"advantages": advantages.flatten(), "num_items_in_batch": output["num_items_in_batch"]}
    assert_near(gradients(trainer, start), stock_gradients(build, batch, start, **PLAIN))


@pytest.mark.sample(0)
def test_where_nothing_is_dead_the_batch_is_the_hosts_own_and_so_is_every_random_number(watched):
    def graded(completions, **_):
        return [float(row % 4) for row in range(len(completions))]

    found = []
    for way in ("keep", "resample"):
        trainer, watch, _ = watched(graded, **{**PLAIN, "max_steps": 3, "advantage": "zscore", "dead_groups": way})
        rounds = [output for _, output, _ in watch.rounds]
        assert len(rounds) == 3
        for (batch, _), output in zip(watch.batches, rounds, strict=True):
            assert all(batch[name] is output[name] for name in output if name != "advantages")
        own = ("dead_groups/", "time/", "step_time", "train_")
        logs = [{k: v for k, v in entry.items() if not k.startswith(own)} for entry in trainer.state.log_history]
        found.append((weights(trainer), torch.get_rng_state(), logs, trainer._logs))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(("prompts", "rounds"), [(4, 2), (1, 3), (5, 1)])
def test_all_dead_for_ever_ends_the_rounds_and_is_counted(watched, prompts, rounds):
    """The data has fewer prompts than a batch, or hardly more, so that fresh ones have to come again."""
    data = Dataset.from_list([{"prompt": f"{2 * place + 1}+0="} for place in range(prompts)])
    batch = min(prompts, 4)
    settings = {"max_steps": 3, "per_device_train_batch_size": 4 * batch}
    settings |= {"dead_groups": {"name": "resample", "rounds": rounds}}
    trainer, watch, start = watched(trainer={"train_dataset": data}, **RESAMPLE | settings)
    assert len(watch.rounds) == 3 * (1 + rounds)
    entry = trainer.state.log_history[0]
    assert (entry["dead_groups/rounds"], entry["dead_groups/drawn"]) == (1 + rounds, 4 * batch * (1 + rounds))
    assert entry["dead_groups/dead"] == entry["dead_groups/still_dead"] == 1
    assert entry["dead_groups/replaced"] == 0
    assert all(torch.equal(now, was) for now, was in zip(trainer.model.parameters(), start, strict=True))
    for (output, _), (_, first, _) in zip(watch.batches, watch.rounds[:: 1 + rounds], strict=True):
        assert output["completion_ids"] is first["completion_ids"]


def test_data_without_other_prompts_gives_new_completions_of_the_same(watched):
    """Each round draws a fourth of the prompts' contrast at random, and in the end all are alive."""
    calls = iter(range(100))

    def later(completions, prompts, **_):
        call = next(calls)
        return [float(row % 2) if row // 4 < call else 1.0 for row in range(len(prompts))]

    data = Dataset.from_list([{"prompt": f"{place}+0="} for place in range(4)])
    settings = RESAMPLE | {"per_device_train_batch_size": 16}
    trainer, watch, _ = watched(later, trainer={"train_dataset": data}, **settings)
    assert [len(rows) for rows, *_ in watch.rounds] == [16, 16, 12, 4]
    assert (watch.batches[0][0]["advantages"] != 0).all()
    assert trainer.state.log_history[0]["dead_groups/still_dead"] == 0


def roulette_by_hand(watch):
    """Places and weights of the rows, from the coins and from who is tied."""
    from grpo_plus.selection.dead_groups.roulette import Coins

    coins, places, weights = Coins(42), [], []
    going = 0
    for group in range(4):
        tied = number(watch.rounds[0][0][3 * group]["prompt"]) % 2
        weight = (2.0 if coins.next() < 0.5 else 0.0) if tied else 1.0
        places += [(0, 3 * group + member) for member in range(3)]
        if weight:
            places += [(1, 5 * going + member) for member in range(5)]
            going += 1
        else:
            places += [(0, 3 * group, None)] * 5
        weights += [weight] * 8
    return places, torch.tensor(weights, device=DEVICE), going


@pytest.mark.sample(1)
def test_roulette_draws_the_rest_of_live_groups_and_of_those_that_the_coin_spares_exactly(build, watched):
    settings = ROULETTE | {"loss_type": "dr_grpo"}
    trainer, watch, start = watched(**settings)
    places, weights, going = roulette_by_hand(watch)
    assert (watch.sizes, [len(rows) for rows, *_ in watch.rounds]) == ([3, 5], [12, 5 * going])
    output, drawn = watch.batches[0]
    expected = by_hand(watch, places, trainer._tokenizer.pad_token_id)
    for name, values in expected.items():
        assert torch.equal(output[name], values), name
    assert torch.equal(output["share"], weights)
    assert set(weights.tolist()) == {0.0, 1.0, 2.0}
    rewards = drawn.rewards.squeeze(1)
    assert rewards.isnan().tolist() == [len(place) == 3 for place in places]
    groups = rewards.reshape(4, 8)
    mean = groups.nanmean(1, keepdim=True)
    spread = torch.stack([group[~group.isnan()].std() for group in groups]).unsqueeze(1)
    advantages = ((groups - mean) / (spread + 1e-4)).nan_to_num(0.0).flatten()
    assert torch.allclose(output["advantages"], advantages, atol=1e-6)
    batch = expected | {"advantages": advantages * weights, "num_items_in_batch": output["num_items_in_batch"]}
    assert_near(gradients(trainer, start), stock_gradients(build, batch, start, **settings))


def test_a_batch_in_which_every_group_stops_trains_nothing_and_goes_on(watched):
    settings = ROULETTE | {"max_steps": 2, "objective": "grpo"}
    settings |= {"dead_groups": {"name": "roulette", "after": 2, "keep": 1e-9}}
    trainer, watch, start = watched(lambda completions, **_: [1.0] * len(completions), **settings)
    assert watch.sizes == [2, 2]
    assert all(torch.equal(now, was) for now, was in zip(trainer.model.parameters(), start, strict=True))
    assert [entry["dead_groups/stopped"] for entry in trainer.state.log_history[:2]] == [1, 1]
    assert [entry["loss"] for entry in trainer.state.log_history[:2]] == [0, 0]


@pytest.mark.parametrize("keep", [1.0, 0.25])
def test_where_every_group_shows_contrast_no_coin_is_thrown_and_nobody_weighs_more(watched, keep):
    settings = ROULETTE | {"dead_groups": {"name": "roulette", "after": 2, "keep": keep}, "objective": "dr_grpo"}
    trainer, watch, _ = watched(contrast, **settings)
    assert "share" not in watch.batches[0][0]
    assert (trainer.state.log_history[0]["dead_groups/drawn"], trainer.pipeline.dead_groups.state_dict()) == (32, {})


def test_completions_that_break_a_tie_after_the_coin_are_weighed_in_full(watched):
    """All are tied after two; the coin always spares; what follows has contrast."""

    def later(completions, prompts, **_):
        return [1.0 if len(prompts) == 8 else float(row % 3 == 0) for row in range(len(prompts))]

    settings = ROULETTE | {"dead_groups": {"name": "roulette", "after": 2, "keep": 1.0}}
    trainer, watch, _ = watched(later, **settings)
    output, drawn = watch.batches[0]
    assert drawn.rewards.squeeze(1).reshape(4, 8)[:, :2].eq(1).all()
    assert (output["advantages"].reshape(4, 8) != 0).all(1).all()
    assert trainer.state.log_history[0]["dead_groups/dead"] == 1


@both_ways
def test_the_table_and_the_record_show_what_is_trained_with_and_metrics_the_runs_own_prompts(watched, caplog, settings):
    def reward(completions, prompts, log_extra, **_):
        log_extra("place", [f"{len(prompts)}/{row}" for row in range(len(prompts))])
        return tied_if_odd(completions, prompts)

    verifiers = [{"name": "regex", "pattern": "(?s).*[aeiou].*", "weight": 0.0}]
    trainer, watch, _ = watched(reward, **{**settings, "verifiers": verifiers, "report": True, "log_completions": True})
    output, drawn = watch.batches[0]
    table, size = trainer._logs, trainer.num_generations
    kept = [len(ids) > 0 for ids in drawn.completions.ids]
    assert (False in kept) is (settings is ROULETTE)
    assert list(table["prompt"]) == list(drawn.completions.prompts)
    decoded = trainer.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    assert (list(table["prompt"]), list(table["completion"])) == (decoded, list(drawn.completions.texts))
    assert list(table["advantages"]) == output["advantages"].tolist()
    rewards = [value for values in table["rewards"].values() for value in values if not math.isnan(value)]
    assert len(rewards) == 2 * sum(kept)
    places = list(table["extra"]["place"])
    assert [place is not None for place in places] == kept
    first = [place for place in places if place is not None and place.startswith(f"{len(watch.rounds[0][0])}/")]
    assert 0 < len(first) < len(places)
    for text, held, (verdict,) in zip(drawn.completions.texts, kept, drawn.verdicts, strict=True):
        expected = ("correct" if set(text) & set("aeiou") else "wrong") if held else "not_applicable"
        assert verdict.status.value == expected
    entry = trainer.state.log_history[0]
    rows = watch.rounds[0][0]
    odd = sum(number(row["prompt"]) % 2 for row in rows) / len(rows)
    shown = tied_if_odd(rows, [row["prompt"] for row in rows])
    assert entry["rewards/reward/mean"] == pytest.approx(sum(shown) / len(rows))
    assert entry["dead_groups/dead"] == pytest.approx(odd)
    assert entry["dead_groups/drawn"] == sum(len(rows) for rows, *_ in watch.rounds)
    assert entry["dead_groups/rounds"] == len(watch.rounds)
    lengths = [len(ids) for _, _, ids in watch.rounds for ids in ids]
    prompts = [int(output["prompt_mask"].sum()) for _, output, _ in watch.rounds]
    assert entry["num_tokens"] == sum(lengths) + sum(prompts)
    assert entry["rollout/row_steps"] == sum(lengths) - len(lengths)
    assert "not recorded" not in caplog.text
    groups = list(open_run(trainer.args.output_dir).groups())
    assert groups
    for group in groups:
        members = slice(group["group"] * size, (group["group"] + 1) * size)
        assert [len(one["pieces"]) > 0 for one in group["completions"]] == kept[members]
        told = [one["verdicts"][0]["status"] for one in group["completions"]]
        assert told == [verdict.status.value for (verdict,) in drawn.verdicts[members]]


class Server:
    """Draws as vLLM does, as TRL's path for it asks: a prompt at a time, for all of its completions."""

    def __init__(self, host):
        self.host, self.asked = host, []

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations, profiler):
        unique = prompts[::num_generations]
        assert prompts == [ids for ids in unique for _ in range(num_generations)]
        self.asked.append((len(unique), num_generations))
        completions = [[5 + (len(ids) + 3 * row) % 60] * (1 + (len(ids) + row) % 7) for row, ids in enumerate(prompts)]
        logprobs = [[[-0.5 - 0.1 * place] for place in range(len(ids))] for ids in completions]
        return prompts, completions, logprobs, None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
@both_ways
def test_completions_of_vllm_keep_the_log_probabilities_they_were_drawn_with(build, settings, mode, monkeypatch):
    monkeypatch.setattr("grpo_plus.training.rollout.vllm_drift.FOREIGN", math.inf)  # what the server says is made up
    watch = Watch()
    more = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 9.0, "beta": 0.1}
    objective = {"objective": "grpo"} if settings is ROULETTE else {}
    trainer = build(trainer={"reward_funcs": tied_if_odd, "hooks": [watch]}, **{**settings, **more, **objective})
    use_vllm_server(trainer, Server(trainer))
    trainer.vllm_importance_sampling_correction = True
    trainer.train()
    asked = trainer.vllm_generation.asked
    sizes = {3, 5} if settings is ROULETTE else {4}
    assert {size for _, size in asked} == sizes
    assert len(asked) == len(watch.rounds) > 1
    output, drawn = watch.batches[0]
    names = ("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps", "importance_sampling_ratio")
    known = defaultdict(list)
    for _, batch, ids in watch.rounds:
        for row, completion in enumerate(ids):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
            known[str((prompt, completion))].append({name: batch[name][row] for name in names})
    for row, completion in enumerate(drawn.completions.ids):
        prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
        shown, candidates = (
            [{name: one[name][: len(completion)].tolist() for name in names} for one in some]
            for some in ([{name: output[name][row] for name in names}], known[str((prompt, completion))])
        )
        assert not completion or shown[0] in candidates
    width = 1 if mode == "sequence_mask" else output["completion_ids"].size(1)
    assert output["importance_sampling_ratio"].shape[1] == width


@both_ways
def test_tools_and_conversations_and_environments_take_part(watched, chats, tool_calls, tool_tokenizer, settings):
    class Quiet(Doubling):
        def get_reward(self):
            return 0.0

    given = {"train_dataset": chats, "environment_factory": Quiet, "processing_class": tool_tokenizer}
    _, watch, _ = watched(trainer=given, **settings, max_completion_length=160, log_completions=True)
    output, drawn = watch.batches[0]
    assert len(watch.rounds) > 1
    assert output["tool_mask"].shape == output["completion_mask"].shape
    wrote = output["tool_mask"] * output["completion_mask"]
    assert (wrote.sum(1) < output["completion_mask"].sum(1)).any()
    if settings is RESAMPLE:
        assert output["num_items_in_batch"] == wrote.sum()
    lengths = [len(ids) for ids in drawn.completions.ids]
    assert output["completion_mask"].sum(1).tolist() == lengths == drawn.lengths.tolist()


@both_ways
def test_groups_whose_completions_are_all_masked_are_dead_whatever_their_rewards(watched, settings):
    masked = {"mask_truncated_completions": True, "max_completion_length": 1}
    trainer, watch, _ = watched(contrast, **settings, **masked)
    rows, output, _ = watch.rounds[0]
    size = 4 if settings is RESAMPLE else 3
    masked = [not output["completion_mask"][at : at + size].any() for at in range(0, len(rows), size)]
    assert any(masked)
    assert trainer.state.log_history[0]["dead_groups/dead"] == sum(masked) / len(masked)


@pytest.mark.parametrize(("way", "data", "words"), [
    ("resample", lambda sums: sums.to_iterable_dataset(), "train_dataset is a stream"),
    ("roulette", lambda sums: sums.add_column("image", [None] * 16), "the column 'image' of train_dataset has images"),
    ("resample", lambda sums: sums.add_column("images", [None] * 16), "the column 'images' of train_dataset has images"),
])  # fmt: skip
def test_data_that_cannot_be_drawn_in_rounds_is_refused(build, sums, way, data, words):
    with pytest.raises(ConfigError, match=words):
        build(trainer={"train_dataset": data(sums), "model": "nowhere"}, dead_groups=way)


def test_evaluation_is_drawn_in_one_round_and_roulette_goes_with_a_stream(watched, sums):
    settings = ROULETTE | {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    given = {"train_dataset": sums.to_iterable_dataset(), "eval_dataset": sums.select(range(2))}
    trainer, watch, _ = watched(trainer=given, **settings)
    evaluations = [rows for rows, *_ in watch.rounds if len(rows) == 8]
    assert (len(evaluations), len(watch.rounds)) == (2, 4)
    assert not any(name.startswith("eval_dead_groups") for entry in trainer.state.log_history for name in entry)


@pytest.mark.parametrize("ways", [("roulette", "resample"), ("keep", "replay"), ("replay", "roulette")])
def test_a_run_goes_on_with_another_way(trained, tmp_path, ways):
    saved = {"save_strategy": "steps", "save_steps": 1, "objective": "grpo", "per_device_train_batch_size": 16}
    settings, given = {**PLAIN, **saved}, {"reward_funcs": tied_if_odd}
    trained(trainer=given, **settings, dead_groups=ways[0])
    again = {"max_steps": 2, "dead_groups": ways[1], "resume": str(tmp_path / "out" / "checkpoint-1"), "allow": True}
    assert trained(trainer=given, **settings | again).state.global_step == 2
