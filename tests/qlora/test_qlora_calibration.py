"""The planner's correction: fitted from readings, kept, found again, and used; real steps on a CPU, made-up readings."""

import json
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from grpo_plus.cli import UserError, main
from grpo_plus.cli._calibrate import calibrate
from grpo_plus.cli._memory_probe import Peak, depths, measure
from grpo_plus.memory import calibration
from grpo_plus.memory.advice import shortage
from grpo_plus.memory.calibration import Calibration, CalibrationError, Point, corrected, store, stored_for, versions
from grpo_plus.memory.estimate import ASSUMED, GIB, Line, Settings, Slack, estimate, weights
from grpo_plus.memory.fit import fit
from grpo_plus.memory.random_model import at_depth, random_model
from grpo_plus.memory.shape import shape_of
from grpo_plus.qlora.model import linear_4bit
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.rollouts import Rollouts

SLACK = Slack(Line(1.25, 2.0 * GIB), Line(1.5, 0.25 * GIB))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grpo_plus" / "calibration.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, architecture="llama", hidden=64, layers=4)
    return path


def kept(card="Card 9000", slack=SLACK):
    return Calibration(card, *versions(), model="m", slack=slack)


def readings(truth, sizes):
    return [
        Point(phase, layers, size, getattr(truth, phase).at(size), 0.0)
        for phase in ("train", "rollout")
        for layers, size in enumerate(sizes, 1)
    ]


class Readings:
    """Says of every phase what a card would that needs exactly ``truth``; notes what it was asked."""

    def __init__(self, truth, planned):
        self.truth, self.planned, self.calls = truth, planned, []

    def reset(self):
        self.calls.append("reset")

    def peak(self):
        self.calls.append("peak")
        number = self.calls.count("peak") - 1  # two rollouts, then the update, at each depth
        depth, phase = number // 3, "train" if number % 3 == 2 else "rollout"
        return Peak(getattr(self.truth, phase).at(getattr(self.planned[depth], phase)), 1.0)

    def outside(self):
        return 0.5 * GIB


@settings(max_examples=50, deadline=None)
@given(
    factors=st.tuples(st.floats(0.6, 2.9), st.floats(0.6, 2.9)),
    constants=st.tuples(st.floats(0, 3), st.floats(0, 3)),
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=4, unique=True),
    outside=st.floats(0, 2),
)
def test_the_line_that_was_measured_is_found(factors, constants, sizes, outside):
    truth = Slack(*(Line(f, c * GIB) for f, c in zip(factors, constants, strict=True)))
    found = corrected(readings(truth, [size * GIB / 10 for size in sizes]), outside * GIB)
    for line, true in ((found.train, truth.train), (found.rollout, truth.rollout)):
        for size in (0.5 * GIB, 50 * GIB):
            assert line.at(size) == pytest.approx(true.at(size) + outside * GIB, rel=1e-6, abs=2 * size * 1e-9 + 1)


def test_a_constant_below_zero_is_not_believed_and_nothing_measured_is_undercut():
    truth = Slack(Line(1.4, -0.3 * GIB), Line(1.0, 0.0))
    points = readings(truth, [2 * GIB, 4 * GIB])
    found = corrected(points, 0.0)
    assert found.train.constant == 0
    assert found.rollout.at(GIB) == pytest.approx(GIB)
    for point in points:
        assert getattr(found, point.phase).at(point.planned) >= point.reserved


def test_what_cannot_be_a_correction_is_refused():
    with pytest.raises(CalibrationError, match=r"grew 5\.00 times as fast as planned"):
        corrected(readings(Slack(Line(5.0, 0), Line(1, 0)), [GIB, 2 * GIB]), 0.0)
    with pytest.raises(CalibrationError, match="a line needs two"):
        corrected(readings(ASSUMED, [GIB]), 0.0)


def test_two_depths_for_every_model():
    assert [depths(layers) for layers in (1, 2, 3, 4, 28, 36)] == [(1, 2), (1, 2), (1, 2), (1, 2), (7, 14), (9, 18)]


