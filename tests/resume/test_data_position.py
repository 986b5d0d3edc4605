"""The place of a run, hook by hook and without a training: where it begins, what it owes, what it keeps."""

import math
import random
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from grpo_plus.training.resume import data_position
from grpo_plus.training.resume.data_position import DataPosition, Geometry, Position, position

# A generation batch is 4 prompts in 4 micro-batches, an optimizer step 2 of them; a pass has 6 steps.
NOW = Geometry(1, 3, 2, 4, 3, 1)
UPDATES, PASSES = 6, 3


class Batch:
    """Stands for the generation batch."""

    def __init__(self, held):
        self.held, self.begun = held, []

    def holds_batch(self):
        return self.held

    def begin(self, step, *, restore=False):
        self.begun.append((step, restore))


class Sampler:
    def __init__(self):
        self.drawn = 0

    def __iter__(self):
        self.drawn += 1
        return iter([0, 1, 2])


@pytest.fixture
def made(monkeypatch):
    """A place with a host of nothing but its numbers; ``said`` is what the host was asked to do."""

    def made(*, held=True, changed=(), finished=False, ignore=False, sampler=True, evaluates=True):
        place = DataPosition(Batch(held), SimpleNamespace(changed=changed))
        args = {name: getattr(NOW, name) for name in list(asdict(NOW))[1:4]} | {"ignore_data_skip": ignore}
        place.host = SimpleNamespace(
            args=SimpleNamespace(**args, eval_strategy="steps" if evaluates else "no"),
            accelerator=SimpleNamespace(num_processes=NOW.processes, is_main_process=True),
            num_generations=NOW.num_generations,
            num_iterations=NOW.num_iterations,
            state=SimpleNamespace(global_step=9 if finished else 3, max_steps=9, log_history=[]),
            model=torch.nn.Linear(1, 1),
            _step=0,
            _logs={},
        )
        place.said = []
        for name, word in (("run_pending_evaluation", "evaluate"), ("load_random_state", "load")):
            monkeypatch.setattr(
                data_position, name, lambda _, checkpoint, word=word: place.said.append((word, checkpoint))
            )
        with place.training():
            place.sampler = Sampler() if sampler else None
            return place

    return made


def saved(position, **more):
    rest = {"measured": [None, None], "evaluates": False, "training": True}
    return {"position": asdict(position), "geometry": asdict(NOW), **rest, **more}


def begun(place, state, found=(0, 0)):
    place.load_state_dict(state)
    return place.begin(found, updates=UPDATES, passes=PASSES, checkpoint="out/checkpoint-3")


INSIDE, BEHIND, END, ENDED = Position(18, 1, 6), Position(16, 1, 4), Position(24, 1, 12), Position(24, 1, 12, True)


@pytest.mark.parametrize(("stood", "options", "answer", "stands"), [
    (Position(6, 0, 6), {}, (0, 6), (Position(6, 0, 6), (6, True))),
    (INSIDE, {}, (1, 6), (INSIDE, (18, True))),
    (BEHIND, {"held": False}, (1, 4), (BEHIND, (16, False))),  # between two batches nothing is missing
    (INSIDE, {"held": False}, (1, 4), (Position(4, 1, 4), (4, False))),
    (INSIDE, {"changed": {"beta": (0, 1)}}, (1, 4), (Position(4, 1, 4), (4, False))),
    (Position(22, 1, 10), {}, (1, 10), (Position(22, 1, 10), (22, True))),
    (END, {}, (1, 12), (END, (24, True))),  # the end of the pass is still to come
    (ENDED, {}, (2, 0), (Position(24, 2), (24, True))),
    (INSIDE, {"finished": True}, (1, 12), (INSIDE, (18, True))),
    (ENDED, {"finished": True}, (1, 12), (ENDED, (24, True))),
    (INSIDE, {"ignore": True}, (1, 0), (Position(0, 1), (0, False))),
    (END, {"ignore": True}, (2, 0), (Position(0, 1), (0, False))),
    (ENDED, {"ignore": True}, (2, 0), (Position(0, 1), (0, False))),
    (INSIDE, {"ignore": True, "finished": True}, (PASSES, 0), (Position(0, 1), (0, False))),
])  # fmt: skip
def test_a_run_begins_in_its_pass_behind_what_it_has_trained_on(made, stood, options, answer, stands):
    here, batch = stands
    place = made(**options)
    assert begun(place, saved(stood)) == answer
    assert place.current == here
    assert place._batch.begun[-1] == batch
    assert place.sampler.drawn == (0 if "ignore" in options else answer[0])  # the orders of the passes before
    assert begun(made(**options, sampler=False), saved(stood)) == answer
    control = SimpleNamespace(should_training_stop=False)
    place._checkpoint = None
    place.host._step = here.step
    place.on_epoch_end(None, None, SimpleNamespace(**vars(control), should_evaluate=False))
    place.on_epoch_end(None, None, control := SimpleNamespace(**vars(control), should_evaluate=False))
    assert control.should_training_stop is ("finished" in options)


