"""Ranks on the command line: `circuit run` by --nproc and torchrun, and what is refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drafts.commands.rank_launch import StartedRank, launch_ranks, started_rank
from drafts.commands.rank_options import NO_SPLIT, RankOptions, levers_of_environment
from drafts.parallel import ParallelPlan, default_plan
from tests.drafts.command_line import circuit
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint
from tests.drafts.tiny_head import tiny_config

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 150


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


def run_apart(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in processes of their own; one that hangs is a failure."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def decoding(checkpoint: Path, *options: object) -> tuple[object, ...]:
    return ("run", checkpoint, "--prompt", "def f(x):", "--max-tokens", 6, "--json", *options)


def one_rank(checkpoint: Path) -> dict[str, Any]:
    return circuit(*decoding(checkpoint, "--backend", "reference")).record


@pytest.mark.slow
def test_nproc_decodes_the_text_of_one_rank(checkpoint: Path) -> None:
    done = run_apart("-m", "drafts", *decoding(checkpoint, "--nproc", 2))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["parallel"] == {"tp": 2, "ep": 2}
    assert record["path"] == "circuit:reference"
    assert record["tokens"] == one_rank(checkpoint)["tokens"]
    assert "shared by ranks, tp 2, ep 2" in done.stderr


@pytest.mark.slow
def test_torchrun_decodes_the_text_of_one_rank(checkpoint: Path) -> None:
    done = run_apart(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        2,
        "-m",
        "drafts",
        *decoding(checkpoint, "--eager"),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["path"], record["parallel"]) == ("eager", {"tp": 2, "ep": 2})
    assert record["tokens"] == one_rank(checkpoint)["tokens"]


@pytest.mark.slow
def test_environment_runs_the_drafter_whole_on_each_rank(checkpoint: Path) -> None:
    options = ("--nproc", 2, "--backend", "reference")
    done = run_apart("-m", "drafts", *decoding(checkpoint, *options), **{NO_SPLIT: "1"})
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["parallel"] == {"tp": 1, "ep": 1}
    assert record["tokens"] == one_rank(checkpoint)["tokens"]


@pytest.mark.slow
def test_compiled_backend_refuses_ranks_in_one_line(checkpoint: Path) -> None:
    done = run_apart("-m", "drafts", *decoding(checkpoint, "--nproc", 2, "--backend", "inductor"))
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if "error" in line] == [
        line for line in done.stderr.splitlines() if "a compiled program exchanges nothing with other ranks" in line
    ]


# one process


@pytest.mark.parametrize(
    "options, expected",
    [
        (("--tp", 2), "expected 2 ranks, got 1; add --nproc 2, or start it with torchrun --nproc-per-node 2"),
        (("--ep", 4), "expected 4 ranks, got 1; add --nproc 4"),
        (("--nproc", 0), "--nproc"),
    ],
)
def test_ranks_that_were_not_started_are_one_line(checkpoint: Path, options: tuple[Any, ...], expected: str) -> None:
    outcome = circuit(*decoding(checkpoint, *options))
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("rank, world", [("2", "2"), ("-1", "2"), ("x", "2"), ("0", "")])
def test_environment_that_is_no_rank_is_refused(rank: str, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=r"RANK .* of WORLD_SIZE .*: expected a rank and the number of ranks"):
        started_rank()


def test_environment_names_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert started_rank() == StartedRank(0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert started_rank() == StartedRank(1, 4)


@pytest.mark.parametrize("text, is_split", [("1", False), ("", True), ("0", True)])
def test_environment_turns_the_lever_off(text: str, is_split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_SPLIT, text)
    assert levers_of_environment().mtp_ep_propose is is_split


def test_plan_that_nobody_asked_for_fits_the_heads() -> None:
    config = tiny_config(num_attention_heads=3)
    assert default_plan(1, config) == ParallelPlan()
    assert default_plan(3, config) == ParallelPlan(tp=3, ep=3)
    assert default_plan(4, config) == ParallelPlan(tp=2, ep=4)
    assert RankOptions(StartedRank(0, 4), tp=2).plan(config) == ParallelPlan(tp=2, ep=4)
    assert RankOptions(StartedRank(0, 2), tp=1, ep=2).plan(config) == ParallelPlan(tp=1, ep=2)
    with pytest.raises(ValueError, match="--tp 2 --ep 2: expected 2 ranks, got 4"):
        RankOptions(StartedRank(0, 4), tp=2, ep=2).plan(config)


def test_launch_ends_every_rank_and_returns_the_code_of_a_bad_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch_ranks(2, ["run", "nowhere", "--no-such-option"]) == 2
    said = capfd.readouterr().err
    assert "No such option" in said
    assert said.count("error:") == 1


# what a split comes to


def test_plan_tells_parts_and_exchanges() -> None:
    record = circuit("plan", "glm-5.3-flash", "--tp", 4, "--ep", 8, "--json").record
    split, whole = record["parallel"], circuit("plan", "glm-5.3-flash", "--json").record
    assert whole["parallel"]["exchanges"] == []
    assert [(part["first"], part["last"], part["heads"], part["experts"]) for part in split["ranks"]] == [
        (0, 7, 16, 36)
    ]
    assert [(entry["value"], entry["axis"], entry["payload_bytes"]) for entry in split["exchanges"]] == [
        ("attn_out", "tp", 8192),
        ("experts_out", "ep", 8192),
        ("draft", "tp", 16),
    ]
    # a ring sends each part twice but for a rank's share: 2 * 3/4 and 2 * 7/8 of 8192, and 16 bytes to 3 others
    assert [entry["bytes_sent"] for entry in split["exchanges"]] == [12288, 14336, 48]
    assert split["exchanges_per_chain"] == 9
    assert record["launches_per_draft"] == whole["launches_per_draft"] + 3
    assert record["bytes_per_draft"] < 0.3 * whole["bytes_per_draft"]
    assert split["ranks"][0]["weight_bytes"] < whole["parallel"]["ranks"][0]["weight_bytes"] / 4
    text = circuit("plan", "glm-5.3-flash", "--tp", 4, "--ep", 8).out
    assert "split over 8 ranks, tp 4, ep 8" in text
    assert "exchanges of a draft, batch 1: 3, 26.7 KB sent by each rank" in text


def test_plan_of_uneven_ranks_tells_them_apart() -> None:
    split = circuit("plan", "glm-5.3-flash", "--ep", 7, "--json").record["parallel"]
    assert [(part["first"], part["last"], part["experts"]) for part in split["ranks"]] == [(0, 0, 42), (1, 6, 41)]


def test_plan_says_that_a_split_drafter_runs_interpreted() -> None:
    said = "so a split drafter runs interpreted"
    assert said in " ".join(circuit("plan", "glm-5.3-flash", "--tp", 2).out.split())
    assert said not in " ".join(circuit("plan", "glm-5.3-flash").out.split())


def test_plan_with_the_lever_off_is_whole() -> None:
    off = circuit("plan", "glm-5.3-flash", "--tp", 2, "--levers", "mtp_ep_propose=false", "--json").record
    assert off["parallel"]["tp"] == 1
    assert off["bytes_per_draft"] == circuit("plan", "glm-5.3-flash", "--json").record["bytes_per_draft"]


@pytest.mark.parametrize(
    "options, expected",
    [
        (("--tp", 3, "--ep", 8), "expected that tp divides ep or ep divides tp, got tp 3 and ep 8; change one of them"),
        (("--tp", 128), "expected tp of at most 64, one head a rank; lower --tp"),
        (("--tp", 2, "--backend", "inductor"), "a program of inductor runs on one rank and exchanges nothing"),
    ],
)
def test_plan_refuses_what_cannot_be_split_in_one_line(options: tuple[Any, ...], expected: str) -> None:
    outcome = circuit("plan", "glm-5.3-flash", *options)
    assert outcome.code == 2
    assert expected in outcome.error


def test_compare_takes_ranks_as_settings() -> None:
    sides = circuit("plan", "glm-5.3-flash", "--compare", "tp=1", "tp=8,ep=8", "--json").record
    assert sides["b"]["bytes_per_draft"] < sides["a"]["bytes_per_draft"] / 4
    assert "expected 1 to 4,096 ranks, got 'x'" in circuit("plan", "demo", "--compare", "tp=x", "tp=2").error


def test_drawing_shows_the_exchanges_and_what_a_rank_holds(tmp_path: Path) -> None:
    file = tmp_path / "step.txt"
    outcome = circuit("draw", "glm-5.3-flash", "--program", "step", "--tp", 4, "--ep", 8, "-o", file, "--json")
    assert outcome.code == 0, outcome.err
    (title,) = outcome.record["views"]
    assert title == ("one draft, rank 0 of 8 (tp 4, ep 8), 3.61 GB of weights a rank, 3 exchanges, 26.7 KB sent")
    text = file.read_text()
    assert [text.count(f" {node}(") for node in ("AllReduce", "LocalExperts", "LocalArgmax", "ArgmaxExchange")] == [
        2,
        1,
        1,
        1,
    ]
    assert title in text
    context = circuit("draw", "demo", "--program", "context", "--tp", 2, "-o", file, "--json").record
    assert context["views"][0].endswith("no exchange")
