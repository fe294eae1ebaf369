"""An exception anywhere in a run leaves row counts, live rows and next drafts of every sequence as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from circuit import Value, interpret
from drafts import row_writer, runner
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.runner import DraftRunner
from tests.drafts.drafter_twin import (
    FailingOps,
    InjectedFault,
    Text,
    both_paths,
    make_proposer,
    make_text,
    poison_dead,
    snapshot,
)


@dataclass(frozen=True)
class Scene:
    """Two sequences that both hold more rows than the next call's first: that call rewinds live rows."""

    proposer: DraftProposer
    texts: tuple[Text, Text]
    states: tuple[ProposerState, ProposerState]

    def next_drafts(self) -> list[list[int]]:
        """What each sequence drafts at its end; its rows are as before afterwards."""
        drafts = []
        for text, state in zip(self.texts, self.states, strict=True):
            rows, judged = self.proposer.drafter_rows(state), (state.drafted_from, state.num_drafted)
            drafts.append(text.propose(self.proposer, state, rows, 2))
            self.proposer.rewind(rows, state)
            state.drafted_from, state.num_drafted = judged
        return drafts


def make_scene(path: str) -> Scene:
    proposer = make_proposer(path, max_seq_len=40)
    texts = (make_text(proposer, 40, seed=1), make_text(proposer, 40, seed=2))
    states = (proposer.alloc_state(), proposer.alloc_state())
    for text, state, rows in zip(texts, states, (21, 18), strict=True):
        text.prefill(proposer, state, rows)
    return Scene(proposer, texts, states)


def propose(scene: Scene) -> object:
    return scene.texts[0].propose(scene.proposer, scene.states[0], 18, 2)


def propose_deferred(scene: Scene) -> object:
    text, buffer = scene.texts[0], torch.zeros(1, scene.proposer.config.hidden_size)
    hidden = text.hiddens[18]
    return scene.proposer.propose(int(text.tokens[19]), hidden, 18, 1, scene.states[0], draft_embed_target=buffer)


def propose_batch(scene: Scene) -> object:
    (one, two), confidences = scene.texts, []
    tokens = [int(one.tokens[19]), int(two.tokens[16])]
    made = scene.proposer.propose_batch(
        tokens, [one.hiddens[18], two.hiddens[15]], [18, 15], 1, scene.states, confidences=confidences
    )
    return made, confidences


def prefill(scene: Scene) -> object:
    rows = scene.proposer.drafter_rows(scene.states[0])
    text = scene.texts[0]
    return scene.proposer.prefill_drafter(
        text.tokens[rows : rows + 12], text.hiddens[rows : rows + 12], scene.states[0]
    )


def catchup_batch(scene: Scene) -> object:
    tokens = [scene.texts[0].tokens[20:25], scene.texts[1].tokens[17:19]]
    hiddens = [scene.texts[0].hiddens[19:24], scene.texts[1].hiddens[16:18]]
    return scene.proposer.catchup_batch(tokens, hiddens, [19, 16], scene.states)


CALLS = [propose, propose_deferred, propose_batch, prefill, catchup_batch]


@both_paths
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_fault_in_place_of_any_tensor_operation_leaves_everything_as_it_was(
    path: str, call: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "MAX_CONTEXT_ROWS", 4)
    # every operation of the eager head; of the circuit every third, its nodes have a test of their own below
    stride = 1 if path == "eager" and call is not propose_batch else 3
    scene = make_scene(path)
    poison_dead(scene.proposer, *scene.states)
    before = snapshot(scene.proposer, *scene.states)
    num_ops, fail_at = 0, 0
    while True:
        with FailingOps(fail_at) as ops:
            try:
                call(scene)
            except InjectedFault:
                assert snapshot(scene.proposer, *scene.states) == before, f"operation {fail_at}"
            else:
                break
        num_ops, fail_at = ops.num_ops, fail_at + stride
    assert num_ops > 50
    # the call that came through after all those is the call on a scene of its own
    untouched = make_scene(path)
    call(untouched)
    assert snapshot(scene.proposer, *scene.states) == snapshot(untouched.proposer, *untouched.states)
    assert scene.next_drafts() == untouched.next_drafts()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_fault_after_any_node_of_the_circuit_leaves_everything_as_it_was(
    call: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "MAX_CONTEXT_ROWS", 5)
    scene = make_scene("circuit")
    before = snapshot(scene.proposer, *scene.states)
    failed: list[str] = []
    seen = 0

    def interpret_and_fail(circuit: Any, **arguments: Any) -> Any:
        def observe(value: Value, tensor: torch.Tensor) -> None:
            nonlocal seen
            seen += value.kind == "result"
            if seen > len(failed):
                failed.append(value.name)
                raise InjectedFault(value.name)

        return interpret(circuit, **(arguments | {"observe": observe}))

    monkeypatch.setattr(runner, "interpret", interpret_and_fail)
    while True:
        seen = 0
        try:
            call(scene)
        except InjectedFault:
            assert snapshot(scene.proposer, *scene.states) == before, failed[-1]
        else:
            break
    binding = scene.proposer.circuit_draft()
    assert binding is not None
    program = binding.step(is_first=True) if "propose" in call.__name__ else binding.context()
    assert {value.name for node in program.calls for value in node.results} <= set(failed)


def test_fault_of_an_observer_names_the_edge_and_leaves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene("circuit")
    binding = scene.proposer.circuit_draft()
    assert binding is not None

    def stop(step: int, value: Value, tensor: torch.Tensor) -> None:
        if step == 1 and value.name == "router_logits":
            raise InjectedFault(value.name)

    scene.proposer.set_circuit_draft(DraftRunner(binding, observe=stop))
    before = snapshot(scene.proposer, *scene.states)
    with pytest.raises(InjectedFault) as caught:
        propose(scene)
    assert "glm5_next_mtp.next" in "".join(caught.value.__notes__)
    assert snapshot(scene.proposer, *scene.states) == before


class _FailsOnSecond:
    """A path that breaks its word: the second call of `draft` writes, and then raises."""

    name = "broken"
    is_batch_invariant = False
    binding = None

    def __init__(self, inner: Any) -> None:
        self.inner, self.num_calls = inner, 0

    def write_rows(self, *args: Any) -> None:
        self.inner.write_rows(*args)

    def draft(self, *args: Any, **options: Any) -> Any:
        drafts = self.inner.draft(*args, **options)
        self.num_calls += 1
        if self.num_calls == 2:
            raise KeyboardInterrupt
        return drafts


@both_paths
def test_fault_of_the_second_sequence_restores_the_first_ones_live_rows(path: str) -> None:
    scene = make_scene(path)
    before = snapshot(scene.proposer, *scene.states)
    scene.proposer.set_circuit_draft(_FailsOnSecond(scene.proposer.path))
    with pytest.raises(KeyboardInterrupt):
        propose_batch(scene)
    assert snapshot(scene.proposer, *scene.states) == before


@both_paths
def test_failed_propose_leaves_no_deferred_token(path: str) -> None:
    scene = make_scene(path)
    propose_deferred(scene)
    scene.proposer.read_deferred_draft_token()
    with FailingOps(60), pytest.raises(InjectedFault):
        propose_deferred(scene)
    with pytest.raises(Exception, match="deferred none"):
        scene.proposer.read_deferred_draft_token()
