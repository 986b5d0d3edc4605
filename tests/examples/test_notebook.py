"""The notebook, run from top to bottom in a kernel of its own."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_notebook_runs_and_its_model_learns(tmp_path, monkeypatch):
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "150")
    NotebookClient(notebook, timeout=1400, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    said = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    training = next(text for text, cell in zip(said, notebook.cells, strict=True) if "tail -40" in cell.source)
    gained = re.search(r"math: \+(\d+\.\d) points of accuracy", training)
    assert gained, training
    assert float(gained[1]) > 20
    verdicts = next(text for text, cell in zip(said, notebook.cells, strict=True) if "parity.verify" in cell.source)
    assert re.findall(r"Verdict\((?:score=)?([\d.]+)", verdicts) == ["1.0", "0.0", "0.0"]
    assert (tmp_path / "runs/quickstart/parity/report.html").is_file()


def test_the_notebook_is_kept_without_outputs():
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
