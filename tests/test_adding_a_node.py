"""docs/adding_a_node.md, followed to the letter in a copy of the tree: its node passes the conformance test."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "adding_a_node.md"
COPIED = ("circuit", "nodes", "tests/support", "tests/nodes/cases", "tests/nodes/test_conformance.py", "pyproject.toml")
NAMED_FILE = re.compile(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def tree_with_node(tmp_path: Path) -> Path:
    for name in COPIED:
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    files = NAMED_FILE.findall(PAGE.read_text())
    assert [name for name, _ in files] == ["nodes/softcap.py", "tests/nodes/cases/softcap.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_page_adds_a_node_that_conforms(tree_with_node: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/nodes/test_conformance.py", "-k", "softcap or every"]
    # `python -m` puts the working folder first, so the copy is what is imported
    done = subprocess.run(command, cwd=tree_with_node, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    summary = re.search(r"(\d+) passed", done.stdout)
    assert summary is not None
    assert int(summary.group(1)) > 40
    source = "import nodes.softcap, sys; sys.stdout.write(nodes.softcap.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", source], cwd=tree_with_node, capture_output=True, text=True, check=True
    )
    assert where.stdout == str(tree_with_node / "nodes" / "softcap.py")
