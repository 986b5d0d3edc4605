"""The models of the engine's passes, each examined once."""

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
class ModelTraits:
    """Traits of one model. The reference to the model keeps its id from being reused.

    ``attention`` is the name of transformers' implementation, ``function`` the one registered under it, ``limit`` the
    number of positions. Rows are neither packed nor trimmed on the left before `Models.try_out` is done (``tried``).
    ``shifted`` is the reason why padding on the left changes results; it is empty before the ``trial``.
    """

    plain: Any
    treatments: Treatments
    shape: Shape
    attention: str
    function: Any
    vocabulary: int
    limit: int | None
    tried: bool = False
    shifted: str | None = ""
    trial: PackingTrial | None = None


class Models:
    """Examines models by their config and by a trial.

    ``unwrap`` returns the plain transformers model inside a trainer's wrappers; reasons go to ``notes``.
    """

    def __init__(self, unwrap: Callable[[Any], Any], autocast: Autocast, notes: Notes) -> None:
        self._unwrap = unwrap
        self._autocast = autocast
        self._notes = notes
        self._traits: dict[int, ModelTraits] = {}

    def of(self, model: Any) -> ModelTraits:
        """Return the traits of a model, wrapped or not; examined again if its attention has changed."""
        plain = self._unwrap(model)
        config = text_config(plain.config) if hasattr(plain, "config") else None
        attention = str(getattr(config, "_attn_implementation", None))
        function = registered(attention)
        traits = self._traits.get(id(plain))
        if traits is None or (traits.attention, traits.function) != (attention, function):
            vocabulary = getattr(config, "vocab_size", 1)
            device = next((p.device.type for p in plain.parameters()), "cpu")
            shape = shape_of(config, device=device, eager=attention == "eager")
            limit = getattr(config, "max_position_embeddings", None)
            traits = ModelTraits(plain, treatments_of(plain), shape, attention, function, vocabulary, limit)
            self._traits[id(plain)] = traits
        return traits

    def shifted(self, model: Any, device: torch.device, *, head: Head | None) -> str | None:
        """Return the reason why padding on the left changes results; None for relative positions."""
        traits = self.of(model)
        if traits.trial is None:
            traits.trial = PackingTrial(model, traits.vocabulary, device, self._autocast, head or Head(fused=False))
        if traits.shifted == "":
            traits.shifted = traits.trial.positions(explicit=traits.treatments.packing, limit=traits.limit)
        return traits.shifted

    def try_out(self, model: Any, device: torch.device, *, head: Head | None, layout: str) -> None:
        """Test once per model which treatments reproduce the plain path; again if memory ran out meanwhile.

        All ranks call it at the same pass, so that they make the same number of forward passes.
        """
        traits = self.of(model)
        if traits.tried:
            return
        treatments = traits.treatments
        if treatments.note is not None and layout != "trimmed":
            self._notes.say(treatments.note)
        wrong, failure = attempt(partial(self.shifted, model, device, head=head))
        treatments = replace(treatments, trimming=wrong is None and failure is None)
        if treatments.trimming and treatments.packing and layout != "trimmed" and head is not None:
            if treatments.branching:
                install()
            for branching in (True, False) if treatments.branching else (False,):
                assert traits.trial is not None
                options = {"sharing": treatments.sharing, "joining": branching or treatments.joining}
                wrong, failure = attempt(partial(traits.trial.packing, attention=traits.attention, **options))
                treatments = replace(treatments, branching=branching)
                if wrong is None:
                    break
        if failure is not None:
            self._notes.say(f"rows are not packed until the trial of it fits in memory ({failure})")
            return
        traits.tried = True
        traits.treatments = replace(treatments, packing=treatments.packing and wrong is None)
        if wrong is None:
            return
        if layout == "packed":
            raise EngineError(f"engine='packed' is not possible here: {wrong}. Set engine='auto'.")
        effect = "rows are not packed" if treatments.trimming else "TRL's padding on the left stays, unlike in sampling"
        self._notes.say(f"{effect}: {wrong}")
