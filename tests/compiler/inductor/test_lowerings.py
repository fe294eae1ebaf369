"""Every Inductor lowering, traced ops run eagerly, against the reference of its node and the tag it claims."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import compiler.inductor.lowering  # noqa: F401 - importing it registers the lowerings
from circuit import Node, node_types
from compiler.inductor.ranking import MAX_COUNTED, best_ascending, best_indices
from compiler.registry import lowered_nodes, lowering_of
from tests.support.node_cases import Example, Sizes, load_cases, same_bits

CASES = load_cases()
EXAMPLES = [
    pytest.param(example, dtype, sizes, id=f"{name}-{number}-{dtype}-{index}")
    for name, case in CASES.items()
    if case.node_type.__name__ in lowered_nodes("inductor")
    for number, example in enumerate(case.examples)
    for dtype in case.dtypes
    for index, sizes in enumerate(example.sizes)
    # a program is compiled for the rows of a bucket, never for none
    if sizes.get("n", 1) > 0
]
# bf16 keeps 8 bits: a float32 sum in another order may round to the neighbour
BF16_STEP = 2**-8


def test_every_lowered_node_is_in_the_catalogue() -> None:
    assert set(lowered_nodes("inductor")) <= set(node_types())
    assert len(EXAMPLES) > len(lowered_nodes("inductor"))


# what a size decides, set so that small examples take the forms of large ones
SIZE_LIMITS = {
    "compiler.inductor.products.LARGE_WEIGHT_BYTES": 0,
    "compiler.inductor.lowering.routed_experts.CACHED_WEIGHT_BYTES": 0,
    "compiler.inductor.lowering.indexer_scores.MAX_LOOP_PRODUCTS": 0,
    "compiler.inductor.lowering.sparse_mla_attention.MAX_LOOP_PRODUCTS": 0,
    "compiler.inductor.ranking.MAX_COUNTED": 0,
}


@pytest.fixture(params=["as small ones", "as large ones", "native"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.inductor.products._multiplies_bf16", lambda: True)
    monkeypatch.setattr("compiler.inductor.bf16_products.are_available", lambda: request.param == "native")
    for place, limit in SIZE_LIMITS.items() if request.param == "as large ones" else ():
        monkeypatch.setattr(place, limit)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("example, dtype, sizes", EXAMPLES)
def test_lowering_keeps_its_tag(example: Example, dtype: str, sizes: Sizes) -> None:
    node = example.node
    lowering = lowering_of(node, "inductor")
    assert lowering is not None
    arguments = _legal(node, example.tensors(dtype, sizes))
    expected = _tuple(node.reference(*(tensor.clone() for tensor in arguments)))
    got = _tuple(lowering.function(node, *(tensor.clone() for tensor in arguments)))
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        ours, theirs = _owned(node, ours), _owned(node, theirs)
        if lowering.numerics.kind == "bitwise" or not ours.is_floating_point():
            assert same_bits(ours, theirs)
            continue
        bound = lowering.numerics.bound if theirs.dtype == torch.float32 else BF16_STEP
        infinite = theirs.isinf()
        assert torch.equal(ours[infinite], theirs[infinite])
        ours, theirs = ours.masked_fill(infinite, 0), theirs.masked_fill(infinite, 0)
        distance, norm = (ours.double() - theirs.double()).norm(), theirs.double().norm()
        assert distance <= bound * norm, f"relative L2 {distance / norm:.2e}, tag {lowering.numerics}"


def test_ranking_takes_the_lowest_index_of_equals_zeros_of_both_signs_included() -> None:
    scores = torch.tensor(
        [[-0.0, 0.0, -1.0, 0.0, float("-inf"), 2.0], [float("nan"), 5.0, float("inf"), 5.0, -3.0, 5.0]]
    )
    assert best_indices(scores, 4).tolist() == [[5, 0, 1, 3], [0, 2, 1, 3]]
    assert best_ascending(scores, 4).tolist() == [[0, 1, 3, 5], [0, 1, 2, 3]]


@pytest.mark.parametrize("num_scores", [1, 17, 63, MAX_COUNTED, MAX_COUNTED + 1])
def test_ranking_is_a_stable_sort_among_many_equals(num_scores: int) -> None:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(-3, 3, (7, num_scores), generator=generator).float()
    count = (num_scores + 3) // 4
    stable = torch.sort(coarse, dim=1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(best_indices(coarse, count), stable)
    assert torch.equal(best_ascending(coarse, count), stable.sort(dim=1).values)


def _legal(node: Node, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores of pools that are not complete are -inf in every circuit; a lowering may count on it."""
    if type(node).__name__ != "SelectTopk":
        return arguments
    scores, position = arguments
    last_token = (torch.arange(scores.shape[1]) + 1) * node.pool - 1  # type: ignore[attr-defined]
    return scores.masked_fill(last_token > position.unsqueeze(1), float("-inf")), position


def _owned(node: Node, tensor: Tensor) -> Tensor:
    """Block 0 and sequence 0 belong to nobody, and what lands there is not compared."""
    return tensor[1:] if node.writes else tensor


def _tuple(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)
