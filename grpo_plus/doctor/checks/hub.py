"""Environment variables that decide whether, and from where, models and datasets are downloaded."""

from collections.abc import Iterator, Mapping

from grpo_plus.doctor.finding import Finding, info, ok, warning

ONLINE = ok("hub", "Models and datasets that are not here are downloaded.")
OFFLINE = info(
    "hub-offline",
    "Nothing is downloaded: what is not in the cache or in a folder fails to load.",
    "Unset the variable to download, or fetch with `hf download NAME` where there is a network.",
)
MIXED = warning(
    "hub-mixed",
    "Models and datasets disagree on being offline: one of them still asks the network, and may hang or fail.",
    "Set HF_HUB_OFFLINE alone, and unset HF_DATASETS_OFFLINE and TRANSFORMERS_OFFLINE.",
)
ENDPOINT = info("hub-endpoint", "Downloads come from another server than huggingface.co.")
TRUE = {"1", "ON", "YES", "TRUE"}
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def hub_findings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """What the variables say; a token is only said to be there."""

    def on(name: str) -> bool | None:
        value = variables.get(name)
        return None if value is None else value.upper() in TRUE

    models = bool(on("HF_HUB_OFFLINE") or on("TRANSFORMERS_OFFLINE"))
    data = on("HF_DATASETS_OFFLINE")
    data = models if data is None else data
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    told = ", ".join(f"{name}={variables[name]}" for name in names if name in variables)
    if models is not data:
        yield MIXED.at("Hub", told)
    elif models:
        yield OFFLINE.at("Hub", told)
    else:
        token = any(variables.get(name) for name in SECRETS)
        yield ONLINE.at("Hub", f"online, a token is {'set' if token else 'not set'} in the environment")
    if variables.get("HF_ENDPOINT"):
        yield ENDPOINT.at("Hub", f"HF_ENDPOINT={variables['HF_ENDPOINT']}")
