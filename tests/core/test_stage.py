import json

import pytest

from rarevision import stage
from rarevision.files import atomic, sha256, write_json
from rarevision.stage import Stage, code_hash


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "x.json"
    with atomic(target) as temporary:
        temporary.write_text("new")
        assert not target.exists() and temporary.suffix == ".json"
    assert target.read_text() == "new"
    with pytest.raises(RuntimeError), atomic(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_json_refuses_what_json_has_no_word_for(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"score": float("nan")})
    assert not (tmp_path / "x.json").exists()


def made(tmp_path, **key):
    s = Stage(tmp_path, "01_x", key)
    (tmp_path / "out.txt").write_text("result")
    s.finish([tmp_path / "out.txt"], frames=3)
    return s


def test_done_means_manifest_same_key_and_outputs(tmp_path):
    assert Stage(tmp_path, "01_x", {"a": 1}).why_not_current() == "no manifest"
    made(tmp_path, a=1, b="x")
    assert Stage(tmp_path, "01_x", {"a": 1, "b": "x"}).current()
    assert Stage(tmp_path, "01_x", {"a": 2, "b": "x"}).why_not_current() == "changed: a"
    assert Stage(tmp_path, "01_x", {"a": 1}).why_not_current() == "changed: b"
    (tmp_path / "out.txt").write_text("longer result")
    assert "out.txt" in Stage(tmp_path, "01_x", {"a": 1, "b": "x"}).why_not_current()
    (tmp_path / "out.txt").unlink()
    assert not Stage(tmp_path, "01_x", {"a": 1, "b": "x"}).current()


def test_a_torn_manifest_means_not_done(tmp_path):
    s = made(tmp_path, a=1)
    s.path.write_text(s.path.read_text()[:20])
    assert s.why_not_current() == "no manifest"


def test_the_manifest_says_what_from_and_what_came_out(tmp_path):
    s = made(tmp_path, a=1)
    manifest = json.loads(s.path.read_text())
    assert manifest["outputs"]["out.txt"] == {"sha256": sha256(tmp_path / "out.txt"), "bytes": 6}
    assert manifest["notes"] == {"frames": 3} and manifest["key"] == {"a": 1}
    assert "numpy" in manifest["versions"] and manifest["seconds"] >= 0


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A project of two packages: `near` hands on names of its modules a and b, `figures` draws."""
    files = {
        "rarevision/__init__": "",
        "rarevision/near/__init__": "from rarevision.near.a import f\nfrom rarevision.near.b import g as other\n",
        "rarevision/near/a": "from rarevision.near.c import k\nf = k",
        "rarevision/near/b": "g = 1",
        "rarevision/near/c": "k = 1",
        "rarevision/figures/__init__": "h = 1",
    }
    for name, text in files.items():
        path = tmp_path / "src" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(stage, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(stage, "FIGURES", tmp_path / "src" / "rarevision" / "figures")
    return tmp_path / "src"


@pytest.mark.parametrize(
    "imports",
    ["from rarevision import figures, near\nnear.f", "from rarevision.near import f\nfrom rarevision.figures import h"],
)
def test_code_hash_follows_names_through_doors_and_nothing_else(source, tmp_path, imports):
    notebook = tmp_path / "notebook.py"
    notebook.write_text(imports)
    first = code_hash(notebook)
    (source / "rarevision/near/b.py").write_text("g = 2")
    (source / "rarevision/figures/__init__.py").write_text("h = 2")
    assert code_hash(notebook) == first, "a module it does not reach, or a figure, changed"
    (source / "rarevision/near/c.py").write_text("k = 2")
    second = code_hash(notebook)
    assert second != first, "a module reached through another one changed"
    notebook.write_text(imports + "\n# more")
    assert code_hash(notebook) != second


def test_code_hash_follows_a_renamed_name(source, tmp_path):
    notebook = tmp_path / "notebook.py"
    notebook.write_text("from rarevision.near import other")
    first = code_hash(notebook)
    (source / "rarevision/near/b.py").write_text("g = 2")
    assert code_hash(notebook) != first