class TestStorage:
    def test_kept_by_card_and_versions(self, cache, monkeypatch, caplog):
        assert stored_for("Card 9000") is None
        assert store(kept()) == cache
        store(kept("Other", ASSUMED))
        assert stored_for("Card 9000") == kept()
        assert stored_for("Other").slack == ASSUMED
        assert stored_for("Card 90") is None
        assert caplog.text == ""
        monkeypatch.setattr(calibration, "versions", lambda: ("1.0", "2.0"))
        assert stored_for("Card 9000") is None
        assert "measured with other versions (Card 9000, torch " in caplog.text

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{",
            "[]",
            '{"measurements": 3}',
            b"\xff\xfe",
            "null",
        ],
    )
    def test_a_broken_file_is_said_and_replaced(self, content, cache, caplog):
        cache.parent.mkdir(parents=True)
        cache.write_bytes(content if isinstance(content, bytes) else content.encode())
        with caplog.at_level(logging.WARNING):
            assert stored_for("Card 9000") is None
        assert f"measurements in {cache} cannot be read" in caplog.text
        store(kept())
        assert stored_for("Card 9000") == kept()

    @pytest.mark.parametrize(
        "line", [{}, {"factor": "x", "constant": 0}, {"factor": 1e9, "constant": 0}, {"factor": 1}]
    )
    def test_a_broken_entry_is_said_and_the_others_hold(self, line, cache, caplog):
        store(kept())
        store(kept("Other"))
        values = json.loads(cache.read_text())
        values["measurements"][kept().key]["slack"]["train"] = line
        cache.write_text(json.dumps(values))
        with caplog.at_level(logging.WARNING):
            assert stored_for("Card 9000") is None
        assert "cannot be read" in caplog.text
        assert stored_for("Other") == kept("Other")

    def test_a_relative_cache_folder_is_no_cache_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", "here")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert calibration.cache_file() == tmp_path / ".cache" / "grpo_plus" / "calibration.json"


class TestMeasuring:
    SETTINGS = Settings(
        micro_batch=2, rollout_rows=4, prompt_length=6, completion_length=5, prompts=1, rank=4, width=4,
        optimizer="adamw_torch",
    )  # fmt: skip

    @pytest.mark.slow
    def test_real_steps_run_as_asked_at_both_depths(self, folder, monkeypatch):
        config = AutoConfig.from_pretrained(folder)
        planned = [estimate(shape_of(at_depth(config, depth)), self.SETTINGS) for depth in (1, 2)]
        meter = Readings(SLACK, planned)
        seen = []

        class Seen(Rollouts):
            def after_loading(self, host):
                super().after_loading(host)
                batch = host.args.per_device_train_batch_size
                seen.append((batch, host.args.steps_per_generation, len(list(linear_4bit(host.model)))))

        import grpo_plus.trainer

        monkeypatch.setattr(grpo_plus.trainer, "Rollouts", Seen)
        points = measure(
            config, self.SETTINGS, batch=4, generations=4, device=torch.device("cpu"), meter=meter, say=lambda _: None
        )
        assert seen == [(2, 2, 7), (2, 2, 14)]
        assert meter.calls == ["reset", "peak", "reset", "reset", "peak", "reset", "peak"] * 2
        assert [(point.phase, point.layers) for point in points] == [
            ("train", 1), ("rollout", 1), ("train", 2), ("rollout", 2),
        ]  # fmt: skip
        assert [point.planned for point in points] == [
            size for parts in planned for size in (parts.train, parts.rollout)
        ]
        found = corrected(points, 0.0)
        assert found.train.factor == pytest.approx(1.25)
        assert found.rollout.constant == pytest.approx(0.25 * GIB, rel=1e-3)

    @pytest.mark.slow
    def test_the_command_measures_keeps_and_uses_it(self, folder, cache, capsys):
        config = AutoConfig.from_pretrained(folder)
        shape = shape_of(config, "tiny")
        planned = [estimate(shape_of(at_depth(config, depth)), self.SETTINGS) for depth in (1, 2)]
        found = calibrate(
            self.SETTINGS, config, shape, generations=4, capacity=8 * GIB, device=torch.device("cpu"),
            card="Card 9000", meter=Readings(SLACK, planned),
        )  # fmt: skip
        assert found.slack.train.constant == pytest.approx(2.5 * GIB, rel=1e-3)  # 0.5 of it beside PyTorch
        assert stored_for("Card 9000") == found
        text = capsys.readouterr().out
        assert f"Kept in {cache}" in text
        assert text.count("rollout ") == 2

    @pytest.mark.slow
    def test_what_cannot_be_kept_is_still_used(self, folder, cache, capsys):
        cache.parent.parent.mkdir()
        cache.parent.write_text("a file where the folder should be")
        config = AutoConfig.from_pretrained(folder)
        planned = [estimate(shape_of(at_depth(config, depth)), self.SETTINGS) for depth in (1, 2)]
        found = calibrate(
            self.SETTINGS, config, shape_of(config), generations=4, capacity=8 * GIB, device=torch.device("cpu"),
            card="Card 9000", meter=Readings(SLACK, planned),
        )  # fmt: skip
        assert found.slack.train.factor == pytest.approx(1.25)
        assert "Not kept, so used for this table only" in capsys.readouterr().out

    @pytest.mark.slow
    def test_what_does_not_fit_is_said_and_nothing_is_kept(self, folder, cache):
        class Full(Readings):
            def reset(self):
                raise torch.OutOfMemoryError("CUDA out of memory.")

        config = AutoConfig.from_pretrained(folder)
        with pytest.raises(UserError, match=r"--calibrate: the settings do not fit the card even with fewer layers"):
            calibrate(
                self.SETTINGS, config, shape_of(config), generations=4, capacity=8 * GIB, device=torch.device("cpu"),
                card="Card 9000", meter=Full(ASSUMED, []),
            )  # fmt: skip
        assert not cache.exists()

    @pytest.mark.parametrize(("architecture", "layers"), [("llama", 3), ("gpt2", 1), ("gemma2", 3)])
    def test_random_models_have_the_shape_that_is_planned_for(self, architecture, layers, tmp_path):
        made, _ = make_tiny_model(tmp_path, architecture=architecture, hidden=128, layers=2)
        config = at_depth(made.config, layers)
        model = random_model(config, torch.device("cpu"), torch.bfloat16)
        planned = weights(shape_of(config), Settings())
        stored = sum(parameter.nbytes for parameter in model.parameters())
        for layer in linear_4bit(model):
            stored += layer.weight.quant_state.absmax.nbytes + layer.weight.quant_state.state2.absmax.nbytes
        assert stored == pytest.approx(planned, abs=4 * len(list(linear_4bit(model))))
        assert made.config.num_hidden_layers == 2  # the one that was copied is as it was
        assert torch.isfinite(model(torch.arange(8)[None]).logits).all()


