"""`circuit draw` and `circuit show --draw` as a user meets them."""

from pathlib import Path

import pytest

from circuit import save_document
from circuit.draw.cells import cell_width
from tests.drafts.command_line import circuit
from tests.drafts.drawn_pages import overlays, views, written
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint
from tests.support.drawings import diamond, hard_circuit
from tests.support.toy_nodes import toy_circuit


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "toy.yaml"
    save_document(toy_circuit(), path)
    return path


@pytest.mark.parametrize("suffix", ["svg", "png", "html", "dot", "mmd", "json", "txt"])
def test_a_document_becomes_a_file_of_every_ending(document: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"toy.{suffix}"
    record = circuit("draw", document, "-o", file, "--json").record
    assert (record["nodes"], record["edges"], record["groups"]) == (5, 11, 2)
    assert record["bytes"] == file.stat().st_size > 0


def test_hard_names_draw_from_a_document(tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    save_document(hard_circuit(), path)
    for suffix in ("html", "dot", "mmd", "json", "txt"):
        assert circuit("draw", path, "-o", tmp_path / f"hard.{suffix}").code == 0


@pytest.mark.parametrize("ending", ["pdf", ""])
def test_unknown_ending_is_refused_before_anything_is_read(tmp_path: Path, ending: str) -> None:
    outcome = circuit("draw", tmp_path / "missing", "-o", tmp_path / f"x.{ending}".rstrip("."))
    assert outcome.code == 2
    assert ".svg, .png, .dot" in outcome.error


def test_program_of_a_document_is_refused(document: Path, tmp_path: Path) -> None:
    outcome = circuit("draw", document, "-o", tmp_path / "x.txt", "--program", "chain")
    assert outcome.code == 2
    assert "--program" in outcome.error


def test_folder_that_cannot_be_written_is_one_line(document: Path, tmp_path: Path) -> None:
    outcome = circuit("draw", document, "-o", tmp_path / "none" / "x.txt")
    assert outcome.code == 2
    assert "none/x.txt" in outcome.error


def test_declared_head_shows_what_it_feeds_back(checkpoint: Path, tmp_path: Path) -> None:
    circuit("draw", checkpoint, "-o", tmp_path / "x.html")
    (view,) = views(tmp_path / "x.html")
    fed = [edge for edge in view["drawing"]["edges"] if edge["kind"] == "feedback"]
    assert {edge["value"] for edge in fed} >= {"draft", "next_position"}
    weights = [weight for node in view["drawing"]["nodes"] for weight in node["weights"]]
    assert weights
    assert all(weight["source"].split(".")[0] in ("model", "lm_head") for weight in weights)


def test_chain_page_holds_one_draft_and_all_of_them_folded(checkpoint: Path, tmp_path: Path) -> None:
    circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "chain", "--drafts", 5)
    rolled, unrolled = views(tmp_path / "x.html")
    assert (rolled["title"], unrolled["title"], unrolled["folded"]) == (
        "one draft, fed back",
        "5 drafts, unrolled",
        True,
    )
    drafts = [group["title"] for group in unrolled["drawing"]["groups"] if group["kind"] == "draft"]
    assert drafts == [f"draft {number}" for number in range(1, 6)]


@pytest.mark.parametrize("backend", ["reference", "inductor", "triton"])
def test_plan_puts_lowering_promise_and_cost_on_every_call(checkpoint: Path, tmp_path: Path, backend: str) -> None:
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--plan", backend)
    assert outcome.code == 0, outcome.err
    (view,) = views(tmp_path / "x.html")
    calls = [node for node in view["drawing"]["nodes"] if node["kind"] == "call"]
    assert calls
    assert all(node["note"]["lowering"] and node["note"]["bytes_read"] is not None for node in calls)
    launches = [group for group in view["drawing"]["groups"] if group["kind"] == "launch"]
    assert bool(launches) == (backend == "triton")
    assert all(launch["note"]["numerics"] for launch in launches)


def test_inductor_plan_shows_the_source_of_its_lowerings(checkpoint: Path, tmp_path: Path) -> None:
    circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--plan", "inductor")
    notes = {node["title"]: node["note"] for node in views(tmp_path / "x.html")[0]["drawing"]["nodes"]}
    assert "def lower_topk_router" in notes["TopkRouter"]["kernel"]
    assert notes["RmsNorm"]["kernel"] == ""


@pytest.mark.parametrize(
    "given, told",
    [
        (("--drafts", 2), "--program chain"),
        (("--program", "step", "--drafts", 2), "--program chain"),
        (("--dims", "n=1"), "--plan"),
        (("--source",), "--plan inductor"),
        (("--source", "--plan", "triton"), "--plan inductor"),
        (("--overlay", "none.json"), "none.json"),
    ],
)
def test_option_that_would_do_nothing_is_refused(tmp_path: Path, given: tuple[object, ...], told: str) -> None:
    outcome = circuit("draw", tmp_path / "missing", "-o", tmp_path / "x.txt", *given)
    assert outcome.code == 2
    assert told in outcome.error


def test_two_plans_are_compared_at_the_same_sizes(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--program", "step", "--plan", "inductor", "--diff-plan", "triton")
    circuit("draw", checkpoint, "-o", tmp_path / "x.html", *arguments)
    merged = views(tmp_path / "x.html")[0]["drawing"]
    sources = [node for node in merged["nodes"] if node["kind"] in ("input", "state")]
    assert sources
    assert {node["status"] for node in sources} == {"same"}
    # inside of launches too
    changed = {what for node in merged["nodes"] for what, _, _ in node["changes"]}
    assert not {what for what in changed if what.startswith("result ")}


def test_plan_of_a_document_asks_for_the_sizes_it_lacks(tmp_path: Path) -> None:
    save_document(diamond(), tmp_path / "d.yaml")
    outcome = circuit("draw", tmp_path / "d.yaml", "-o", tmp_path / "x.txt", "--plan", "reference")
    assert outcome.code == 2
    assert "--dims n=1" in outcome.error


@pytest.mark.parametrize("dims", ["n", "n=", "=3", "n=-1", "n=1,n=2", "n=1.5", "n=²"])
def test_malformed_dims_are_refused(document: Path, tmp_path: Path, dims: str) -> None:
    outcome = circuit("draw", document, "-o", tmp_path / "x.txt", "--plan", "reference", "--dims", dims)
    assert outcome.code == 2
    assert "--dims" in outcome.error


def test_unknown_dim_is_named(checkpoint: Path, tmp_path: Path) -> None:
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.txt", "--plan", "reference", "--dims", "rows=1")
    assert outcome.code == 2
    assert "'rows'" in outcome.error


def test_difference_counts_changes_and_shows_three_views(tmp_path: Path) -> None:
    save_document(diamond(2.0, "y"), tmp_path / "a.yaml")
    save_document(diamond(3.0, "z"), tmp_path / "b.yaml")
    record = circuit(
        "draw", tmp_path / "a.yaml", "--diff", tmp_path / "b.yaml", "-o", tmp_path / "x.html", "--json"
    ).record
    # y became z, scaled has another factor, and the output reads z
    assert record["changes"] == {"added": 1, "removed": 1, "changed": 2}
    assert [title.split(":")[0] for title in record["views"]] == ["both, with changes", "before", "after"]


def test_two_plans_of_one_circuit_differ_in_their_lowerings(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--program", "step", "--plan", "reference", "--diff-plan", "inductor")
    record = circuit("draw", checkpoint, "-o", tmp_path / "x.json", *arguments, "--json").record
    assert record["changes"]["changed"] > 0
    assert "changed lowering" in (tmp_path / "x.json").read_text()


PARITY = {
    "path": "circuit",
    "bound": {"relative_l2": 1e-5, "reason": "sums"},
    "edges": [
        {"name": "q_a", "step": 1, "relative_l2": 2e-7, "is_within_bound": True},
        {"name": "logits", "step": 0, "relative_l2": None, "is_within_bound": False},
    ],
}


def test_parity_lies_on_edges_by_name_and_draft(checkpoint: Path, tmp_path: Path) -> None:
    path = written(tmp_path, PARITY)
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "chain", "--overlay", path)
    assert outcome.code == 0, outcome.err
    # a missing number is infinite, and JSON has no word for that
    assert overlays(tmp_path / "x.html", 0)["parity error"]["edges"] == [["q_a", 2e-7], ["logits", None]]
    assert overlays(tmp_path / "x.html", 1)["parity error"]["edges"] == [["q_a.2", 2e-7], ["logits.1", None]]


def test_acceptance_lies_on_the_drafts_of_a_chain(checkpoint: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"accepted_per_position": [0.75, 0.5], "num_rounds": 8})
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "chain", "--overlay", path)
    assert outcome.code == 0, outcome.err
    page = tmp_path / "x.html"
    titles = {group["id"]: group["title"] for group in views(page)[1]["drawing"]["groups"]}
    held = {titles[id]: share for id, share in overlays(page)["acceptance"]["groups"]}
    assert held == {"draft 1": 0.75, "draft 2": 0.5}


