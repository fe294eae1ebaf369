"""`circuit compile --backend triton`: an artifact of launches and kernels, made without a GPU and without weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drafts.command_line import circuit
from tests.drafts.tiny_head import config_document

pytestmark = pytest.mark.slow


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: here triton interprets, there it compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "drafts", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # kernels read 16 bytes at a time where rows are so long
    sizes = {"hidden_size": 64, "q_lora_rank": 32, "kv_lora_rank": 32, "moe_intermediate_size": 32}
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(config_document(**sizes)))
    return path


@pytest.fixture(scope="module")
def artifact(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("artifact") / "gpu"
    options = ("--backend", "triton", "--random-weights", "--batch", "1", "--context", "64", "--dtype", "bf16")
    done = run("compile", config, "-o", folder, *options, "--drafts", "2", "--jobs", "1", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_artifact_holds_eleven_launches_a_draft_and_the_code_of_each_kernel(
    artifact: tuple[Path, dict[str, Any]],
) -> None:
    folder, record = artifact
    chain, context = record["programs"]
    assert (chain["num_launches"], chain["num_drafts"]) == (22, 2)
    assert context["num_launches"] == 4
    document = json.loads((folder / chain["file"]).read_text())
    assert [launch["draft"] for launch in document["launches"]] == [1] * 11 + [2] * 11
    for launch in document["launches"]:
        assert (folder / launch["code"]).read_bytes()[:4] == b"\x7fELF"
        for argument in launch["arguments"].values():
            assert not isinstance(argument, dict) or argument["buffer"] in document["buffers"]
    assert all(kernel["spilled_bytes"] == 0 for kernel in record["kernels"])


def test_inspect_reads_it_and_nothing_runs_it(artifact: tuple[Path, dict[str, Any]]) -> None:
    folder, record = artifact
    shown = circuit("inspect", folder, "--json")
    assert shown.record["digest"] == record["digest"]
    assert "sm_90" in circuit("inspect", folder).out
    assert circuit("check", folder, "--json").record["digest"] == record["digest"]
    outcome = circuit("run", folder, "--prompt", "a")
    assert outcome.code == 2
    assert "got launches for a GPU" in outcome.err


@pytest.mark.parametrize("width, name", [(80, "combine_values"), (120, "combine_values.combine_values")])
def test_table_of_kernels_fits_the_terminal(
    artifact: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    folder, record = artifact
    monkeypatch.setenv("COLUMNS", str(width))
    lines = circuit("inspect", folder).out.splitlines()
    rows = lines[next(number for number, line in enumerate(lines) if line.startswith("kernel ")) + 1 :]
    assert len(rows) == len(record["kernels"])
    assert name in [row.split()[0] for row in rows]


@pytest.mark.parametrize("found, step", [(99, "a newer version wrote it"), (0, "compile again")])
def test_another_format_is_not_called_damaged(
    artifact: tuple[Path, dict[str, Any]], tmp_path: Path, found: int, step: str
) -> None:
    document = json.loads((artifact[0] / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**document, "format": found}))
    outcome = circuit("inspect", tmp_path)
    assert outcome.code == 2
    assert f"expected artifact format 1, got {found}; {step}" in outcome.err


def test_edited_file_is_named(artifact: tuple[Path, dict[str, Any]]) -> None:
    folder, record = artifact
    file = folder / record["programs"][0]["file"]
    text = file.read_text()
    file.write_text(text.replace('"num_warps": 1', '"num_warps": 2', 1))
    try:
        outcome = circuit("inspect", folder)
    finally:
        file.write_text(text)
    assert outcome.code == 2
    assert str(file.name) in outcome.err.replace("\n", "")


@pytest.mark.parametrize(
    "options, expected",
    [
        (("--backend", "triton"), "add --random-weights"),
        (("--backend", "triton", "--random-weights", "--target", "sm_10"), "--target: expected one of sm_80"),
        (("--target", "sm_90"), "--target: expected --backend triton beside it"),
        (("--random-weights",), "--random-weights: expected --backend triton beside it"),
        (("--backend", "triton", "--random-weights", "--batch", "17"), "--batch: expected numbers from 1 to 16"),
        # where triton interprets it cannot compile
        (("--backend", "triton", "--random-weights", "--batch", "1", "--jobs", "1"), "triton interprets kernels"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    config: Path, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    outcome = circuit("compile", config, "-o", tmp_path / "x", *options)
    assert outcome.code == 2, outcome.err
    assert expected in outcome.err.replace("\n", " ")
    assert not (tmp_path / "x").exists()