def test_a_run_begins_elsewhere_where_its_batches_are_others_or_the_host_alone_has_counted(made):
    other = saved(INSIDE, geometry=asdict(NOW) | {"num_generations": 2})
    assert begun(made(changed={"num_generations": (2, 3)}), other) == (1, 4)
    odd = Geometry(1, 2, 2, 3, 2, 1)  # batches of three micro-batches, optimizer steps of two
    assert position(Position(10, 0, 10), odd, odd, holds_batch=False) == Position(6, 0, 6)
    for found, answer in (((1, 9), (1, 8)), ((1, 12), (1, 12)), ((1, 13), (1, 12)), ((2, 0), (2, 0))):
        place = made()  # from a checkpoint without any state
        assert place.begin(found, updates=UPDATES, passes=PASSES, checkpoint="out/checkpoint-3") == answer


def test_passes_and_micro_batches_are_counted_from_where_a_run_begins(made):
    place = made()
    begun(place, saved(INSIDE))
    place.host._step = 18
    place.on_epoch_begin()
    place.host._step = 20
    assert place.current == Position(20, 1, 8)
    place.host._step = 24
    control = SimpleNamespace(should_training_stop=False, should_evaluate=True, should_log=True, should_save=True)
    place._checkpoint = None
    place.on_epoch_end(None, None, control)
    assert place.current == Position(24, 1, 12, ended=True)
    assert place.evaluates is True
    assert control.should_log is control.should_save is True
    place.on_epoch_begin()
    place.host._step = 25
    assert place.current == Position(25, 2, 1)
    control.should_training_stop = True  # a signal, within the pass
    place.on_epoch_end(None, None, control)
    assert place.current == Position(25, 2, 1)
    for evaluates in (False, True):
        place.on_step_end(None, None, SimpleNamespace(should_evaluate=evaluates))
        assert place.evaluates is evaluates
    place.host._step = 35
    place.on_epoch_end(None, None, control)  # the last step takes what is left
    assert place.current.ended


def test_an_evaluation_that_is_left_leaves_no_trace(made):
    place = made()
    place.host._logs["prompt"] = ["before"]

    def left():
        assert place.evaluates
        place.host.model.eval()
        place.host._logs["prompt"].append("within")
        place.host.state.log_history.append({})
        random.random(), torch.rand(1)
        raise KeyboardInterrupt

    states = random.getstate(), torch.get_rng_state().tolist()
    with pytest.raises(KeyboardInterrupt):
        place.evaluation(left, starts=True)
    assert states == (random.getstate(), torch.get_rng_state().tolist())
    assert place.host.model.training
    assert place.host._logs == {"prompt": ["before"]}
    assert place.host.state.log_history == []
    assert place.evaluates  # it is owed
    assert place.evaluation(lambda: {"loss": math.pi}, starts=True) == {"loss": math.pi}
    assert not place.evaluates
    begun(place, saved(INSIDE))
    assert place.evaluation(lambda: {"loss": 1.0}, starts=True) == {}  # a resumed run has it behind it
    assert place.evaluation(lambda: {"loss": 1.0}, starts=False) == {"loss": 1.0}
