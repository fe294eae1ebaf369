"""Faults planted in the registered Inductor lowerings, each the kind of slip that a port makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import compiler.inductor.lowering  # noqa: F401 - importing it registers the lowerings
from circuit import Node
from compiler import registry

Function = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """What is done to the lowering of a node type, and the values of the step at which it is to be found."""

    node_type: str
    plant: Callable[[Function], Function]
    at: tuple[str, ...]


def with_attributes(**changes: object) -> Callable[[Function], Function]:
    """The lowering takes other attributes than the node's."""
    return lambda function: lambda node, *args: function(type(node)(**(node.model_dump() | changes)), *args)


def with_arguments(change: Callable[..., tuple[Tensor, ...]]) -> Callable[[Function], Function]:
    return lambda function: lambda node, *args: function(node, *change(*args))


def with_result(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    return lambda function: lambda node, *args: change(function(node, *args))


def _one_pool_fewer(function: Function) -> Function:
    return lambda node, scores, position: function(
        type(node)(topk=node.topk - node.pool, pool=node.pool), scores, position
    )


def _pad_selection(selected: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(selected, (0, width - selected.shape[1]), value=-1)


def _fewer_pools(function: Function) -> Function:
    fewer = _one_pool_fewer(function)

    def lowered(node: Node, scores: Tensor, position: Tensor) -> Tensor:
        return _pad_selection(fewer(node, scores, position), function(node, scores, position).shape[1])

    return lowered


def _writes_its_rows(function: Function) -> Function:
    def lowered(node: Node, cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        rows.mul_(1.0)
        return function(node, cache, rows, slots)

    return lowered


def _raises(function: Function) -> Function:
    def lowered(node: Node, *args: Tensor) -> Tensor:
        raise IndexError("index 7 is out of range")

    return lowered


FAULTS = {
    "eps of the key norm": Fault("LayerNorm", with_attributes(eps=1e-3), ("idx_k",)),
    "scale of attention": Fault("SparseMlaAttention", with_attributes(scale=0.1), ("attended",)),
    "limit of the experts": Fault("RoutedExperts", with_attributes(limit=0.01), ("experts_out",)),
    "weights of experts swapped": Fault(
        "RoutedExperts",
        with_arguments(lambda x, ids, weights, gate_up, down: (x, ids, weights.flip(1), gate_up, down)),
        ("experts_out",),
    ),
    "weights not normed": Fault("TopkRouter", with_attributes(norm_topk_prob=False), ("router_ids", "router_weights")),
    "one pool fewer": Fault("SelectTopk", _fewer_pools, ("selected",)),
    "slots off by one": Fault(
        "AppendCache", with_arguments(lambda cache, rows, slots: (cache, rows, slots + 1)), ("next_latent_cache",)
    ),
    "ring off by one": Fault(
        "AppendTail", with_arguments(lambda tail, k, g, position, s: (tail, k, g, position + 1, s)), ("next_tail",)
    ),
    "key and gate swapped": Fault(
        "AppendTail", with_arguments(lambda tail, k, g, position, s: (tail, g, k, position, s)), ("next_tail",)
    ),
    "negative scores kept": Fault("IndexerScores", with_result(lambda scores: scores * 1.0001), ("index_scores",)),
    "query of another head": Fault(
        "AbsorbQuery", with_arguments(lambda query, kv_b: (query.roll(1, 1), kv_b)), ("q_latent",)
    ),
    "value of another head": Fault(
        "AbsorbValue", with_arguments(lambda attended, kv_b: (attended.roll(1, 1), kv_b)), ("attn_heads",)
    ),
    "an argument written": Fault("AppendCache", _writes_its_rows, ("next_latent_cache",)),
    "a lowering that raises": Fault("AbsorbValue", _raises, ("attn_heads",)),
}


def plant(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    key = ("inductor", fault.node_type)
    held = registry._TABLE[key]
    monkeypatch.setitem(registry._TABLE, key, replace(held, function=fault.plant(held.function)))
