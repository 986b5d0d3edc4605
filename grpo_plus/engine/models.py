"""The models that pass through the engine, each judged once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from grpo_plus.engine.architecture import Support, support_of, text_config
from grpo_plus.engine.branches import install, registered
from grpo_plus.engine.cost import Shape, shape_of
from grpo_plus.engine.errors import EngineError
from grpo_plus.engine.forward import Autocast, Head
from grpo_plus.engine.notes import Notes
from grpo_plus.engine.probe import mismatch
from grpo_plus.memory.errors import attempt


@dataclass
class Known:
    """Facts about one model, which is kept so that its identity is not given to another.

    ``attention`` is transformers' name of it, ``function`` what is registered under that name. Rows are not packed
    before `Models.try_out` has come to an end (``tried``).
    """

    plain: Any
    support: Support
    shape: Shape
    attention: str
    function: Any
    vocabulary: int
    tried: bool = False


class Models:
    """Judges models by their config, and by trying them out.

    ``unwrap`` gives the plain transformers model inside whatever a trainer wraps it in; reasons go to ``notes``.
    """

    def __init__(self, unwrap: Callable[[Any], Any], autocast: Autocast, notes: Notes) -> None:
        self._unwrap = unwrap
        self._autocast = autocast
        self._notes = notes
        self._known: dict[int, Known] = {}

    def of(self, model: Any) -> Known:
        """The facts about a model, wrapped or not; found anew where its attention is another than before."""
        plain = self._unwrap(model)
        config = text_config(plain.config) if hasattr(plain, "config") else None
        attention = str(getattr(config, "_attn_implementation", None))
        function = registered(attention)
        known = self._known.get(id(plain))
        if known is None or (known.attention, known.function) != (attention, function):
            vocabulary = getattr(config, "vocab_size", 1)
            device = next((p.device.type for p in plain.parameters()), "cpu")
            shape = shape_of(config, device=device, eager=attention == "eager")
            known = Known(plain, support_of(plain), shape, attention, function, vocabulary)
            self._known[id(plain)] = known
        return known

    def try_out(self, model: Any, device: torch.device, *, head: Head, forced: bool) -> None:
        """Check, once per model, that packing gives what the plain path gives; again if memory ran out meanwhile.

        All ranks come here at the same pass, so that they make the same number of forward passes. With ``forced``
        packing was asked for by name.

        Raises:
            EngineError: packing was asked for and is not exact.
        """
        known = self.of(model)
        if known.tried:
            return
        if known.support.note is not None:
            self._notes.say(known.support.note)
        if not known.support.packing:
            known.tried = True
            return
        support, attention = known.support, known.attention
        trial = partial(mismatch, model, known.vocabulary, device, self._autocast, attention=attention, head=head)
        if support.branching:
            install()
        for branching in (True, False) if support.branching else (False,):
            wrong, failure = attempt(partial(trial, sharing=support.sharing, joining=branching or support.joining))
            if failure is not None:
                self._notes.say(f"rows are not packed until the trial of it fits in memory ({failure})")
                return
            known.support = replace(support, branching=branching)
            if wrong is None:
                break
        known.tried = True
        if wrong is None:
            return
        if forced:
            raise EngineError(f"engine='packed' is not possible here: {wrong}. Set engine='auto'.")
        known.support = replace(known.support, packing=False)
        self._notes.say(f"rows are not packed: {wrong}")
