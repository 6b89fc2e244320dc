"""Pretrained weights: offline folders, the hub at its pinned revisions, and one clear error for every kind of fault."""

import dataclasses
import json
import re
import shutil
import socket
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from phantom.twin import build_twin
from rarevision.config import Model
from rarevision.files import sha256
from rarevision.model import frame_model, weights
from rarevision.model.frame_model import build_model, text_embeddings
from rarevision.model.weights import ModelError
from rarevision.run import command


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return build_twin(
        tmp_path_factory.mktemp("models") / "twin", image_size=32, grid=4, width=32, depth=2, embed_dim=48
    )


@pytest.fixture
def copied(twin, tmp_path):
    return shutil.copytree(twin, tmp_path / "twin")


@pytest.fixture
def config(twin):
    return Model(source=str(twin), attention="preserve", lambda_init=0.5)


def test_a_folder_is_loaded_without_any_connection(config, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert text_embeddings(config).shape == (17, 48)
    build_model(config)


FAULTS = {
    "no folder": (lambda f: shutil.rmtree(f), "no such folder"),
    "no config": (lambda f: (f / "open_clip_config.json").unlink(), r"open_clip_config.json: missing"),
    "torn config": (lambda f: (f / "open_clip_config.json").write_text('{"model_cfg": {'), "not valid JSON"),
    "other JSON": (lambda f: (f / "open_clip_config.json").write_text("[1]"), "expected an object with `model_cfg`"),
    "half a config": (lambda f: (f / "open_clip_config.json").write_text('{"model_cfg": {}}'), "lacks embed_dim"),
    "no weights": (lambda f: (f / "open_clip_pytorch_model.bin").unlink(), "missing .*open_clip_pytorch_model.bin"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"missing .*tokenizer.json"),
    "no text config": (lambda f: (f / "config.json").unlink(), r"missing .*twin.config.json"),
    "truncated": (lambda f: cut(f / "open_clip_pytorch_model.bin"), r"model.bin: expected sha256 \w{64}.*found \w{64}"),
    "one bit": (lambda f: flip(f / "open_clip_pytorch_model.bin"), r"model.bin: expected sha256 \w{64}.*found \w{64}"),
    "torn tokenizer": (lambda f: cut(f / "tokenizer.json"), r"tokenizer.json: not valid JSON"),
    "torn text config": (lambda f: cut(f / "config.json", 100), r"config.json: not valid JSON"),
    "trunk": (lambda f: (f / "trunk" / "config.json").unlink(), r"trunk.config.json: named in SHA256SUMS, but missing"),
}


def cut(file, size=1000):
    file.write_bytes(file.read_bytes()[:-size])


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_explained(copied, config, fault):
    spoil, message = FAULTS[fault]
    spoil(copied)
    with pytest.raises(ModelError, match=message):
        build_model(dataclasses.replace(config, source=str(copied)))


class Evil:
    def __reduce__(self):
        return print, ("code from a weights file was run",)


WRONG = {
    "truncated": cut,
    "empty": lambda f: f.write_bytes(b""),
    "garbage": lambda f: f.write_bytes(b"not weights" * 100),
    "a web page": lambda f: f.write_text("<html>404</html>"),
    "code": lambda f: torch.save({"visual.trunk.cls_token": Evil()}, f),
    "not a state dict": lambda f: torch.save([1, 2], f),
    "one missing": lambda f: change(f, lambda s: s.pop("visual.trunk.cls_token")),
    "one too many": lambda f: change(f, lambda s: s.update(extra=torch.zeros(1))),
    "another shape": lambda f: change(f, lambda s: s.update({"visual.head.proj.weight": torch.zeros(2, 2)})),
}


def change(file, how):
    state = torch.load(file, weights_only=True)
    how(state)
    torch.save(state, file)


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_weights_without_a_checksum_are_explained(copied, config, fault, capfd):
    (copied / "SHA256SUMS").unlink()
    file = copied / "open_clip_pytorch_model.bin"
    WRONG[fault](file)
    with pytest.raises(ModelError, match=rf"open_clip_pytorch_model.bin: {file.stat().st_size:,} bytes, sha256 \w+"):
        build_model(dataclasses.replace(config, source=str(copied)))
    assert "was run" not in capfd.readouterr().out


def test_a_tokenizer_of_another_model_is_refused(copied, config):
    (copied / "SHA256SUMS").unlink()
    file = copied / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["capsule"], other = 5000, vocabulary["capsule"]
    vocabulary["another"] = other
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=r"a word 5000, its text tower \d+ words"):
        text_embeddings(dataclasses.replace(config, source=str(copied)))


def test_weights_that_are_not_finite_are_refused(copied, config):
    (copied / "SHA256SUMS").unlink()
    change(copied / "open_clip_pytorch_model.bin", lambda s: s["text.proj.0.weight"].fill_(torch.nan))
    with pytest.raises(ModelError, match="not finite"):
        text_embeddings(dataclasses.replace(config, source=str(copied)))