class TestUse:
    def test_a_correction_moves_the_peak_the_fit_and_the_warning(self):
        shape = shape_of(AutoConfig.for_model("qwen3", num_hidden_layers=4))
        asked = Settings(micro_batch=8, rollout_rows=8, completion_length=2048)
        plain = estimate(shape, asked)
        moved = estimate(shape, asked, SLACK)
        assert plain.peak == pytest.approx(1.08 * max(plain.train, plain.rollout) + 0.6 * GIB)
        assert moved.peak == pytest.approx(max(1.25 * plain.train + 2 * GIB, 1.5 * plain.rollout + 0.25 * GIB))
        assert moved.parts() == plain.parts()
        between = (plain.peak + moved.peak) / 2
        config = AutoConfig.for_model("qwen3", num_hidden_layers=4)
        assert fit(shape, asked, between, generations=8).settings == asked
        chosen = fit(shape, asked, between, generations=8, slack=SLACK)
        assert chosen.settings.micro_batch < 8
        assert chosen.estimate.peak <= between
        assert shortage(config, "m", asked, between, 8) is None
        assert f"need {moved.peak / GIB:.1f} GiB" in shortage(config, "m", asked, between, 8, slack=SLACK)

    @pytest.fixture
    def card(self, monkeypatch):
        """A card of which only the name is asked."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Card 9000")

    def test_plan_prints_both_figures(self, folder, card, capsys):
        arguments = ["plan", "--model", str(folder)]
        assert main(arguments) == 0
        before = capsys.readouterr().out
        assert "corrected" not in before
        store(kept())
        assert main([*arguments, "--vram", "8"]) == 0
        text = capsys.readouterr().out
        plain, moved = (float(line.split()[1]) for line in text.splitlines() if line.startswith("  peak "))
        assert "uncorrected" in text
        assert f"corrected, as measured on {kept().key}" in text
        assert "training 1.250 times the parts + 2.000 GiB" in text
        assert 0.6 < plain < 1
        assert moved > 2
        assert main([*arguments, "--vram", "1.9"]) == 2  # what does not fit by the correction does not fit

    def test_the_trainers_own_checks_use_it(self, card):
        store(kept())
        assert calibration.slack_of(torch.device("cuda")) == SLACK
        assert calibration.slack_of(torch.device("cpu")) == ASSUMED

    def test_without_a_card_one_clear_error(self, folder, cache, capsys):
        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA card")
        assert main(["plan", "--model", str(folder), "--calibrate"]) == 2
        text = capsys.readouterr().err
        assert "--calibrate measures on a CUDA card" in text
        assert "CUDA build of torch and with bitsandbytes" in text
        assert len(text.strip().splitlines()) == 1
        assert not cache.exists()
