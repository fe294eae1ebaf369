"""Artifacts that are damaged, edited, foreign or of another checkpoint: one clear line each, exit code 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from compiler.artifact import CIRCUIT, MANIFEST, MAX_MANIFEST_BYTES, PACKAGES, PLAN
from tests.drafts.command_line import circuit
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint
from tests.support.artifacts import read, rewrite, without_code

PACKAGE = "packages/chain_rows1_context32.so"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `checkpoint`, and `artifact` compiled of it without code."""
    folder = tmp_path_factory.mktemp("faults")
    config = tiny_config()
    write_checkpoint(folder / "checkpoint", config, tiny_weights(config))
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_code(monkeypatch)
        outcome = circuit(
            *("compile", folder / "checkpoint", "-o", folder / "artifact"),
            *("--drafts", 2, "--batch", "1", "--context", "32", "--json"),
        )
    assert outcome.code == 0
    return folder


@pytest.fixture
def artifact(compiled: Path, tmp_path: Path) -> Path:
    """A copy to damage, its checkpoint beside it."""
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    return tmp_path / "artifact"


def write(name: str, contents: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(contents)

    return change


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def truncate(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        contents = (folder / name).read_bytes()
        (folder / name).write_bytes(contents[: len(contents) // 2])

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def link(name: str) -> Callable[[Path], None]:
    """Put a link in the place of a file or folder, to the same contents outside of the artifact."""

    def change(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return change


def says(**changes: object) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, **changes)


def says_of_program(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        programs = json.loads((folder / MANIFEST).read_text())["programs"]
        rewrite(folder, programs=[programs[0] | changes, *programs[1:]])

    return change


def says_of_binding(**changes: object) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, binding=dict(read(folder).binding) | changes)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest's contents": (write(MANIFEST, b""), "expected JSON"),
    "truncated manifest": (truncate(MANIFEST), "truncated or edited"),
    "manifest of bytes": (write(MANIFEST, bytes(range(128, 256))), "expected JSON"),
    "manifest of brackets": (write(MANIFEST, b"[" * 100_000), "expected JSON"),
    "manifest of a list": (write(MANIFEST, b"[1]"), "damaged"),
    "manifest without end": (write(MANIFEST, b" " * (MAX_MANIFEST_BYTES + 1)), "expected at most"),
    "edited manifest": (edit(MANIFEST, '"num_threads": 1', '"num_threads": 2'), "edited"),
    "edited decision": (edit(MANIFEST, "post_norm", "pre_norm"), "edited"),
    "field of a stranger": (says(turbo=1), "turbo"),
    "newer format": (says(format=4), "expected artifact format 3, got 4; a newer version"),
    "format in words": (says(format="one"), "format"),
    "other torch": (says(torch_version="1.13.1"), "compiled for torch_version 1.13.1, this is"),
    "other machine": (says(machine="sparc64"), "sparc64"),
    "other vector width": (says(cpu_capability="SVE256"), "SVE256"),
    "other CPU": (says(cpu_features=["avx2", "avx4096"]), "a CPU with avx4096"),
    "no programs": (says(programs=[]), "programs"),
    "file above the artifact": (says_of_program(file="../outside.so"), "programs.0.file"),
    "file at a root": (says_of_program(file="/etc/passwd"), "programs.0.file"),
    "file through the packages": (says_of_program(file="packages/../../outside.so"), "programs.0.file"),
    "file of another kind": (says_of_program(file="packages/code.pt2"), "programs.0.file"),
    "file with a line end": (says_of_program(file="packages/code.so\n"), "programs.0.file"),
    "negative rows": (says_of_program(num_rows=-1), "programs.0.num_rows"),
    "missing package": (remove(PACKAGE), "got no such file"),
    "truncated package": (truncate(PACKAGE), "truncated or edited"),
    "edited package": (edit(PACKAGE, "code", "core"), "truncated or edited"),
    "package behind a link": (link(PACKAGE), "got a link"),
    "packages behind a link": (link(PACKAGES), "got a link"),
    "circuit behind a link": (link(CIRCUIT), "got a link"),
    "edited circuit": (edit(CIRCUIT, "eh_proj", "eh_prog"), "truncated or edited"),
    "missing plan": (remove(PLAN), "got no such file"),
    "truncated plan": (truncate(PLAN), "truncated or edited"),
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_damaged_or_foreign_artifact_is_one_line(artifact: Path, fault: str) -> None:
    damage, says_why = DAMAGES[fault]
    damage(artifact)
    for arguments in (("check", artifact), ("run", artifact, "--prompt", "a"), ("parity", artifact)):
        outcome = circuit(*arguments)
        assert outcome.code == 2
        assert says_why in outcome.error
        assert str(artifact) in outcome.error


@pytest.mark.parametrize("fault", ["other torch", "other machine", "other CPU"])
def test_inspect_and_diff_look_at_a_foreign_artifact(artifact: Path, compiled: Path, fault: str) -> None:
    DAMAGES[fault][0](artifact)
    outcome = circuit("inspect", artifact, "--json")
    assert outcome.code == 0
    assert DAMAGES[fault][1] in outcome.record["why_foreign"]
    changed = circuit("diff", compiled / "artifact", artifact, "--json")
    assert changed.code == 1
    assert changed.record["versions_and_weights"]


@pytest.mark.parametrize("fault", ["truncated manifest", "newer format", "missing package", "edited circuit"])
def test_inspect_and_diff_refuse_a_damaged_artifact(artifact: Path, compiled: Path, fault: str) -> None:
    DAMAGES[fault][0](artifact)
    for arguments in (("inspect", artifact), ("diff", compiled / "artifact", artifact)):
        outcome = circuit(*arguments, "--json")
        assert outcome.code == 2
        assert DAMAGES[fault][1] in outcome.error
        assert outcome.record == {"ok": False, "error": outcome.error}


def test_folder_without_manifest_is_no_artifact(artifact: Path) -> None:
    (artifact / MANIFEST).unlink()
    assert "expected a manifest" in circuit("inspect", artifact).error
    assert "without config.json or manifest.json" in circuit("run", artifact, "--prompt", "a").error


BINDINGS = {
    "unknown decision": ({"recycle": "sometimes"}, "binding"),
    "unknown dtype": ({"dtype": "float8"}, "binding.dtype"),
    "no drafts": ({"max_num_drafts": 0}, "binding.max_num_drafts"),
    "drafts in words": ({"max_num_drafts": "three"}, "binding.max_num_drafts"),
    "field of a stranger": ({"temperature": 1}, "binding.temperature"),
}


@pytest.mark.parametrize("fault", BINDINGS)
def test_binding_of_another_version_is_one_line(artifact: Path, fault: str) -> None:
    changes, place = BINDINGS[fault]
    says_of_binding(**changes)(artifact)
    outcome = circuit("run", artifact, "--prompt", "a")
    assert outcome.code == 2
    assert place in outcome.error


# the artifact of a whole checkpoint, for these get as far as loading the target
@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_tiny_checkpoint(folder / "checkpoint")
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_code(monkeypatch)
        outcome = circuit("compile", folder / "checkpoint", "-o", folder / "artifact", "--drafts", 2, "--batch", "1")
    assert outcome.code == 0
    return folder


def test_package_that_is_no_code_is_one_line(whole: Path) -> None:
    outcome = circuit("run", whole / "artifact", "--prompt", "a")
    assert outcome.code == 2
    assert "cannot be loaded" in outcome.error


def test_artifact_without_its_checkpoint_says_where_it_looked(artifact: Path) -> None:
    shutil.rmtree(artifact.parent / "checkpoint")
    outcome = circuit("run", artifact, "--prompt", "a")
    assert outcome.code == 2
    assert str(artifact.parent / "checkpoint") in outcome.error
    assert "--checkpoint" in outcome.error


def test_other_weights_are_refused_by_name(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "checkpoint", tmp_path / "other")
    write_changed_head(tmp_path / "other")
    outcome = circuit("run", whole / "artifact", "--checkpoint", tmp_path / "other", "--prompt", "a")
    assert outcome.code == 2
    assert "eh_proj" in outcome.error
    assert str(tmp_path / "other") in outcome.error


def write_changed_head(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("eh_proj.weight"))
    save_file(tensors | {name: tensors[name] + 0.5}, folder / "model.safetensors", metadata={"format": "pt"})


def test_options_that_the_artifact_does_not_serve(whole: Path) -> None:
    artifact = whole / "artifact"
    for arguments, expected in (
        (("--drafts", 17), "less than or equal to 16"),
        (("--dtype", "bf16"), "compiled in f32"),
    ):
        outcome = circuit("run", artifact, "--prompt", "a", *arguments)
        assert outcome.code == 2
        assert expected in outcome.error
    outcome = circuit("run", whole / "checkpoint", "--checkpoint", whole / "checkpoint", "--prompt", "a")
    assert outcome.code == 2
    assert "--checkpoint" in outcome.error
