"""The notebooks as files: paired, clean, and named as the pipeline knows them. test_chain.py runs them."""

import ast

import jupytext
import pytest

from rarevision.errors import UserError
from rarevision.run.notebook import PROJECT, STEPS, open_run

SOURCES = sorted((PROJECT / "notebooks").glob("*.py"))


def cells(path):
    return [(c.cell_type, c.source.strip(), c.metadata.get("tags", [])) for c in jupytext.read(path).cells]


def test_every_stage_is_a_notebook_and_every_notebook_a_stage():
    assert [p.stem for p in SOURCES] == list(STEPS)


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_source_and_notebook_have_the_same_cells(source):
    paired = source.with_suffix(".ipynb")
    assert paired.exists(), "make it: jupytext --to ipynb notebooks/*.py"
    assert cells(paired) == cells(source), "they differ: jupytext --update --to ipynb notebooks/*.py"


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_notebooks_carry_no_outputs(source):
    for cell in jupytext.read(source.with_suffix(".ipynb")).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_a_notebook_opens_and_closes_its_own_stage(source):
    found = cells(source)
    code = [text for kind, text, _ in found if kind == "code"]
    parameters = [text for _, text, tags in found if "parameters" in tags]
    assert len(parameters) == 1
    names = {t.id for node in ast.parse(parameters[0]).body for t in node.targets}
    assert {"CONFIG", "DATA_ROOT", "TEST_ROOT", "RUN_DIR", "OVERRIDE", "FORCE"} <= names
    assert any(f'start_stage("{source.stem}", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)' in c for c in code)
    assert "run.finish(" in code[-1], "the manifest is written last"


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_cells_are_short_and_told(source):
    found = cells(source)
    assert found[0][0] == "markdown" and found[0][1].startswith(f"# {source.stem[:2]} ")
    long = [c for kind, c, _ in found if kind == "code" and len(c.splitlines()) > 16]
    assert not long, "what is longer belongs into a module"
    assert not any(
        isinstance(n, ast.ClassDef) for kind, c, _ in found if kind == "code" for n in ast.walk(ast.parse(c))
    )


def test_a_missing_input_names_the_stage_to_run_first(tmp_path):
    run = open_run("04_threshold_tuning", "configs/demo.toml", run_dir=str(tmp_path))
    with pytest.raises(UserError, match="run notebook 03_training first"):
        run.need("probs/oof", "03_training")
