"""The twin: the hub's files, the original's parts, the same weights for the same seed, a tokenizer that can spell."""

import json
import subprocess

import open_clip
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from transformers import AutoTokenizer, BertModel

from phantom import twin
from rarevision.config import Model
from rarevision.files import sha256, write_json
from rarevision.labels import LABELS, prompts
from rarevision.model import weights
from rarevision.model.frame_model import text_embeddings
from rarevision.run import command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return twin.build_twin(tmp_path_factory.mktemp("models") / "twin")


def test_it_has_the_hubs_files_and_the_originals_parts(folder):
    names = {
        "open_clip_config.json",
        "open_clip_pytorch_model.bin",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert names <= {p.name for p in folder.iterdir()}
    config = json.loads((folder / "open_clip_config.json").read_text())
    assert set(config) == {"model_cfg", "preprocess_cfg"}
    assert set(config["model_cfg"]["vision_cfg"]) == {
        "timm_model_name", "timm_model_pretrained", "timm_pool", "timm_proj", "image_size"}  # fmt: skip
    assert set(config["model_cfg"]["text_cfg"]) == {
        "hf_model_name", "hf_tokenizer_name", "hf_proj_type", "hf_pooler_type", "context_length"}  # fmt: skip
    clip, _ = weights.load_weights(Model(source=str(folder)))
    assert type(clip) is open_clip.CustomTextCLIP and isinstance(clip.text.transformer, BertModel)
    assert type(clip.visual.trunk) is VisionTransformer
    assert (clip.visual.trunk.pos_embed.shape[1], clip.visual.image_size) == (65, (96, 96))
    assert 300_000 < sum(p.numel() for p in clip.visual.parameters()) < 800_000
    assert all(block.attn.num_heads % 2 == 0 for block in clip.visual.trunk.blocks)


def test_the_weights_are_a_plain_state_dict_of_the_whole_model(folder):
    state = torch.load(folder / "open_clip_pytorch_model.bin", weights_only=True)
    assert all(isinstance(v, torch.Tensor) and v.dtype in (torch.float32, torch.int64) for v in state.values())
    assert {key.split(".")[0] for key in state} == {"visual", "text", "logit_scale"}


def test_the_same_seed_gives_the_same_files(folder, tmp_path):
    before = torch.get_rng_state()
    again, other = twin.build_twin(tmp_path / "again"), twin.build_twin(tmp_path / "other", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    sums = {name: dict(reversed(line.split("  ")) for line in (f / "SHA256SUMS").read_text().splitlines())
            for name, f in (("first", folder), ("again", again), ("other", other))}  # fmt: skip
    assert sums["first"] == sums["again"]
    assert {k for k in sums["first"] if sums["first"][k] != sums["other"][k]} == {"open_clip_pytorch_model.bin"}


def test_the_sums_are_sha256sums_own(folder):
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    listed = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {"SHA256SUMS"}


def test_the_tokenizer_reads_any_prompt(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for label in LABELS:
        words = tokenizer.tokenize(label)
        assert "".join(words).replace("##", "") == label.replace(" ", "") and not any(w.startswith("##") for w in words)
    assert "[UNK]" not in tokenizer.tokenize("An unseen Prompt, 2026: (quite) odd-looking & l0ng? é")
    ids = open_clip.get_tokenizer(f"local-dir:{folder}")(prompts())
    assert ids.shape == (17, twin.CONTEXT) and len({tuple(row.tolist()) for row in ids}) == 17


def test_the_prompts_can_be_told_apart(folder):
    text = text_embeddings(Model(source=str(folder)))
    cosine = (text @ text.T).fill_diagonal_(-1)
    assert cosine.max() < 0.95


@pytest.mark.parametrize("size", [{"heads": 3}, {"image_size": 100}, {"width": 98}, {"embed_dim": 16}])
def test_sizes_that_do_not_divide_are_refused(tmp_path, size):
    with pytest.raises(ValueError, match="must divide by grid"):
        twin.build_twin(tmp_path / "twin", **size)
    assert not (tmp_path / "twin").exists()


def test_the_command_writes_a_folder_that_check_accepts(tmp_path, capsys):
    sizes = ["--image-size", "32", "--grid", "4", "--width", "32", "--depth", "1"]
    command.main(["twin", str(tmp_path / "twin"), *sizes])
    write_json(tmp_path / "twin" / "manifests" / "twin.json", {"seconds": 1})
    command.main(["twin", str(tmp_path / "twin"), *sizes, "--seed", "1"])  # again, beside a stage's manifest
    write_json(tmp_path / "twin" / "manifests" / "twin.json", {"seconds": 2})
    assert "128-d, 32 px" in capsys.readouterr().out
    assert "every file as SHA256SUMS says" in weights.check_weights(tmp_path / "twin")
    assert sha256(tmp_path / "twin" / "vocab.txt") in (tmp_path / "twin" / "SHA256SUMS").read_text()