def claim(folder):
    """Let a folder say that it is BiomedCLIP."""
    file = folder / "open_clip_config.json"
    config = json.loads(file.read_text())
    config["model_cfg"]["vision_cfg"]["timm_model_name"] = "vit_base_patch16_224"
    config["model_cfg"]["text_cfg"]["hf_model_name"] = weights.TEXT_REPOSITORY
    file.write_text(json.dumps(config))


def test_a_folder_that_claims_to_be_the_original_is_held_against_the_pins(copied, monkeypatch):
    claim(copied)
    file = copied / "open_clip_pytorch_model.bin"
    size = file.stat().st_size
    with pytest.raises(ModelError, match=rf"{file.name}: expected 783,705,670 bytes \(BiomedCLIP\), found {size:,}"):
        weights.check_weights(copied)
    monkeypatch.setattr(weights, "WEIGHTS_BYTES", size)
    with pytest.raises(ModelError, match=rf"expected sha256 {weights.WEIGHTS_SHA256} \(BiomedCLIP's\), found \w+"):
        weights.check_weights(copied)
    monkeypatch.setattr(weights, "WEIGHTS_SHA256", sha256(file))
    assert "BiomedCLIP, the original" in weights.check_weights(copied)


@pytest.fixture
def hub(copied, tmp_path, monkeypatch):
    """A stand-in for the hub: the twin under BiomedCLIP's name, its text config in the text tower's repository."""
    text, asked = tmp_path / "text", []
    text.mkdir()
    shutil.move(copied / "config.json", text / "config.json")
    (copied / "SHA256SUMS").unlink()

    def download(repository, file, revision=None, local_dir=None):
        asked.append((repository, file, revision))
        source = (text if repository == weights.TEXT_REPOSITORY else copied) / file
        if not local_dir:
            return str(source)
        (local_dir / file).parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(source, local_dir / file)

    monkeypatch.setattr(weights.huggingface_hub, "hf_hub_download", download)
    return SimpleNamespace(folder=copied, asked=asked)


def rename(folder):
    """Point the text tower at its hub repository, without claiming the original's image tower."""
    file = folder / "open_clip_config.json"
    file.write_text(file.read_text().replace("rarevision/tiny-bert", weights.TEXT_REPOSITORY))


def test_a_hub_source_is_read_at_its_pinned_revisions(hub, config, twin):
    rename(hub.folder)
    source = dataclasses.replace(config, source=f"hf-hub:{weights.REPOSITORY}")
    torch.testing.assert_close(text_embeddings(source), text_embeddings(config), rtol=0, atol=0)
    assert {r for repo, _, r in hub.asked if repo == weights.REPOSITORY} == {weights.REVISION}
    assert (weights.TEXT_REPOSITORY, "config.json", weights.TEXT_REVISION) in hub.asked


def test_a_hub_that_cannot_be_reached_says_what_to_do(config, monkeypatch):
    def offline(*args, **kwargs):
        raise weights.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(weights.huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(ModelError, match=r"(?s)no connection.*rarevision fetch FOLDER.*model.source"):
        build_model(dataclasses.replace(config, source=f"hf-hub:{weights.REPOSITORY}"))


def test_fetch_brings_a_folder_that_is_complete(hub, tmp_path, monkeypatch, capsys):
    claim(hub.folder)
    file = hub.folder / "open_clip_pytorch_model.bin"
    monkeypatch.setattr(weights, "WEIGHTS_BYTES", file.stat().st_size)
    monkeypatch.setattr(weights, "WEIGHTS_SHA256", sha256(file))
    target = tmp_path / "models" / "biomedclip"
    command.main(["fetch", str(target)])
    assert "BiomedCLIP, the original" in capsys.readouterr().out
    assert {p.name for p in target.iterdir()} == {
        "open_clip_config.json", "open_clip_pytorch_model.bin", "config.json",
        "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    }  # fmt: skip
    cut(target / "open_clip_pytorch_model.bin")
    assert command.main(["weights", str(target)]) == 1
    assert re.search(r"expected [\d,]+ bytes \(BiomedCLIP\), found [\d,]+", capsys.readouterr().err)


def test_check_names_a_good_folder(twin, capsys):
    command.main(["weights", str(twin)])
    assert capsys.readouterr().out == f"{twin}: every file as SHA256SUMS says; 48-d, 32 px\n"


def test_an_image_tower_that_is_not_timms_is_refused(config, monkeypatch):
    clip = SimpleNamespace(visual=nn.Identity())
    monkeypatch.setattr(frame_model, "load_weights", lambda model: (clip, config.source))
    with pytest.raises(ModelError, match="Identity is not a timm model"):
        build_model(config, torch.zeros(17, 48))