def test_overlay_that_tells_of_nothing_drawn_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"accepted_per_position": [0.75], "num_rounds": 8})
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--overlay", path)
    assert outcome.code == 2
    assert "--program chain" in outcome.error


def test_bench_time_is_split_by_planned_bytes(checkpoint: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"circuit_us": 300.0, "floor_us": 100.0, "eager_us": 900.0, "drafts": 3})
    arguments = ("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--overlay", path)
    refused = circuit(*arguments)
    assert refused.code == 2
    assert "--plan inductor" in refused.error
    assert circuit(*arguments, "--plan", "inductor").code == 0
    held = overlays(tmp_path / "x.html")["time, split by bytes"]
    assert sum(time for _, time in held["nodes"]) == pytest.approx(100.0)
    assert "planned" in held["about"]


def test_plan_lays_bytes_and_shares_on_launches(checkpoint: Path, tmp_path: Path) -> None:
    plan = circuit("plan", checkpoint, "--context", 64, "--json")
    assert plan.code == 0, plan.err
    path = written(tmp_path, plan.out)
    arguments = ("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--overlay", path)
    assert "--plan triton" in circuit(*arguments).error
    assert circuit(*arguments, "--plan", "triton").code == 0
    held = overlays(tmp_path / "x.html")
    assert sum(share for _, share in held["share of the floor"]["groups"]) == pytest.approx(1.0)
    assert sum(size for _, size in held["planned bytes"]["groups"]) == plan.record["bytes_per_draft"]


@pytest.mark.parametrize(
    "held, told",
    [
        ("no json", "expected JSON"),
        ("[1]", "expected one JSON object, got list"),
        ('{"apples": 3}', "got an object with apples"),
        ("{}", "got an object with nothing"),
        ('{"edges": [{"name": "q_a"}], "bound": {}, "path": ""}', "a field is missing"),
        ('{"accepted_per_position": "high", "num_rounds": 1}', "another type"),
        ('{"traceEvents": 3}', "another type"),
    ],
)
def test_overlay_of_no_use_is_told_by_name(checkpoint: Path, tmp_path: Path, held: str, told: str) -> None:
    path = written(tmp_path, held)
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--overlay", path)
    assert outcome.code == 2
    assert str(path) in outcome.error
    assert told in outcome.error


def test_show_draws_within_the_terminal(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    outcome = circuit("show", document, "--draw")
    lines = outcome.out.splitlines()
    assert any("ToyMinMax(scaled, other)" in line for line in lines)
    assert max(cell_width(line) for line in lines) <= 40
    assert circuit("show", "--nodes", "--draw").code == 2
