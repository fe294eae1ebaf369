"""Derived weights: a reload by copy is seen, a rebound source is refused, the derived memory stays where it is."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from circuit import BindingError
from compiler.derived_weights import DerivedWeight, DerivedWeights, WithDerived

JOINED = DerivedWeight(name="joined", recipe="rows", sources=("a", "b"))
KEYS = DerivedWeight(name="keys", recipe="key_rows", sources=("kv",), num_heads=3, key_dim=2, value_dim=5)
VALUES = DerivedWeight(name="values", recipe="value_rows", sources=("kv",), num_heads=3, key_dim=2, value_dim=5)
ALL = (JOINED, KEYS, VALUES)


def sources() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = {"a": (3, 7), "b": (1, 7), "kv": (21, 11), "unrelated": (2,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_recipes_make_what_their_names_say() -> None:
    held = sources()
    made = DerivedWeights(ALL, held).tensors
    assert torch.equal(made["joined"], torch.cat([held["a"], held["b"]]))
    heads = held["kv"].view(3, 7, 11)
    assert torch.equal(made["keys"].view(3, 2, 11), heads[:, :2])
    assert torch.equal(made["values"].view(3, 5, 11), heads[:, 2:])
    assert all(tensor.is_contiguous() for tensor in made.values())


def test_take_rows_takes_the_rows_that_its_second_source_names() -> None:
    held = sources() | {"ids": torch.tensor([0, 4, 20])}
    taken = DerivedWeight(name="taken", recipe="take_rows", sources=("kv", "ids"))
    made = DerivedWeights([taken], held).tensors["taken"]
    assert torch.equal(made, held["kv"][[0, 4, 20]])
    assert made.data_ptr() != held["kv"].data_ptr()


def test_weights_with_derived_ones_make_them_again_when_they_are_read() -> None:
    held = sources()
    weights = WithDerived(ALL, held)
    assert set(weights) == {*held, "joined", "keys", "values"}
    assert len(weights) == 7
    assert weights["a"] is held["a"]
    before = weights["joined"]
    held["b"].fill_(3.0)
    assert weights.get("joined") is before
    assert torch.equal(before, torch.cat([held["a"], held["b"]]))
    assert weights.get("other") is None
    held["a"] = held["a"].clone()
    with pytest.raises(BindingError, match="bound to other memory"):
        weights["joined"]


def test_nothing_written_makes_nothing_again() -> None:
    held = sources()
    store = DerivedWeights(ALL, held)
    held["unrelated"].add_(1)
    assert store.refresh(held) == ()
    assert store.versions["a"] == (held["a"].data_ptr(), held["a"]._version)


@pytest.mark.parametrize(
    "name, stale", [("a", ("joined",)), ("b", ("joined",)), ("kv", ("keys", "values"))], ids=["a", "b", "kv"]
)
def test_reload_by_copy_is_seen_once_and_in_place(name: str, stale: tuple[str, ...]) -> None:
    held = sources()
    store = DerivedWeights(ALL, held)
    before = dict(store.tensors)
    addresses = {key: tensor.data_ptr() for key, tensor in before.items()}
    held[name].copy_(torch.randn(held[name].shape))
    assert store.refresh(held) == stale
    assert store.refresh(held) == ()
    fresh = DerivedWeights(ALL, held).tensors
    for key, tensor in store.tensors.items():
        assert tensor is before[key]
        assert tensor.data_ptr() == addresses[key]
        assert torch.equal(tensor, fresh[key])


def test_write_through_a_view_or_the_whole_it_is_part_of_is_seen() -> None:
    whole = torch.zeros(9, 7)
    held = sources() | {"a": whole[:3]}
    store = DerivedWeights((JOINED,), held)
    whole.fill_(2.0)
    assert store.refresh(held) == ("joined",)
    held["b"][0, 3] = 5.0
    assert store.refresh(held) == ("joined",)
    assert store.tensors["joined"][3, 3] == 5.0
    assert store.tensors["joined"][0, 0] == 2.0


def test_another_tensor_over_the_same_memory_counts_on_its_own_and_is_made_again() -> None:
    held = sources()
    store = DerivedWeights((JOINED,), held)
    held["a"].data.fill_(3.0)  # not counted: held["a"]._version stays
    assert store.refresh(held) == ()
    assert store.refresh(held | {"a": held["a"].data}) == ("joined",)
    assert store.tensors["joined"][0, 0] == 3.0


def test_everything_is_made_again_on_demand() -> None:
    held = sources()
    store = DerivedWeights(ALL, held)
    held["a"].data.fill_(4.0)
    assert store.refresh(held, everything=True) == ("joined", "keys", "values")
    assert store.tensors["joined"][0, 0] == 4.0


def test_rebound_source_is_refused_and_changes_nothing() -> None:
    held = sources()
    store = DerivedWeights(ALL, held)
    before = {key: tensor.clone() for key, tensor in store.tensors.items()}
    held["kv"].add_(1.0)
    rebound = held | {"a": held["a"].clone()}
    with pytest.raises(
        BindingError, match="weight 'a': bound to other memory than joined was made of; copy new values"
    ):
        store.refresh(rebound)
    assert all(torch.equal(store.tensors[key], tensor) for key, tensor in before.items())
    # bound as it was, the pending write of the other source is still seen
    assert store.refresh(held) == ("keys", "values")


@pytest.mark.parametrize(
    "other",
    [
        lambda tensor: tensor.view(torch.int32),
        lambda tensor: tensor[:2],
        lambda tensor: tensor.view(-1)[: tensor.numel()].view(7, 3),
        lambda tensor: tensor.as_strided((3, 7), (1, 3)),
    ],
    ids=["dtype", "rows", "shape", "strides"],
)
def test_same_address_in_another_form_is_refused(other: object) -> None:
    held = sources()
    store = DerivedWeights(ALL, held)
    with pytest.raises(BindingError, match="weight 'a': bound to other memory"):
        store.refresh(held | {"a": other(held["a"])})  # type: ignore[operator]


def test_address_of_a_freed_source_cannot_come_back() -> None:
    held = sources()
    address = held["a"].data_ptr()
    store = DerivedWeights((JOINED,), held)
    del held["a"]
    # the store keeps the memory, so no later tensor can pass for it
    assert all(torch.randn(3, 7).data_ptr() != address for _ in range(50))
    with pytest.raises(BindingError, match="weight 'a': missing"):
        store.refresh(held)


def test_missing_source_and_one_that_counts_no_writes_are_refused() -> None:
    held = sources()
    del held["b"]
    with pytest.raises(BindingError, match="derived weight 'joined': source 'b' is missing; load it first"):
        DerivedWeights(ALL, held)
    with torch.inference_mode():
        uncounted = torch.ones(1, 7)
    with pytest.raises(BindingError, match="weight 'b': made in inference mode"):
        DerivedWeights(ALL, held | {"b": uncounted})


def test_record_survives_json_and_refuses_what_it_does_not_know() -> None:
    for weight in ALL:
        assert DerivedWeight.model_validate_json(weight.model_dump_json()) == weight
    assert str(JOINED) == "rows(a, b)"
    given = JOINED.model_dump()
    for wrong in ({"recipe": "columns"}, {"sources": ()}, {"num_heads": 0}, {"key_dim": -1}, {"extra": 1}):
        with pytest.raises(ValidationError):
            DerivedWeight(**{**given, **wrong})
