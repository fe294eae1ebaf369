"""`circuit compile`: where it writes, what it refuses, what two compiles have in common. No code is built here."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from compiler.artifact import CIRCUIT, MANIFEST, PLAN, read_manifest
from compiler.artifact_folder import is_artifact_folder, replacing
from compiler.plan import read_plan
from compiler.registry import lowered_nodes
from drafts.load_compiled import open_artifact
from tests.drafts.command_line import circuit
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint
from tests.support.artifacts import without_code

OPTIONS = ("--drafts", 2, "--batch", "1,4", "--context", "32,60")
# contexts in whole blocks of 16 rows
PROGRAMS = [
    "chain_rows1_context32",
    "chain_rows1_context64",
    "chain_rows4_context32",
    "chain_rows4_context64",
    "context_rows4_context64",
    "context_rows64_context64",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = tiny_config()
    return write_checkpoint(tmp_path / "checkpoint", config, tiny_weights(config))


def compile_to(output: Path, checkpoint: Path, *options: object) -> str:
    """Compile, and return the digest."""
    outcome = circuit("compile", checkpoint, "-o", output, *(options or OPTIONS), "--json")
    assert outcome.code == 0, outcome.err
    return outcome.record["digest"]


def test_compile_writes_programs_plan_and_document(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    output = tmp_path / "new" / "artifact"
    outcome = circuit("compile", checkpoint, "-o", output, *OPTIONS)
    assert outcome.code == 0
    assert all(name in outcome.out for name in PROGRAMS)
    assert all(f"{name}  1.5 s" in outcome.err for name in PROGRAMS)
    manifest = read_manifest(output)
    assert [program.name for program in manifest.programs] == PROGRAMS
    assert sorted(path.stem for path in (output / "packages").iterdir()) == [*PROGRAMS, "driver"]
    assert [program.name for program in read_plan(output / PLAN).programs] == PROGRAMS
    assert circuit("show", output).out == circuit("show", output / CIRCUIT).out
    assert circuit("check", output).code == 0


def test_json_lists_sizes_and_seconds(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_code(monkeypatch)
    record = circuit("compile", checkpoint, "-o", tmp_path / "artifact", *OPTIONS, "--json").record
    sizes = {path.stem: path.stat().st_size for path in (tmp_path / "artifact" / "packages").iterdir()}
    assert {program["name"]: program["bytes"] for program in record["programs"]} | {"driver": sizes["driver"]} == sizes
    assert record["bytes"] == sum(sizes.values())
    assert {program["seconds"] for program in record["programs"]} == {1.5}


def test_two_compiles_of_one_thing_have_one_digest(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    first = compile_to(tmp_path / "a", checkpoint)
    # elsewhere, so that the way to the checkpoint is another one
    assert compile_to(tmp_path / "deep" / "er" / "b", checkpoint) == first
    manifests = [json.loads((tmp_path / name / MANIFEST).read_text()) for name in ("a", "deep/er/b")]
    for manifest in manifests:
        manifest.pop("checkpoint")
        assert all(program.pop("file_sha256") for program in manifest["programs"])
    assert manifests[0] == manifests[1]
    assert (tmp_path / "a" / PLAN).read_bytes() == (tmp_path / "deep" / "er" / "b" / PLAN).read_bytes()


def test_digest_is_of_options_and_weights(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_code(monkeypatch)
    digests = [
        compile_to(tmp_path / str(number), checkpoint, *options)
        for number, options in enumerate(
            (
                ("--drafts", 2, "--batch", "1"),
                ("--drafts", 1, "--batch", "1"),
                ("--drafts", 2, "--batch", "2"),
                ("--drafts", 2, "--batch", "1", "--context", "64"),
                ("--drafts", 2, "--batch", "1", "--dtype", "bf16"),
            )
        )
    ]
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"] * 2}, checkpoint / "model.safetensors")
    digests.append(compile_to(tmp_path / "weights", checkpoint, "--drafts", 2, "--batch", "1"))
    assert len(set(digests)) == len(digests)


def test_artifact_holds_no_absolute_path_and_moves_with_its_checkpoint(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    compile_to(tmp_path / "artifact", checkpoint)
    for path in (tmp_path / "artifact").rglob("*.*"):
        assert str(tmp_path).encode() not in path.read_bytes() if path.is_file() else True
    (tmp_path / "elsewhere").mkdir()
    for name in ("artifact", "checkpoint"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    assert open_artifact(tmp_path / "elsewhere" / "artifact").checkpoint == tmp_path / "elsewhere" / "checkpoint"


def test_folder_with_other_files_is_left_alone(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = without_code(monkeypatch)
    compile_to(tmp_path / "artifact", checkpoint)
    (tmp_path / "artifact" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    built.clear()
    for output in (tmp_path / "artifact", tmp_path / "file", checkpoint):
        before = sorted(output.rglob("*"))
        outcome = circuit("compile", checkpoint, "-o", output)
        assert outcome.code == 2
        assert str(output) in outcome.error
        assert sorted(output.rglob("*")) == before
    assert built == []


def test_artifact_is_replaced_and_an_empty_folder_filled(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    (tmp_path / "artifact").mkdir()
    first = compile_to(tmp_path / "artifact", checkpoint, "--drafts", 1, "--batch", "1,2")
    second = compile_to(tmp_path / "artifact", checkpoint, "--drafts", 2, "--batch", "1")
    assert read_manifest(tmp_path / "artifact").digest == second != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifact", "checkpoint"]


def test_compile_that_fails_leaves_what_was_there(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    digest = compile_to(tmp_path / "artifact", checkpoint)
    without_code(monkeypatch, fails_at=PROGRAMS[2])
    for output in ("artifact", "new"):
        outcome = circuit("compile", checkpoint, "-o", tmp_path / output, *OPTIONS)
        assert outcome.code == 2
        assert "No space left on device" in outcome.err
    assert read_manifest(tmp_path / "artifact").digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifact", "checkpoint"]


def test_files_put_there_meanwhile_are_kept(tmp_path: Path) -> None:
    def replace() -> None:
        with replacing(tmp_path / "artifact") as folder:
            (folder / MANIFEST).write_text("{}")
            (tmp_path / "artifact").mkdir()
            (tmp_path / "artifact" / "notes.txt").write_text("mine")

    with pytest.raises(Exception, match="other files"):
        replace()
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
    assert not is_artifact_folder(tmp_path / "artifact")
    assert (tmp_path / "artifact" / "notes.txt").read_text() == "mine"


def test_missing_compiler_is_one_line_before_anything_is_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (checkpoint / "model.safetensors").unlink()
    outcome = circuit("compile", checkpoint, "-o", tmp_path / "artifact")
    assert outcome.code == 2
    assert "expected a C++ compiler" in outcome.error
    assert not (tmp_path / "artifact").exists()


BAD_OPTIONS = {
    "no batch": (("--batch", ""), "--batch"),
    "batch of none": (("--batch", "0"), "--batch"),
    "batch in words": (("--batch", "1,two"), "--batch"),
    "gap in batches": (("--batch", "1,,2"), "--batch"),
    "huge batch": (("--batch", "9" * 5000), "--batch"),
    "batch in other digits": (("--batch", "\u0663"), "--batch"),
    "context beyond the checkpoint": (("--context", "513"), "--context"),
    "context without room": (("--context", "2"), "--context"),
    "reference": (("--backend", "reference"), "--backend"),
    "no jobs": (("--jobs", "0"), "--jobs"),
    "no drafts": (("--drafts", "0"), "--drafts"),
    "unknown dtype": (("--dtype", "f64"), "--dtype"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_option_is_one_line(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    built = without_code(monkeypatch)
    arguments, named = BAD_OPTIONS[case]
    outcome = circuit("compile", checkpoint, "-o", tmp_path / "artifact", *arguments)
    assert outcome.code == 2
    assert named in outcome.error
    assert built == []


def test_checkpoint_wider_than_the_circuit_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    outcome = circuit("compile", tmp_path, "-o", tmp_path / "artifact")
    assert outcome.code == 2
    assert "config.json" in outcome.error


def test_inspect_shows_programs_digests_and_tags(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    digest = compile_to(tmp_path / "artifact", checkpoint)
    record = circuit("inspect", tmp_path / "artifact", "--json").record
    assert record["digest"] == digest
    assert record["torch_version"] == torch.__version__
    assert record["why_foreign"] is None
    assert [program["name"] for program in record["programs"]] == PROGRAMS
    first = record["programs"][0]
    assert (first["num_drafts"], first["num_rows"], first["max_rows"]) == (2, 1, 32)
    assert first["bytes_read"] > 0
    calls = {call["node_type"]: call for call in first["plan"]["calls"]}
    assert calls["AppendCache"]["numerics"] == "bitwise"
    assert calls["Linear"]["numerics"].startswith("tolerance(")
    assert calls["RmsNorm"]["numerics"] == "reference"
    text = circuit("inspect", tmp_path / "artifact").out
    assert digest in text
    assert all(name in text for name in (*PROGRAMS, *(set(lowered_nodes("inductor")) & set(calls))))


def test_diff_of_one_thing_finds_nothing(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_code(monkeypatch)
    compile_to(tmp_path / "a", checkpoint)
    compile_to(tmp_path / "b", checkpoint)
    for pair in ((tmp_path / "a", tmp_path / "b"), (checkpoint, checkpoint), (checkpoint, tmp_path / "a")):
        outcome = circuit("diff", *pair, "--json")
        assert outcome.code == 0, outcome.out
        assert outcome.record["same"] is True
    assert circuit("diff", tmp_path / "a", tmp_path / "a" / CIRCUIT).out == "no difference\n"


def test_diff_names_nodes_programs_and_versions(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_code(monkeypatch)
    compile_to(tmp_path / "a", checkpoint, "--drafts", 1, "--batch", "1")
    compile_to(tmp_path / "b", checkpoint, "--drafts", 2, "--batch", "1", "--dtype", "bf16")
    outcome = circuit("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert outcome.code == 1
    record = outcome.record
    assert record["same"] is False
    assert "call eh_out" in [change["name"] for change in record["circuit"]["changed"]]
    assert record["versions_and_weights"]["binding.dtype"] == {"before": "float32", "after": "bfloat16"}
    assert "chain_rows1_context512" in record["programs"]
    text = circuit("diff", tmp_path / "a", tmp_path / "b").out
    assert "binding.dtype" in text
    assert "chain_rows1_context512" in text
