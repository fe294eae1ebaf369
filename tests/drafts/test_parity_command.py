"""`circuit parity` and `circuit bisect` over a tiny checkpoint and the golden vectors: choices, exit codes, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drafts.command_line import circuit
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint
from tests.support.planted_faults import FAULTS, plant

GOLDEN = Path(__file__).parents[1] / "golden" / "vectors"
PROMPT = "def read(path):\n    return path"
QUICK = ("--prompt", PROMPT, "--drafts", 2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("a, b", [("reference", "lowered"), ("eager", "lowered"), ("lowered", "eager")])
@pytest.mark.parametrize("mode", ["--teacher-forced", "--free-running"])
def test_pairs_are_within_bound_and_say_what_was_compared(a: str, b: str, mode: str, checkpoint: Path) -> None:
    outcome = circuit("parity", checkpoint, "--a", a, "--b", b, mode, *QUICK, "--json")
    record = outcome.record
    assert outcome.code == 0
    assert (record["ok"], record["a"], record["b"], record["path"]) == (True, a, b, b)
    assert record["teacher_forced"] is (mode == "--teacher-forced")
    assert record["drafts"] == record["drafts_compared"] == 8
    assert {edge["step"] for edge in record["steps"]} == {-1, 0, 1}
    assert all(edge["reason"] for edge in record["steps"])
    assert len({edge["name"] for edge in record["edges"]}) == len(record["edges"])
    if {a, b} == {"reference", "lowered"}:
        assert {edge["bound"] for edge in record["steps"]} == {0.0, 1e-5}


def test_table_lists_edges_in_order_and_marks_the_first_one_missed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, FAULTS["value of another head"])
    page = tmp_path / "report.html"
    arguments = ("parity", checkpoint, "--a", "reference", "--b", "lowered", "--teacher-forced", "--html", page, *QUICK)
    outcome = circuit(*arguments)
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    marked = [line for line in lines if "<- first out of bound" in line]
    assert len(marked) == 1
    assert marked[0].split()[:2] == ["1", "attn_heads"]
    places = [next(n for n, line in enumerate(lines) if line.split()[:2] == ["1", name]) for name in ("eh_out", "q")]
    assert places == sorted(places) < [lines.index(marked[0])]
    assert lines[-1] == "missed"
    text = page.read_text()
    assert text.count('class="first"') == 1
    assert "attn_heads" in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    record = circuit(*arguments, "--json").record
    assert record["first_missed"]["name"] == "attn_heads"
    # its own input has rounded otherwise already, so it is held to a whole forward
    assert "attended differs already" in record["first_missed"]["reason"]


def test_page_shows_what_it_is_given_as_text(checkpoint: Path, tmp_path: Path) -> None:
    linked = tmp_path / "<b>model"
    linked.symlink_to(checkpoint)
    page = tmp_path / "report.html"
    assert circuit("parity", linked, "--html", page, *QUICK).code == 0
    assert "<b>model" not in page.read_text()
    assert "&lt;b&gt;model" in page.read_text()
    outcome = circuit("parity", checkpoint, "--html", tmp_path / "no" / "report.html", *QUICK, "--json")
    assert outcome.code == 2


def test_golden_cases_are_played_from_their_checkpoint_and_from_their_folder() -> None:
    outcome = circuit("parity", GOLDEN / "ckpt_c", "--vectors", GOLDEN, "--json")
    record = outcome.record
    assert outcome.code == 0
    assert (record["a"], record["b"], record["teacher_forced"]) == ("golden", "reference", True)
    assert {edge["where"].split()[0] for edge in record["steps"]} == {"o06_kpool1_no_tail"}
    live = circuit("parity", GOLDEN / "ckpt_c", "--vectors", GOLDEN, "--a", "reference", "--b", "golden", "--json")
    assert live.record["a"] == "golden"
    assert live.record["ok"] is True


def test_golden_case_that_a_fault_breaks_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, FAULTS["limit of the experts"])
    outcome = circuit("parity", GOLDEN / "ckpt_c", "--vectors", GOLDEN, "--b", "lowered", "--json")
    assert outcome.code == 1
    assert outcome.record["first_missed"]["name"] == "experts_out"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--b", "eager"), "got eager twice"),
        (("--a", "golden"), "expected --vectors DIR"),
        (("--b", "inductor", "--teacher-forced"), "a compiled chain feeds itself"),
        (("--b", "lowered", "--backend", "inductor"), "--backend"),
        (("--vectors", GOLDEN), "expected a checkpoint that"),
        (("--vectors", "nowhere"), "expected golden cases"),
        (("--prompt", ""), "expected some text"),
    ],
)
def test_choice_that_does_not_fit_is_one_line_and_exit_2(
    arguments: tuple[object, ...], expected: str, checkpoint: Path
) -> None:
    outcome = circuit("parity", checkpoint, *arguments)
    assert outcome.code == 2
    assert expected in outcome.error


def test_golden_vectors_need_an_artifact_for_programs_and_keep_their_dtype() -> None:
    for options, expected in (
        (("--b", "inductor"), "expected an artifact"),
        (("--dtype", "bf16"), "was recorded in f32"),
        (("--prompt", "a"), "their own tokens"),
    ):
        outcome = circuit("parity", GOLDEN / "ckpt_c", "--vectors", GOLDEN, *options)
        assert outcome.code == 2
        assert expected in outcome.err


def test_bisect_finds_writes_replays_and_is_content_once_mended(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "repro"
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, FAULTS["eps of the key norm"])
        outcome = circuit("bisect", checkpoint, "-o", folder, *QUICK, "--json")
        assert outcome.code == 1
        assert outcome.record["edge"] == "idx_k"
        assert len(outcome.record["calls"]) == 1
        assert "LayerNorm" in outcome.record["calls"][0]
        again = circuit("bisect", "--replay", folder)
        assert again.code == 1
        assert again.out.endswith("reproduced\n")
        assert "OUT OF bound" in again.out
    mended = circuit("bisect", "--replay", folder, "--json")
    assert mended.code == 0
    assert mended.record["ok"] is True
    assert mended.record["actual_as_recorded"] is False
    right = circuit("bisect", checkpoint, "-o", tmp_path / "other", *QUICK)
    assert right.code == 0
    assert "within its bound" in right.out
    assert not (tmp_path / "other").exists()


def test_bisect_plays_golden_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, FAULTS["ring off by one"])
    outcome = circuit("bisect", GOLDEN / "ckpt_c", "--vectors", GOLDEN, "-o", tmp_path / "repro", "--json")
    assert outcome.code == 1
    assert outcome.record["edge"] == "next_tail"
    assert outcome.record["seen_in"].startswith("o06_kpool1_no_tail")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((), "expected a drafter to search or --replay"),
        (("nowhere", "--replay", "nowhere"), "one of them"),
        (("--replay", "nowhere"), "expected a repro folder"),
        (("nowhere",), "expected a circuit document, a checkpoint folder or an artifact"),
        (("nowhere", "--backend", "triton", "--compiled"), "--compiled: triton's launches are what runs"),
        (("nowhere", "-o", str(GOLDEN)), "a folder with other files"),
    ],
)
def test_bisect_refuses_in_one_line(arguments: tuple[object, ...], expected: str) -> None:
    outcome = circuit("bisect", *arguments)
    assert outcome.code == 2
    assert expected in outcome.error
