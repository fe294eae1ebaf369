"""What each pass of a compile does to numbers: nothing, to the bit, but for the one that says otherwise.

Every value that a circuit has before and after a pass is compared, on the head's uses, with ordinary numbers and with
those that show a changed order, eps or clamp, or a look at what nobody owns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import compiler.passes
import compiler.triton.rules  # importing it registers the chains that fuse
from circuit import Circuit, StateType, interpret
from compiler import DerivedWeights
from compiler.compile import PASSES, Compiled, Pass, Request, compile_circuit
from compiler.parity import Bound, compare_edge
from compiler.passes import FED, IS_FIRST, Use
from compiler.passes.rebuild import rebuild
from compiler.target import target_of
from nodes import Concat, Swiglu
from tests.support.head_scene import DECISIONS, Scene

Tensors = dict[str, Tensor]

BITWISE = Bound(0, "it changes no arithmetic")
FOLDED = {
    torch.float32: Bound(1e-5, "a library orders a row's sum by the weight's shape"),
    torch.bfloat16: Bound(3e-2, "the same, and then rounded, some ten times from embedding to logits"),
}
# the one pass that changes arithmetic; to whole numbers, whose sums are exact in any order, it does nothing either
CHANGES_SUMS = {"_fold_weights"}
# a file of passes/ is a pass of the compile by this name, or holds no pass
PASS_OF_FILE = {
    "bind_dims": "_bind_dims",
    "certify_products": "_certify_products",
    "chain": "_specialise",
    "place_collectives": "_place_collectives",
    "dead_code": "_dead_code",
    "fold_weights": "_fold_weights",
    "fuse": "_fuse",
    "loop": "_specialise",
    "plan_memory": "_plan_memory",
    "specialise": "_specialise",
}
HOLDS_NO_PASS = {"feedback": "an edge, as data", "rebuild": "how several passes copy", "record": "what a pass reports"}


def _ordinary(scene: Scene) -> None:
    pass


def _large(scene: Scene) -> None:
    """Beyond every clamp, and a softmax of one winner."""
    scene.inputs["target_hidden"] = scene.inputs["target_hidden"] * 1e4
    _change(scene, "mlp.experts.gate_up_proj", lambda weight: weight * 100)


def _zeros(scene: Scene) -> None:
    """An eps is all that a norm of zeros divides by."""
    scene.inputs["target_hidden"] = torch.zeros_like(scene.inputs["target_hidden"])
    _change(scene, "embed_tokens", torch.zeros_like)


def _ties(scene: Scene) -> None:
    """Every pool, expert and token scores as every other."""
    scene.states["index_keys"][1:] = 0.5
    for name in ("mlp.gate.weight", "e_score_correction_bias", "lm_head"):
        _change(scene, name, torch.zeros_like)


def _unowned(scene: Scene) -> None:
    """NaN in experts that the row does not choose, and in cache rows after its own."""
    chosen = _values(scene, scene.binding.circuit, scene.weights)["router_ids"].flatten().tolist()
    for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        _change(scene, name, lambda weight: _poisoned(weight, keeps=chosen))
    last = int(scene.inputs["position"])
    table, block_size = scene.inputs["block_table"][0], scene.states["latent_cache"].shape[1]
    owned = {int(table[row // block_size]) * block_size + row % block_size for row in range(last)}
    latents = scene.states["latent_cache"].flatten(0, 1)
    scene.states["latent_cache"] = _poisoned(latents, keeps=sorted(owned)).view_as(scene.states["latent_cache"])


KINDS: dict[str, Callable[[Scene], None]] = {
    "ordinary": _ordinary,
    "large": _large,
    "zeros": _zeros,
    "ties": _ties,
    "unowned NaN": _unowned,
}


def _change(scene: Scene, part: str, change: Callable[[Tensor], Tensor]) -> None:
    (name,) = (name for name in scene.weights if part in name)
    scene.weights[name] = change(scene.weights[name])


def _poisoned(tensor: Tensor, *, keeps: list[int]) -> Tensor:
    poisoned = torch.full_like(tensor, float("nan"))
    poisoned[keeps] = tensor[keeps]
    return poisoned


def _scene(decisions: str, kind: str, dtype: torch.dtype = torch.float32) -> Scene:
    scene = Scene(DECISIONS[decisions], dtype=dtype)
    scene.weights = dict(scene.binding.weights)  # type: ignore[attr-defined]
    scene.states = {name: state.clone() for name, state in scene.states.items()}
    KINDS[kind](scene)
    return scene


def _uses(scene: Scene) -> dict[str, Use]:
    feedback = scene.binding.feedback
    return {
        "declared": Use(),
        "step": Use("step"),
        "next step": Use("next_step", feedback=feedback),
        "loop": Use("loop", feedback=feedback),
        "chain": Use("chain", num_drafts=2, feedback=feedback, outputs=("token",)),
        "context": Use("context"),
    }


def _values(scene: Scene, circuit: Circuit, weights: Tensors, fed: Tensors | None = None) -> Tensors:
    """Every value of a circuit by name; of a fused one, those that leave their region."""
    held: Tensors = {}
    given = scene.inputs | (fed or {})
    # a loop takes what the first draft computes, whatever lies where the next one's would
    for name, value in circuit.inputs.items():
        if name == IS_FIRST:
            given = given | {name: torch.ones(1, dtype=torch.bool)}
        elif name.endswith(FED):
            fill = float("nan") if value.type.dtype.is_floating_point else 1 << 40
            given = given | {name: torch.full(_sizes(scene, value.type), fill, dtype=value.type.dtype)}
    interpret(
        circuit,
        inputs={name: given[name] for name in circuit.inputs},
        weights={name: weights[name] for name in circuit.weights},
        states=scene.states,
        observe=lambda value, tensor: held.update({value.name: tensor}),
    )
    return held


def _sizes(scene: Scene, declared: object) -> tuple[int, ...]:
    return declared.bind({**scene.binding.dims, "n": 1}).sizes()  # type: ignore[attr-defined]


def _request(scene: Scene, use: Use) -> Request:
    sizes = {
        "n": 1,
        "max_blocks": scene.inputs["block_table"].shape[1],
        "num_blocks": scene.states["latent_cache"].shape[0],
        "num_sequences": scene.states["tail"].shape[0],
        "mask_words": scene.inputs["grammar_bitmask"].shape[1],
    }
    certified = tuple(name for name in scene.weights if "lm_head" in name)
    return Request(target_of("triton"), {**scene.binding.dims, **sizes}, use, certified=certified)


def _check_passes(scene: Scene, use: Use, passes: tuple[Pass, ...], bound_of: Callable[[Pass], Bound]) -> int:
    """Run the passes one by one and hold every common value to the bound of each; return how many were compared."""
    request, compiled, compared = _request(scene, use), Compiled(scene.binding.circuit), 0
    fed: Tensors = {}
    before = _values(scene, compiled.circuit, scene.weights)
    if use.kind == "next_step":
        # fed with what was cut, a later draft is the first one over again
        fed = {edge.target: before[edge.target] for edge in use.feedback}
    for run in passes:
        compiled = run(compiled, request)
        weights = {**scene.weights, **DerivedWeights(compiled.derived, scene.weights).tensors}
        after = _values(scene, compiled.circuit, weights, fed)
        bound = bound_of(run)
        for name, tensor in after.items():
            # a chain's first draft is the step
            known = name if name in before else name.removesuffix(".1")
            if known not in before:
                continue
            owned = _owned(compiled.circuit, name)
            difference = compare_edge(name, tensor[owned], before[known][owned], step=0, bound=bound)
            assert difference.is_within_bound, f"{run.__name__}: {name} differs by {difference.relative_l2:.2e}"
            assert tensor.is_floating_point() or torch.equal(tensor, before[known]), f"{run.__name__}: {name}"
            compared += name != known or name not in scene.inputs
        before = after
    return compared


def _owned(circuit: Circuit, name: str) -> slice:
    return slice(1, None) if isinstance(circuit.value(name).type, StateType) else slice(None)


def _bound(run: Pass, dtype: torch.dtype = torch.float32) -> Bound:
    return FOLDED[dtype] if run.__name__ in CHANGES_SUMS else BITWISE


def test_every_file_of_passes_is_a_pass_of_the_compile_or_holds_none() -> None:
    files = {path.stem for path in Path(compiler.passes.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == PASS_OF_FILE.keys() | HOLDS_NO_PASS.keys()
    assert {*PASS_OF_FILE.values(), "_verify"} == {run.__name__ for run in PASSES}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decisions", DECISIONS)
def test_passes_keep_every_value(decisions: str, kind: str) -> None:
    scene = _scene(decisions, kind)
    for use in _uses(scene).values():
        assert _check_passes(scene, use, PASSES, _bound) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_passes_keep_every_value_in_bfloat16(kind: str) -> None:
    scene = _scene("plain", kind, torch.bfloat16)
    passes = tuple(run for run in PASSES if run.__name__ not in CHANGES_SUMS)
    for use in _uses(scene).values():
        assert _check_passes(scene, use, passes, _bound) > 30


def test_fold_claimed_bitwise_fails() -> None:
    with pytest.raises(AssertionError, match="_fold_weights"):
        _check_passes(_scene("plain", "ordinary"), Use("step"), PASSES, lambda run: BITWISE)


def _swaps_gate_and_up(compiled: Compiled, request: Request) -> Compiled:
    return _with_swapped(compiled, Swiglu)


def _swaps_embedding_and_hidden(compiled: Compiled, request: Request) -> Compiled:
    return _with_swapped(compiled, Concat)


def _reads_the_other_norm(compiled: Compiled, request: Request) -> Compiled:
    circuit = compiled.circuit
    replaced = {circuit.value("moe_in"): circuit.value("attn_in")}
    changed = rebuild(circuit, circuit.name, outputs=circuit.outputs, replaced=replaced)
    return Compiled(changed, compiled.records)


def _with_swapped(compiled: Compiled, node_type: type) -> Compiled:
    circuit, copy = compiled.circuit, Circuit(compiled.circuit.name)
    copied = {value: copy.input(name, value.type) for name, value in circuit.inputs.items()}  # type: ignore[arg-type]
    copied |= {value: copy.weight(name, value.type) for name, value in circuit.weights.items()}  # type: ignore[arg-type]
    copied |= {value: copy.state(name, value.type) for name, value in circuit.states.items()}  # type: ignore[arg-type]
    for call in circuit.calls:
        args = [copied[arg] for arg in call.args]
        results = copy.copy_call(call, *(reversed(args) if isinstance(call.node, node_type) else args))
        copied.update(zip(call.results, results, strict=True))
    for name, value in circuit.outputs.items():
        copy.output(name, copied[value])
    for name, value in circuit.state_outputs.items():
        copy.state_output(name, copied[value])
    return Compiled(copy, compiled.records)


@pytest.mark.parametrize("wrong", [_swaps_gate_and_up, _swaps_embedding_and_hidden, _reads_the_other_norm])
def test_pass_that_changes_arithmetic_fails(wrong: Pass) -> None:
    scene = _scene("plain", "ordinary")
    with pytest.raises(AssertionError, match=wrong.__name__):
        _check_passes(scene, Use("step"), (*PASSES[:3], wrong), _bound)


def test_passes_that_are_held_have_something_to_do() -> None:
    scene = _scene("plain", "ordinary")
    compiled = compile_circuit(scene.binding.circuit, _request(scene, _uses(scene)["chain"]))
    assert len(compiled.records) == len(PASSES)
    assert {"fold_projections", "split_kv_b", "certify_products"} <= compiled.fired_rules().keys()
