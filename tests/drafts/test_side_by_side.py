"""Pairs of executions side by side: faithful ones agree within their bounds, a fault is seen at its own edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from circuit import BindingError, CircuitError
from compiler import OpByOpRunner, run_op_by_op
from drafts.binding import DraftBinding, bind_head
from drafts.bisect_drafter import DrafterBisection
from drafts.cache import default_block_size
from drafts.config import read_config
from drafts.executions import CircuitExecution, EagerExecution, Edges, Execution, ProgramExecution
from drafts.golden_vectors import GoldenExecution, GoldenVectors, load_golden, read_golden
from drafts.launch_steps import LaunchSteps
from drafts.runner import DraftRunner
from drafts.script import Propose, Script, prompt_script
from drafts.side_by_side import Report, SideBySide, merge
from drafts.weights import head_weight_specs, load_weights
from tests.drafts.drafter_twin import make_proposer, make_text
from tests.support.planted_faults import FAULTS, plant

GOLDEN = Path(__file__).parents[1] / "golden" / "vectors"
CASES = {case.name: case for case in read_golden(GOLDEN)}

Maker = Callable[[DraftBinding], Execution]
LIVE: dict[str, Maker] = {
    "eager": EagerExecution,
    "reference": CircuitExecution,
    "lowered": lambda binding: CircuitExecution(binding, name="lowered", run=partial(run_op_by_op, backend="inductor")),
    "triton": lambda binding: CircuitExecution(binding, name="triton", run=LaunchSteps(binding)),
    # an opaque path, as compiled programs are, without compiling
    "programs": lambda binding: ProgramExecution(binding, DraftRunner(binding)),
}
PAIRS = [
    ("eager", "triton"),
    ("eager", "reference"),
    ("reference", "lowered"),
    ("eager", "lowered"),
    ("lowered", "reference"),
]


def scripts_of(binding: DraftBinding, *lengths: int, num_drafts: int = 3) -> list[Script]:
    proposer = make_proposer(dtype=binding.config.dtype)
    texts = [make_text(proposer, length, seed=length) for length in lengths or (2, 18)]
    return [
        prompt_script(f"prompt {len(text.tokens)}", text.tokens.tolist(), text.hiddens, num_drafts=num_drafts)
        for text in texts
    ]


def bind(decisions: dict[str, str] | None = None, dtype: torch.dtype = torch.float32) -> DraftBinding:
    binding = make_proposer(decisions=decisions, dtype=dtype).circuit_draft()
    assert binding is not None
    return binding


def play(
    a: str, b: str, binding: DraftBinding, scripts: Sequence[Script] | None = None, *, forced: bool = False
) -> Report:
    pair = SideBySide(binding, LIVE[a](binding), LIVE[b](binding), is_teacher_forced=forced)
    return pair.play(scripts or scripts_of(binding))


def golden_of(name: str) -> tuple[DraftBinding, GoldenVectors]:
    case = CASES[name]
    config = read_config(GOLDEN / case.checkpoint, dtype=case.torch_dtype)
    weights = load_weights(GOLDEN / case.checkpoint, head_weight_specs(config))
    block_size = default_block_size(config.index_kpool)
    binding = bind_head(config, weights, case.decisions, block_size=block_size, max_num_drafts=16)
    return binding, load_golden(GOLDEN, case)


DECISIONS: dict[str, dict[str, str]] = {
    "target norm": {"supplied_hidden": "pre_norm"},
    "block output": {"recycle": "block_output"},
    "new rows": {"index_share": "pools_and_new_rows"},
    "exact set": {"index_share": "exact_set"},
}


@pytest.mark.parametrize("forced", [False, True], ids=["free", "forced"])
@pytest.mark.parametrize("a, b", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_faithful_pairs_agree_on_every_edge_of_every_step(a: str, b: str, dtype: torch.dtype, forced: bool) -> None:
    report = play(a, b, bind(dtype=dtype), forced=forced)
    assert report.ok, report.first_missed
    assert report.num_steps == report.num_steps_compared == 6
    assert {edge.step for edge in report.edges} == {-1, 0, 1, 2}
    first = [edge.edge for edge in report.edges if edge.step == 0]
    # states are edges too, where the circuit has them
    assert first.index("next_latent_cache") < first.index("selected")
    # a launch keeps what only it reads
    assert ("index_scores" in first) == ("triton" not in (a, b))
    assert first[-1] == "draft" or "draft" in first
    assert all(edge.reason for edge in report.edges)


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_are_followed_by_every_side(name: str) -> None:
    for forced in (False, True):
        for a, b in (("eager", "reference"), ("reference", "lowered")):
            report = play(a, b, bind(DECISIONS[name]), forced=forced)
            assert report.ok, report.first_missed


def test_tagged_pair_is_held_to_tags_and_others_to_the_dtype() -> None:
    binding = bind()
    tagged = {edge.edge: edge for edge in play("reference", "lowered", binding).edges if edge.step == 0}
    assert tagged["e_normed"].bound == 0
    assert "runs its reference" in tagged["e_normed"].reason
    assert tagged["eh_out"].bound == 1e-5
    assert "another order" in tagged["eh_out"].reason
    assert {edge.bound for edge in play("eager", "reference", binding).edges} == {1e-5}


@pytest.mark.parametrize("name, forced", [*((name, True) for name in CASES), ("o02_rows3_k4", False)])
def test_every_live_execution_follows_the_golden_vectors(name: str, forced: bool) -> None:
    binding, vectors = golden_of(name)
    for b in ("eager", "reference", "lowered"):
        pair = SideBySide(binding, GoldenExecution([vectors]), LIVE[b](binding), is_teacher_forced=forced)
        report = pair.play(vectors.scripts())
        assert report.ok, report.first_missed
        assert report.num_steps == report.num_steps_compared > 0
        assert len(report.edges) >= 27


def test_opaque_side_shows_drafts_and_cache_only_and_takes_no_teacher() -> None:
    binding = bind()
    report = play("eager", "programs", binding)
    assert report.ok
    names = {edge.edge for edge in report.edges}
    assert names == {"draft", "next_latent_cache", "next_index_keys", "next_tail"}
    with pytest.raises(BindingError, match="shows no edges"):
        play("eager", "programs", binding, forced=True)
    with pytest.raises(BindingError, match="got eager twice"):
        play("eager", "eager", binding)
    with pytest.raises(ValueError, match="at least one"):
        SideBySide(binding, LIVE["eager"](binding), LIVE["lowered"](binding), is_teacher_forced=False).play([])


@pytest.mark.parametrize("name", [name for name in FAULTS if "raises" not in name and "written" not in name])
def test_planted_fault_is_the_first_edge_out_of_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, FAULTS[name])
    first = play("reference", "lowered", bind(), scripts_of(bind(), 18, 37, num_drafts=1), forced=True).first_missed
    assert first is not None
    # context rows come first, and write the cache too
    assert first.edge in FAULTS[name].at


@pytest.mark.parametrize("name", FAULTS)
def test_bisection_of_a_drafter_names_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = bind()
    scripts = scripts_of(binding, 37, num_drafts=2)
    plant(monkeypatch, FAULTS[name])
    found = DrafterBisection(binding, OpByOpRunner("inductor")).find(scripts)
    assert found is not None
    [index] = found.culprit.calls
    assert tuple(value.name for value in found.run.circuit.calls[index].results) == FAULTS[name].at
    assert found.seen_in.startswith("prompt 37")


def test_bisection_of_a_right_drafter_finds_nothing() -> None:
    binding = bind()
    scripts = scripts_of(binding, 2, 19, num_drafts=2)
    played: list[int] = []
    bisection = DrafterBisection(binding, OpByOpRunner("inductor"))
    assert bisection.find(scripts, on_script=lambda: played.append(1)) is None
    assert len(played) == 2


class _Shifted:
    """The reference with one edge changed as it is reported, and nothing else."""

    shows_edges = True
    name = "shifted"

    def __init__(self, binding: DraftBinding, change: Callable[[Edges], Edges]) -> None:
        self._held = CircuitExecution(binding)
        self._change = change
        self.start, self.feed, self.rewind, self.contents = (
            self._held.start,
            self._held.feed,
            self._held.rewind,
            self._held.contents,
        )

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        return [self._change(edges) for edges in self._held.propose(operation, teacher)]


def test_near_tie_is_accepted_and_counted_in_bf16_only() -> None:
    for dtype, is_accepted in ((torch.bfloat16, True), (torch.float32, False)):
        binding = bind(dtype=dtype)
        # both sides tie: theirs is the best of two that lie a step apart
        theirs = _Shifted(binding, lambda edges: _near(edges, swap=False))
        ours = _Shifted(binding, lambda edges: _near(edges, swap=True))
        ours.name = "other"
        report = SideBySide(binding, theirs, ours, is_teacher_forced=True).play(scripts_of(binding, 18, num_drafts=2))
        assert report.ok is is_accepted
        assert not report.ids_equal
        drafts = [edge for edge in report.edges if edge.edge == "draft"]
        assert all(edge.margin is not None and edge.only_ours and edge.only_theirs for edge in drafts)
        assert len(report.near_ties) == (2 if is_accepted else 0)


def _near(edges: Edges, *, swap: bool) -> Edges:
    logits = edges["logits"].clone()
    best, second = logits[0].topk(2).indices.tolist()
    high = logits[0, best].clone()
    low = torch.nextafter(high, torch.tensor(-torch.inf, dtype=logits.dtype))
    logits[0, best], logits[0, second] = (low, high) if swap else (high, low)
    return edges | {"logits": logits, "draft": torch.tensor([second if swap else best])}


def test_other_choice_among_the_same_scores_is_no_near_tie() -> None:
    binding = bind(dtype=torch.bfloat16)

    def other(edges: Edges) -> Edges:
        second = edges["logits"][0].topk(2).indices[1:]
        return edges | {"draft": second}

    theirs, ours = CircuitExecution(binding), _Shifted(binding, other)
    report = SideBySide(binding, theirs, ours, is_teacher_forced=True).play(scripts_of(binding, 18))
    assert report.first_missed is not None
    assert report.first_missed.edge == "draft"
    assert "same scores" in report.first_missed.reason
    assert not report.near_ties


def test_edges_behind_a_near_tie_are_counted_not_judged() -> None:
    binding = bind(dtype=torch.bfloat16)

    def nudged(edges: Edges, *, is_ours: bool) -> Edges:
        scores: Tensor = edges["router_logits"].clone()
        ids = edges["router_ids"].clone()
        outside = next(expert for expert in range(scores.shape[1]) if expert not in ids[0].tolist())
        if is_ours:
            ids[0, 0] = outside
            return edges | {"router_logits": scores + 1e-6, "router_ids": ids, "moe_out": edges["moe_out"] + 7}
        # the oracle ranks both alike: one of its own experts as high as the one it left out
        scores[0, ids[0, 0]] = scores[0, outside] = scores.max()
        return edges | {"router_logits": scores}

    theirs = _Shifted(binding, lambda edges: nudged(edges, is_ours=False))
    weights = dict(binding.weights)
    weights["mlp.gate.e_score_correction_bias"] = torch.zeros_like(weights["mlp.gate.e_score_correction_bias"])
    binding = replace(binding, weights=weights)
    ours = _Shifted(binding, lambda edges: nudged(edges, is_ours=True))
    ours.name = "other"
    report = SideBySide(binding, theirs, ours, is_teacher_forced=True).play(scripts_of(binding, 18, num_drafts=1))
    missed = {edge.edge for edge in report.edges if not edge.is_within_bound and edge.step == 0}
    assert missed <= {"router_logits"}
    assert [tie.edge for tie in report.near_ties] == ["router_ids"]
    assert report.num_edges_skipped > 5


def test_free_running_stops_where_drafts_differ_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = bind()
    scripts = scripts_of(binding, 18, num_drafts=4)
    ours = _Shifted(binding, lambda edges: edges | {"draft": (edges["draft"] + 1) % 5})
    report = SideBySide(binding, CircuitExecution(binding), ours, is_teacher_forced=False).play(scripts)
    assert not report.ok
    assert (report.num_steps, report.num_steps_compared) == (4, 1)


def test_merged_reports_keep_the_worst_and_add_the_counts() -> None:
    one = play("eager", "reference", bind())
    other = play("eager", "reference", bind({"recycle": "block_output"}))
    both = merge([one, other])
    assert both.num_steps == one.num_steps + other.num_steps
    assert both.ok
    assert [(edge.step, edge.edge) for edge in both.edges] == [(edge.step, edge.edge) for edge in one.edges]
    assert max(edge.relative_l2 for edge in both.edges) == max(edge.relative_l2 for edge in [*one.edges, *other.edges])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "cases.json: expected JSON"),
        ("[]", "cases.json"),
        ('{"cases": []}', "empty list"),
        ('{"cases": [{"name": "x"}]}', "cases.0.checkpoint"),
        (None, "No such file"),
    ],
)
def test_folder_without_golden_cases_is_refused(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "cases.json").write_text(text)
    with pytest.raises(CircuitError, match=expected):
        read_golden(tmp_path)


def test_golden_case_whose_tensors_lie_elsewhere_or_are_missing_is_refused(tmp_path: Path) -> None:
    case = CASES["o02_rows3_k4"]
    for place in ("/etc/passwd", "../vectors.safetensors"):
        with pytest.raises(CircuitError, match="inside the folder"):
            load_golden(tmp_path, case.model_copy(update={"vectors": place}))
    with pytest.raises(CircuitError, match="readable tensors"):
        load_golden(tmp_path, case)
    with pytest.raises(CircuitError, match="seq0/hiddens"):
        GoldenVectors(case, {}, "here").scripts()
