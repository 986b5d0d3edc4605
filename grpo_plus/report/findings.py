"""What is wrong with a run, for its page: what was said while it went on, and the same rules over its record."""

from collections.abc import Mapping
from typing import Any

from grpo_plus.diagnosis import RULES, Curves, Finding
from grpo_plus.diagnosis.catalogue import replay
from grpo_plus.diagnosis.facts import facts_of
from grpo_plus.diagnosis.finding import RANK
from grpo_plus.diagnosis.watch import FOR_GOOD
from grpo_plus.record.reader import Run

LOOKS = 60
"""Steps of a run at which the rules are asked."""
_KNOWN = tuple(Finding.__dataclass_fields__)


def curves_of(run: Run) -> Curves:
    """The curves of a run, with the facts that its record holds."""
    info, parts = run.info, run.info.get("parts") or {}
    model = info.get("model") or {}
    facts = facts_of(
        info.get("config") or {},
        advantage=(parts.get("advantage") or {}).get("name"),
        grouped=(parts.get("advantage") or {}).get("grouped", True),
        lora=bool(model.get("adapter")),
        verifiers=parts.get("verifiers") or (),
        evaluating=parts.get("eval_verifiers") or (),
    )
    weights = [one.get("weight") for one in parts.get("rewards") or ()]
    facts["reward_scale"] = sum(1.0 if weight is None else abs(weight) for weight in weights) or facts["reward_scale"]
    return Curves(run.every_series(), facts)


def findings(run: Run) -> list[dict[str, Any]]:
    """Each finding of a run once, the gravest first: `Finding`'s fields, ``since``, and ``until`` or None if it stands.

    What the run has written down goes first; the rules over the record add what an older version, or stock TRL, did not
    say.
    """
    found: dict[str, dict[str, Any]] = {}
    curves = curves_of(run)
    steps = sorted({entry["step"] for entry in run.entries})
    looks = steps[:: max(1, len(steps) // LOOKS)]
    for name, (judged, since, until) in replay(curves, [*looks, *steps[-1:]]).items():
        found[name] = {**judged.as_data(), "since": since, "until": until}
    written: dict[str, dict[str, Any]] = {}
    for line in run.findings():
        name = line["name"]
        if line.get("ends"):
            if name in written:
                written[name]["until"] = line["step"]
        else:
            since = written[name]["since"] if name in written else line["step"]
            written[name] = {**_filled(line), "since": since, "until": None}
    for name, one in written.items():
        if name in FOR_GOOD or name not in found:
            found[name] = one
        else:  # the newest figures, and the beginning as it was said
            found[name] = {**found[name], "since": one["since"], "until": one["until"]}
    places = {name: place for place, name in enumerate(RULES)}

    def grave(one: Mapping[str, Any]) -> tuple[bool, int, int]:
        return one["until"] is not None, RANK.get(one["severity"], 1), places.get(one["name"], len(places))

    order = sorted(found.values(), key=grave)
    return [one for one in order if one["until"] is None or one["severity"] != "note"]


def _filled(line: Mapping[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = Finding(line["name"], "warning", "", "", "").as_data()
    return {**empty, **{key: line[key] for key in _KNOWN if line.get(key) is not None}}


def outcome(run: Run, found: list[dict[str, Any]]) -> str:
    """What the badge says beside the status, by the gravest finding that stands; empty for a sound run."""
    if run.status == "running":
        return ""
    return next((str(one["outcome"]) for one in found if one["until"] is None and one["outcome"]), "")
