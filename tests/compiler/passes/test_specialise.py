"""step and context: one declared head becomes its programs, and none of them changes a bit or loses a write."""

from __future__ import annotations

import pytest
from torch import Tensor

from circuit import BindingError, CircuitError, interpret, verify
from compiler import Feedback, context, remove_dead_code, step
from tests.support.head_scene import DECISIONS, Scene, assert_same, writes


@pytest.fixture(params=DECISIONS, ids=list(DECISIONS))
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(DECISIONS[request.param])


def test_every_program_keeps_every_cache_write_and_its_bits(scene: Scene) -> None:
    binding = scene.binding
    whole = scene.run(binding.circuit)
    feedback = {edge.target for edge in binding.feedback}
    programs = {
        "first": binding.step(is_first=True, has_grammar=True, has_confidence=True),
        "without grammar": binding.step(is_first=True, has_confidence=True),
        "bare": binding.step(is_first=True),
        "context": binding.context(),
        "clean": remove_dead_code(binding.circuit),
    }
    for name, program in programs.items():
        verify(program)
        assert writes(program) == writes(binding.circuit), name
        assert list(program.state_outputs) == list(binding.circuit.state_outputs)
        result = scene.run(program)
        assert_same(result.outputs, whole.outputs)
        assert_same(result.states, whole.states)
    following = binding.step(is_first=False, has_grammar=True, has_confidence=True)
    verify(following)
    assert writes(following) == writes(binding.circuit)
    assert feedback - set(following.inputs) <= {"selected_at", "chosen"}


def test_next_step_fed_with_what_the_cuts_held_is_the_first_step(scene: Scene) -> None:
    binding = scene.binding
    held: dict[str, Tensor] = {}
    fed = {name: scene.inputs[name] for name in binding.circuit.inputs}
    whole = interpret(
        binding.circuit,
        inputs=fed,
        weights=binding.weights,
        states=scene.states,
        observe=lambda value, tensor: held.update({value.name: tensor}),
    )
    following = binding.step(is_first=False, has_grammar=True, has_confidence=True)
    cut = {edge.target: held[edge.target] for edge in binding.feedback if edge.target in following.inputs}
    result = scene.run(following, **cut)
    assert_same(result.outputs, whole.outputs)
    assert_same(result.states, whole.states)


def test_next_step_leaves_out_what_only_the_first_needs() -> None:
    normed = Scene(DECISIONS["target norm"]).binding
    assert "target_norm" in normed.step(is_first=True).weights
    assert "target_norm" not in normed.step(is_first=False).weights
    assert "target_hidden" not in normed.step(is_first=False).inputs
    for decision in ("new rows", "exact set"):
        shared = Scene(DECISIONS[decision]).binding
        made = {value.name for call in shared.step(is_first=False).calls for value in call.results}
        assert "index_scores" not in made
        assert "idx_q" not in made
        assert "self_attn.indexer.wq_b" not in shared.step(is_first=False).weights
        # the cache rows of the indexer are written all the same
        assert {"pool_key", "next_index_keys", "next_tail"} <= made


def test_context_leaves_out_attention_experts_and_head(scene: Scene) -> None:
    program = scene.binding.context()
    assert program.outputs == {}
    absent = ("lm_head", "o_proj", "mlp.", "q_a_proj", "wq_b", "kv_b_proj", "weights_proj")
    assert not [name for name in program.weights if any(part in name for part in absent)]
    assert {call.block for call in program.calls} <= {"embed", "attention", "attention/indexer"}
    assert "grammar_bitmask" not in program.inputs


def test_bypass_and_dropped_output_take_their_nodes_along(scene: Scene) -> None:
    bare = scene.binding.step(is_first=True)
    names = {type(call.node).__name__ for call in bare.calls}
    assert "GrammarMask" not in names
    assert "TokenProbability" not in names
    assert "grammar_bitmask" not in bare.inputs
    assert "confidence" not in bare.outputs
    full = scene.binding.step(is_first=True, has_grammar=True, has_confidence=True)
    assert {"GrammarMask", "TokenProbability"} <= {type(call.node).__name__ for call in full.calls}


def test_programs_have_names_of_their_own() -> None:
    circuit = Scene({}).binding.circuit
    edges = [Feedback("token", "token")]
    assert step(circuit).name == circuit.name
    assert step(circuit, feedback=edges).name == f"{circuit.name}.next"
    assert context(circuit).name == f"{circuit.name}.context"


def test_feedback_without_its_ends_or_of_two_types_is_refused() -> None:
    circuit = Scene({}).binding.circuit
    with pytest.raises(BindingError, match=r"feedback tokens -> token: .* has no output 'tokens'; it has token"):
        step(circuit, feedback=[Feedback("tokens", "token")])
    with pytest.raises(CircuitError, match="no value 'hidden'"):
        step(circuit, feedback=[Feedback("hidden", "hidden")])
    with pytest.raises(BindingError, match=r"feedback hidden -> token: .* cannot feed"):
        step(circuit, feedback=[Feedback("hidden", "token")])


def test_bypass_of_or_by_a_value_that_is_not_there_is_refused() -> None:
    circuit = Scene({}).binding.circuit
    for bypassed in ({"allowed_logit": "logits"}, {"allowed_logits": "logit"}):
        with pytest.raises(CircuitError, match="no value"):
            step(circuit, bypassed=bypassed)
    with pytest.raises(CircuitError, match="of another type"):
        step(circuit, bypassed={"allowed_logits": "block_out"})
    with pytest.raises(CircuitError, match="made later"):
        step(circuit, bypassed={"logits": "allowed_logits"})


def test_dropping_an_output_that_is_not_there_is_refused() -> None:
    with pytest.raises(CircuitError, match="no output 'confidences' to drop; it has"):
        step(Scene({}).binding.circuit, dropped_outputs=["confidences"])
