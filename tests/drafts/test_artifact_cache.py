"""The cache of artifacts that commands compile on demand: what is compiled when, and what runs where it cannot be."""

from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from circuit import CircuitError
from compiler.artifact import MANIFEST
from drafts.cli import _cache_folder
from drafts.commands.artifacts import BackendChoice, cached_artifact
from drafts.commands.screen import Screen
from drafts.commands.session import Session
from drafts.decisions import default_decisions
from drafts.load_compiled import Artifact
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint
from tests.support.artifacts import without_code


class Desk:
    """A session without a target, a cache folder, and what was said on standard error."""

    def __init__(self, folder: Path) -> None:
        config = tiny_config()
        weights = tiny_weights(config)
        checkpoint = write_checkpoint(folder / "checkpoint", config, weights)
        self.session = Session(checkpoint, config, default_decisions(config), cast(Any, None), cast(Any, None), weights)
        self.cache = folder / "cache"
        self.said = StringIO()
        self.screen = Screen(as_json=False)
        self.screen.err = Console(file=self.said, width=1000)

    def get(
        self, backend: str | None, *, num_tokens: int = 100, num_drafts: int = 2, **options: bool
    ) -> Artifact | None:
        choice = BackendChoice(backend, self.cache)
        return cached_artifact(
            self.session, self.screen, choice, num_tokens=num_tokens, num_drafts=num_drafts, **options
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("drafts.commands.artifacts.has_cxx_compiler", lambda: True)
    return without_code(monkeypatch)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_second_run_takes_what_the_first_compiled(desk: Desk, built: list[str], backend: str | None) -> None:
    first = desk.get(backend)
    assert first is not None
    assert str(first.folder) in desk.said.getvalue()
    assert first.folder.parent == desk.cache
    built.clear()
    second = desk.get(backend, num_tokens=120)
    assert second is not None
    assert second.folder == first.folder
    assert built == []


def test_other_weights_are_another_artifact_and_a_longer_chain_is_not(desk: Desk, built: list[str]) -> None:
    first, longer = desk.get(None), desk.get(None, num_drafts=3)
    assert first is not None
    assert longer is not None
    assert longer.folder == first.folder
    desk.session.weights["lm_head"].mul_(2)
    changed = desk.get(None)
    assert changed is not None
    assert changed.folder != first.folder


def test_context_is_a_power_of_two_within_the_checkpoints_positions(built: list[str], tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert cast(Artifact, desk.get(None)).max_rows == 528  # 512 positions, and a chain of 16 beyond them
    desk.session = Session(
        desk.session.folder,
        desk.session.config.model_copy(update={"max_position_embeddings": 1 << 20}),
        desk.session.decisions,
        cast(Any, None),
        cast(Any, None),
        desk.session.weights,
    )
    assert cast(Artifact, desk.get(None)).max_rows == 1024
    assert cast(Artifact, desk.get(None, num_tokens=1022)).max_rows == 1024
    assert cast(Artifact, desk.get(None, num_tokens=1023)).max_rows == 2048


def test_damaged_artifact_is_compiled_again_and_said_so(desk: Desk, built: list[str]) -> None:
    artifact = cast(Artifact, desk.get(None))
    (artifact.folder / MANIFEST).write_text("{")
    built.clear()
    assert desk.get(None) is not None
    assert "truncated" in desk.said.getvalue()
    assert built


def test_reference_compiles_nothing(desk: Desk, built: list[str]) -> None:
    assert desk.get("reference") is None
    assert built == []
    assert desk.said.getvalue() == ""


def test_without_a_compiler_the_interpreter_runs_and_one_line_says_so(desk: Desk, no_compiler: None) -> None:
    assert desk.get(None) is None
    assert desk.said.getvalue().count("\n") == 1
    assert "no C++ compiler" in desk.said.getvalue()
    assert not desk.cache.exists()


def test_inductor_without_a_compiler_is_an_error(desk: Desk, no_compiler: None) -> None:
    with pytest.raises(CircuitError, match=r"expected a C\+\+ compiler"):
        desk.get("inductor")


def test_cached_artifact_needs_no_compiler(
    desk: Desk, built: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    desk.get(None)
    monkeypatch.setattr("drafts.commands.artifacts.has_cxx_compiler", lambda: False)
    assert desk.get(None) is not None


def test_demo_compiles_only_when_asked(desk: Desk, built: list[str]) -> None:
    assert desk.get(None, compiles=False) is None
    assert "interpreted" in desk.said.getvalue()
    assert built == []
    assert desk.get("inductor", compiles=False) is not None
    assert desk.get(None, compiles=False) is not None


def test_cache_that_cannot_be_written_leaves_the_interpreter(desk: Desk, built: list[str]) -> None:
    desk.cache.write_text("a file")
    assert desk.get(None) is None
    assert str(desk.cache) in desk.said.getvalue()
    with pytest.raises(OSError, match="cache"):
        desk.get("inductor")


@pytest.mark.parametrize(
    "named, expected",
    [("/var/cache/mine", "/var/cache/mine"), ("relative", "/home/me/.cache"), ("", "/home/me/.cache")],
)
def test_cache_folder_follows_the_base_directory_specification(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert _cache_folder() == Path(expected) / "draft-circuit"
