"""Eager head against circuit: a faithful circuit passes, and every mutation is caught at the edge where it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch

from circuit import BindingError, Call, Circuit, Node, Value
from compiler import remove_dead_code, worst_edge
from drafts.decisions import Decisions
from drafts.glm5_next import mtp_head
from drafts.parity import ParityReport, Prompt, compare_eager_with_circuit
from drafts.proposer import DraftProposer
from tests.drafts.drafter_twin import make_proposer, make_text

# edges of the eager head that the circuit has under the same name, in the order of its calls
COMMON = """
    e_normed h_normed eh_out attn_in q_a_normed q latent idx_q idx_k idx_gate idx_w index_scores selected attn_heads
    attn_out x1 moe_in router_logits router_ids router_weights experts_out shared_out moe_out block_out head_normed
    logits
"""


def prompts(proposer: DraftProposer, *lengths: int) -> list[Prompt]:
    texts = [make_text(proposer, length, seed=length) for length in lengths]
    return [Prompt(text.tokens.tolist(), text.hiddens) for text in texts]


def compare(proposer: DraftProposer, *lengths: int, num_drafts: int = 4) -> ParityReport:
    return compare_eager_with_circuit(proposer, prompts(proposer, *(lengths or (3, 18, 37))), num_drafts=num_drafts)


DECISIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "target norm": {"supplied_hidden": "pre_norm"},
    "block output": {"recycle": "block_output"},
    "new rows": {"index_share": "pools_and_new_rows"},
    "exact set": {"index_share": "exact_set"},
}


@pytest.mark.parametrize("kpool", [1, 3, 4, 16])
@pytest.mark.parametrize("name", DECISIONS)
def test_faithful_circuit_passes_on_every_edge_of_every_draft(name: str, kpool: int) -> None:
    proposer = make_proposer(decisions=DECISIONS[name], index_kpool=kpool, index_topk=2 * kpool)
    report = compare(proposer)
    # the one score of a pool of sixteen is a sum that may nearly cancel: 1.3e-5 on an AMD EPYC, below 1e-5 elsewhere
    missed = [edge for edge in report.edges if not edge.is_within_bound]
    assert all(edge.edge == "index_scores" and edge.relative_l2 < 1e-4 for edge in missed), missed
    assert report.ids_equal
    assert report.num_steps == report.num_steps_compared == 12
    assert {edge.step for edge in report.edges} == {0, 1, 2, 3}
    first = [edge.edge for edge in report.edges if edge.step == 0]
    assert set(COMMON.split()) <= set(first)
    # where both sides do the same arithmetic in the same order they agree to the last bit
    by_name = {edge.edge: edge for edge in report.edges if edge.step == 0}
    for edge in ("e_normed", "h_normed", "eh_out", "q_a_normed", "latent", "idx_k", "selected", "router_ids"):
        assert by_name[edge].is_bitwise_equal, edge


def test_bf16_circuit_passes_within_its_own_bound() -> None:
    report = compare(make_proposer(dtype=torch.bfloat16), 18)
    assert report.bound.relative_l2 > 1e-3
    assert report.ok


@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize("length", [2, 3])
def test_shortest_prompts_are_compared(length: int, num_drafts: int) -> None:
    report = compare(make_proposer(), length, num_drafts=num_drafts)
    assert report.ok
    assert report.num_steps_compared == num_drafts


@pytest.mark.parametrize("length", [0, 1])
def test_prompt_without_a_row_is_refused_by_name(length: int) -> None:
    proposer = make_proposer()
    short = [*prompts(proposer, 5), Prompt([1] * length, torch.zeros(length, 20))]
    with pytest.raises(ValueError, match=f"expected prompts of 2 tokens or more, got {length}"):
        compare_eager_with_circuit(proposer, short, num_drafts=2)


def test_no_prompts_and_an_unmodelled_drafter_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        compare_eager_with_circuit(make_proposer(), [], num_drafts=2)
    with pytest.raises(BindingError, match="does not model this drafter"):
        compare(make_proposer(dtype=torch.float64))


@dataclass(frozen=True)
class Mutation:
    """Another node, or other arguments (by name), for the call that makes the value `at`; the first wrong edge."""

    at: str
    first_edge: str
    node: Callable[[Node], Node] | None = None
    args: Mapping[int, str] | None = None
    step: int = 0


def attributes(**changes: object) -> Callable[[Node], Node]:
    return lambda node: type(node)(**(node.model_dump() | changes))


MUTATIONS = {
    "eps of enorm": Mutation("e_normed", "e_normed", attributes(eps=1e-2)),
    "eps of the head's norm": Mutation("head_normed", "head_normed", attributes(eps=1e-1)),
    "eps of the indexer's norm": Mutation("idx_k", "idx_k", attributes(eps=1e-1)),
    "embedding behind the hidden": Mutation("eh_in", "eh_out", args={0: "h_normed", 1: "e_normed"}),
    "hnorm on the wrong side": Mutation("eh_in", "eh_out", args={1: "target_hidden"}),
    "query before its norm": Mutation("q", "q", args={0: "q_a"}),
    "indexer query before its norm": Mutation("idx_q", "idx_q", args={0: "q_a"}),
    "latent before its norm": Mutation("next_latent_cache", "attn_heads", args={1: "kv_a"}),
    "indexer key before its norm": Mutation("pool_key", "index_scores", args={1: "idx_k_raw"}),
    "scale by the latent's width": Mutation("attended", "attn_heads", attributes(scale=10**-0.5)),
    "attention without its residual": Mutation("x1", "x1", args={0: "attn_out"}),
    "experts without their residual": Mutation("block_out", "block_out", args={0: "moe_out"}),
    "experts before their norm": Mutation("experts_out", "experts_out", args={0: "x1"}),
    "shared expert dropped": Mutation("moe_out", "moe_out", args={1: "experts_out"}),
    "no limit of the gate": Mutation("experts_out", "experts_out", attributes(limit=1e6)),
    "scale of the router": Mutation("router_weights", "router_weights", attributes(scale=1.0)),
    "weights not normed": Mutation("router_weights", "router_weights", attributes(norm_topk_prob=False)),
    "logits of the block output": Mutation("logits", "logits", args={0: "block_out"}),
    "one pool fewer": Mutation("selected", "selected", attributes(topk=4)),
    "tail not written": Mutation("next_tail", "index_scores", args={1: "idx_gate"}),
}


def mutated(circuit: Circuit, mutation: Mutation) -> Circuit:
    """Copy a circuit with one call changed."""
    copy = Circuit(circuit.name)
    copied: dict[Value, Value] = {value: copy.input(name, value.type) for name, value in circuit.inputs.items()}  # type: ignore[arg-type]
    copied |= {value: copy.weight(name, value.type) for name, value in circuit.weights.items()}  # type: ignore[arg-type]
    copied |= {value: copy.state(name, value.type) for name, value in circuit.states.items()}  # type: ignore[arg-type]

    def changed(call: Call) -> tuple[Node, list[Value]]:
        if mutation.at not in [value.name for value in call.results]:
            return call.node, list(call.args)
        args = list(call.args)
        for port, name in (mutation.args or {}).items():
            args[port] = circuit.value(name)
        return (mutation.node or (lambda node: node))(call.node), args

    for call in circuit.calls:
        node, args = changed(call)
        names = [value.name for value in call.results]
        results = copy.add_call(node, [copied[arg] for arg in args], names=names, block=call.block)
        copied.update(zip(call.results, results, strict=True))
    for name, value in circuit.outputs.items():
        copy.output(name, copied[value])
    for name, value in circuit.state_outputs.items():
        copy.state_output(name, copied[value])
    # a part that nothing reads any more would be refused as a wiring mistake, before any parity
    return remove_dead_code(copy)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutated_circuit_is_caught_at_the_edge_where_it_was_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, proposer = MUTATIONS[name], make_proposer()
    binding = proposer.circuit_draft()
    assert binding is not None
    broken = replace(binding, circuit=mutated(binding.circuit, mutation))
    monkeypatch.setattr(proposer, "circuit_draft", lambda: broken)
    report = compare(proposer, 37)
    assert not report.ok
    first = worst_edge(list(report.edges))
    assert first is not None
    assert (first.step, first.edge) == (mutation.step, mutation.first_edge)
    assert not first.is_within_bound


def test_copy_without_a_mutation_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer()
    binding = proposer.circuit_draft()
    assert binding is not None
    copy = replace(binding, circuit=mutated(binding.circuit, Mutation("no such edge", "")))
    monkeypatch.setattr(proposer, "circuit_draft", lambda: copy)
    assert compare(proposer, 37).ok


def test_recycling_the_wrong_hidden_is_caught_at_the_second_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(decisions={"recycle": "post_norm"})
    binding = proposer.circuit_draft()
    assert binding is not None
    other = Decisions(supplied_hidden="post_norm", recycle="block_output")
    wrong = replace(binding, circuit=mtp_head(proposer.config, other, block_size=16, max_num_drafts=4))
    monkeypatch.setattr(proposer, "circuit_draft", lambda: wrong)
    report = compare(proposer, 37)
    first = worst_edge(list(report.edges))
    assert first is not None
    # an RmsNorm hides a scale, but the head's norm has a gain
    assert (first.step, first.edge) == (1, "h_normed")
    assert not report.ok


def test_steps_after_ids_that_differ_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer()
    binding = proposer.circuit_draft()
    assert binding is not None
    wrong = replace(binding, circuit=mutated(binding.circuit, MUTATIONS["logits of the block output"]))
    monkeypatch.setattr(proposer, "circuit_draft", lambda: wrong)
    report = compare(proposer, 37)
    assert not report.ids_equal
    differing = [one != two for one, two in zip(report.eager_ids[0], report.circuit_ids[0], strict=True)]
    assert report.num_steps_compared == differing.index(True) + 1 < report.num_steps
