"""Artifacts for tests: real ones, compiled once a run, and ones whose packages hold no code."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compiler.artifact import MANIFEST, Manifest, ProgramRecord, manifest_digest
from compiler.inductor import DRIVER, BuildJob
from drafts.compile_drafter import compile_drafter
from drafts.decisions import Decisions
from drafts.proposer import DraftProposer
from tests.support.shared_build import shared_build

GOLDEN_VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
# what golden cases feed is what the drafter is fed
GOLDEN_DECISIONS = Decisions(supplied_hidden="post_norm")
# five blocks: the longest golden sequence has 65 rows
GOLDEN_CONTEXT = 80


def golden_artifact(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: str, *, num_drafts: int, context_rows: Sequence[int] = ()
) -> Path:
    """The artifact of a golden checkpoint: one chain of one row, and context programs where asked for."""

    def build(folder: Path) -> None:
        proposer = DraftProposer.from_checkpoint(
            GOLDEN_VECTORS / checkpoint, decisions=GOLDEN_DECISIONS, max_seq_len=GOLDEN_CONTEXT
        )
        compile_drafter(
            proposer,
            GOLDEN_VECTORS / checkpoint,
            folder,
            num_drafts=num_drafts,
            batches=(1,),
            contexts=(GOLDEN_CONTEXT,),
            context_rows=context_rows,
        )

    return shared_build(tmp_path_factory, f"artifact_{checkpoint}", build)


def without_code(monkeypatch: pytest.MonkeyPatch, *, fails_at: str | None = None) -> list[str]:
    """Make compiles write packages of a few bytes, all different; returns the list of programs built so far.

    The package named `fails_at` raises in place of being written.
    """
    built: list[str] = []

    def build(
        jobs: Sequence[BuildJob], *, num_workers: int, on_built: Callable[[BuildJob, float], None] | None = None
    ) -> None:
        assert 1 <= num_workers <= len(jobs)
        for job in jobs:
            if job.path.stem == fails_at:
                raise OSError(28, "No space left on device", str(job.path))
            job.path.write_bytes(f"no code, number {len(built)}".encode())
            built.append(job.path.stem)
            if on_built is not None:
                on_built(job, 1.5)

    def driver(folder: Path) -> Path:
        (folder / DRIVER).write_bytes(b"no code either")
        return folder / DRIVER

    monkeypatch.setattr("drafts.compile_drafter.build_packages", build)
    monkeypatch.setattr("drafts.compile_drafter.build_driver", driver)
    monkeypatch.setattr("drafts.compile_drafter.exact_chains", lambda binding, packages: set())
    for place in ("drafts.compile_drafter", "drafts.commands.compile"):
        monkeypatch.setattr(f"{place}.require_cxx_compiler", lambda: None)
    return built


def rewrite(folder: Path, **changes: Any) -> None:
    """Change fields of a manifest and give it the digest of what it then says, as another version would have."""
    document = json.loads((folder / MANIFEST).read_text()) | changes
    programs = [ProgramRecord.model_construct(**program) for program in document["programs"]]
    document["digest"] = manifest_digest(document, programs)
    (folder / MANIFEST).write_text(json.dumps(document))


def read(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
