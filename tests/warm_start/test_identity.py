"""The model in a warm start's key: its content, wherever it lies."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grpo_plus.warm_start.store import identity
from grpo_verifiers.errors import ConfigError


@pytest.fixture
def model(tiny_model, tmp_path):
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_one_folder_is_one_model_however_it_is_written(model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(model)
    written = ["model", "./model", "model/", str(model), "link", "../" + tmp_path.name + "/model"]
    assert len({identity(each) for each in written}) == 1
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    os.utime(copy / "config.json", (1, 1))
    (copy / "README.md").write_text("A copy.")
    (copy / "training_args.bin").write_bytes(b"of another run")
    assert identity(str(copy)) == identity(str(model))


def test_any_changed_weight_makes_another_model(model):
    """In the middle of a large file of the same size and age, too."""
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["padding"] = weights["model.embed_tokens.weight"].new_zeros(3 << 20)
    save_file(weights, file)
    before, age = identity(str(model)), file.stat()
    for name in ("padding", "model.embed_tokens.weight"):
        changed = {**weights, name: weights[name].clone()}
        changed[name].flatten()[changed[name].numel() // 2] += 1
        save_file(changed, file)
        os.utime(file, ns=(age.st_atime_ns, age.st_mtime_ns))
        assert file.stat().st_size == age.st_size
        assert identity(str(model)) != before
    save_file(weights, file)
    assert identity(str(model)) == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_settings_of_the_model_make_another_one(model, name):
    before = identity(str(model))
    (model / name).write_text(json.dumps({**json.loads((model / name).read_text()), "eos_token_id": 3}))
    assert identity(str(model)) != before


def test_an_adapter_is_known_with_its_base(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def adapter(name, base):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": base}))
        return identity(str(folder))

    first = adapter("first", str(model))
    assert adapter("second", "model") == first
    assert adapter("third", "a/model") != first
    (model / "config.json").write_text("{}")
    assert identity("first") != first


@pytest.mark.parametrize("length", [2, 3])
def test_adapters_whose_bases_lead_in_a_circle_are_an_error(tmp_path, length):
    folders = [tmp_path / str(at) for at in range(length)]
    for at, folder in enumerate(folders):
        folder.mkdir()
        base = str(folders[(at + 1) % length])
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": base}))
    with pytest.raises(ConfigError, match=r"0 has no model under it: its bases lead back to .*0 .*name a model"):
        identity(str(folders[0]))


def test_a_name_on_the_hub_is_itself():
    assert identity("a/model") == "a/model"
    assert identity("a/model", "main") == "a/model@main"
