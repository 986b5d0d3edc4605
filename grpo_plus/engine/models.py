"""The models that pass through the engine, each judged once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from grpo_plus.engine.architecture import Treatments, text_config, treatments_of
from grpo_plus.engine.branches import install, registered
from grpo_plus.engine.cost import Shape, shape_of
from grpo_plus.engine.forward import Autocast, Head
from grpo_plus.engine.notes import EngineError, Notes
from grpo_plus.engine.probe import PackingTrial
from grpo_plus.memory.errors import attempt


@dataclass
class ModelFacts:
    """Facts about one model, which is kept so that its identity is not given to another.

    ``attention`` is transformers' name of it, ``function`` the one registered under that name, ``limit`` the number of
    positions. Rows are neither packed nor trimmed on the left before `Models.try_out` has come to an end (``tried``).
    ``shifted`` is the reason why padding on the left changes results; it is empty before the ``trial``.
    """

    plain: Any
    support: Treatments
    shape: Shape
    attention: str
    function: Any
    vocabulary: int
    limit: int | None
    tried: bool = False
    shifted: str | None = ""
    trial: PackingTrial | None = None


class Models:
    """Judges models by their config, and by trying them out.

    ``unwrap`` gives the plain transformers model inside whatever a trainer wraps it in; reasons go to ``notes``.
    """

    def __init__(self, unwrap: Callable[[Any], Any], autocast: Autocast, notes: Notes) -> None:
        self._unwrap = unwrap
        self._autocast = autocast
        self._notes = notes
        self._known: dict[int, ModelFacts] = {}

    def of(self, model: Any) -> ModelFacts:
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
            limit = getattr(config, "max_position_embeddings", None)
            known = ModelFacts(plain, treatments_of(plain), shape, attention, function, vocabulary, limit)
            self._known[id(plain)] = known
        return known

    def shifted(self, model: Any, device: torch.device, *, head: Head | None) -> str | None:
        """Why padding on the left changes the results of a model; None where its positions are relative."""
        known = self.of(model)
        if known.trial is None:
            known.trial = PackingTrial(model, known.vocabulary, device, self._autocast, head or Head(fused=False))
        if known.shifted == "":
            known.shifted = known.trial.positions(explicit=known.support.packing, limit=known.limit)
        return known.shifted

    def try_out(self, model: Any, device: torch.device, *, head: Head | None, layout: str) -> None:
        """Check once per model which treatments give the results of the plain path; again if memory ran out meanwhile.

        All ranks come here at the same pass, so that they make the same number of forward passes.
        """
        known = self.of(model)
        if known.tried:
            return
        support = known.support
        if support.note is not None and layout != "trimmed":
            self._notes.say(support.note)
        wrong, failure = attempt(partial(self.shifted, model, device, head=head))
        support = replace(support, trimming=wrong is None and failure is None)
        if support.trimming and support.packing and layout != "trimmed" and head is not None:
            if support.branching:
                install()
            for branching in (True, False) if support.branching else (False,):
                assert known.trial is not None
                options = {"sharing": support.sharing, "joining": branching or support.joining}
                wrong, failure = attempt(partial(known.trial.packing, attention=known.attention, **options))
                support = replace(support, branching=branching)
                if wrong is None:
                    break
        if failure is not None:
            self._notes.say(f"rows are not packed until the trial of it fits in memory ({failure})")
            return
        known.tried = True
        known.support = replace(support, packing=support.packing and wrong is None)
        if wrong is None:
            return
        if layout == "packed":
            raise EngineError(f"engine='packed' is not possible here: {wrong}. Set engine='auto'.")
        effect = "rows are not packed" if support.trimming else "TRL's padding on the left stays, unlike in sampling"
        self._notes.say(f"{effect}: {wrong}")
