"""The model that a run leaves at the root of its folder, and whether it is that of the run's last checkpoint."""

from pathlib import Path

from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import step_of, written

FILE = "grpo_plus_model.json"
"""The manifest of weights, config and tokenizer; written when nothing of the run is left to do."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
_CONFIG = ("config.json", "generation_config.json", "adapter_config.json", "*processor_config.json")
_TOKENIZER = ("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt")
_PARTS = (*_WEIGHTS, *_CONFIG, *_TOKENIZER, "*.model")


def seal(folder: Path, step: int) -> None:
    """Write the manifest of the model in a run's folder, after ``step`` optimizer steps."""
    files = {path for pattern in _PARTS for path in folder.glob(pattern) if path.is_file()}
    manifest.write(folder, step, files, name=FILE)


def unseal(folder: Path) -> None:
    """Remove the manifest: the run continues, so the model is outdated."""
    (folder / FILE).unlink(missing_ok=True)


def is_of(checkpoint: Path) -> bool:
    """True if the model next to a checkpoint is complete and was written after it, at the same step."""
    folder = checkpoint.parent
    try:
        sealed = manifest.read(folder, FILE)
    except manifest.ManifestError:
        return False
    same = sealed.step == step_of(checkpoint) and sealed.time >= written(checkpoint)
    return same and manifest.problem(folder, FILE) is None
