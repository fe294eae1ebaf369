"""loop_step: run over and over it is the chain, bit for bit, whatever the later steps are fed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from circuit import BindingError, StateType, interpret, verify
from compiler import IS_FIRST, Feedback, chain, loop_step, remove_dead_code
from tests.compiler.passes.test_specialise import DECISIONS, Scene, assert_same

NUM_DRAFTS = 3


@pytest.mark.parametrize("decisions", DECISIONS)
def test_repeated_step_is_the_chain(decisions: str) -> None:
    scene = Scene(DECISIONS[decisions])
    binding = scene.binding
    first, following = binding.step(is_first=True), binding.step(is_first=False)
    unrolled = remove_dead_code(chain([first, following, following], feedback=binding.feedback, outputs=("token",)))
    expected = scene.run(unrolled)

    looped, edges = loop_step(first, feedback=binding.feedback)
    verify(looped)
    fed: dict[str, Tensor] = {name: tensor for name, tensor in scene.inputs.items() if name in looped.inputs}
    for name, value in looped.inputs.items():
        if name.endswith(".fed"):
            # what the first draft does not take may hold anything
            sizes = value.type.bind({"n": 1, **binding.dims}).sizes()  # type: ignore[union-attr]
            fed[name] = torch.full(sizes, 7, dtype=value.type.dtype)  # type: ignore[union-attr]
            if fed[name].is_floating_point():
                fed[name].fill_(float("nan"))
    states = scene.states
    for number in range(NUM_DRAFTS):
        if IS_FIRST in looped.inputs:
            fed[IS_FIRST] = torch.tensor([number == 0])
        result = interpret(looped, inputs=fed, weights=binding.weights, states=states)
        states = result.states
        assert torch.equal(result.outputs["token"], expected.outputs[f"token.{number + 1}"]), number
        fed |= {edge.target: result.outputs[edge.source] for edge in edges}
    assert_same(states, expected.states)


def test_edges_end_at_inputs_and_every_write_stays() -> None:
    binding = Scene(DECISIONS["target norm"]).binding
    looped, edges = loop_step(binding.step(is_first=True), feedback=binding.feedback)
    assert {edge.target for edge in edges} == {"token", "position", "drafter_hidden.fed"}
    assert {edge.source for edge in edges} == set(looped.outputs)
    assert all(edge.target in looped.inputs for edge in edges)
    assert set(looped.state_outputs) == set(binding.circuit.state_outputs)
    written = [value.name for call in looped.calls for value in call.results if isinstance(value.type, StateType)]
    assert written == ["next_latent_cache", "next_tail", "next_index_keys"]


def test_head_that_computes_nothing_for_the_first_draft_alone_makes_no_choice() -> None:
    binding = Scene(DECISIONS["plain"]).binding
    looped, edges = loop_step(binding.step(is_first=True), feedback=binding.feedback)
    chosen = [call for call in looped.calls if type(call.node).__name__ == "Choose"]
    assert bool(chosen) == binding.decisions.applies_target_norm
    assert (IS_FIRST in looped.inputs) == bool(chosen)
    assert len(edges) == 3


@pytest.mark.parametrize(
    ("edge", "reason"),
    [(Feedback("nothing", "token"), "no output 'nothing'"), (Feedback("token", "target_hidden"), "cannot feed")],
)
def test_edge_with_a_wrong_end_is_refused(edge: Feedback, reason: str) -> None:
    binding = Scene(DECISIONS["plain"]).binding
    with pytest.raises(BindingError, match=reason):
        loop_step(binding.step(is_first=True), feedback=[edge])
