"""The forms that a lowering takes by the size of its operands, each forced on small ones."""

from __future__ import annotations

import pytest

FORMS = ("as small ones", "as large ones", "native")
_SIZE_LIMITS = {
    "compiler.inductor.products.LARGE_WEIGHT_BYTES": 0,
    "compiler.inductor.lowering.routed_experts.CACHED_WEIGHT_BYTES": 0,
    "compiler.inductor.lowering.indexer_scores.MAX_LOOP_PRODUCTS": 0,
    "compiler.inductor.lowering.sparse_mla_attention.MAX_LOOP_PRODUCTS": 0,
    "compiler.inductor.ranking.MAX_COUNTED": 0,
}


def take_form(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Make lowerings choose as for large operands, or call native products whatever this CPU has, or neither."""
    monkeypatch.setattr("compiler.inductor.products._multiplies_bf16", lambda: True)
    monkeypatch.setattr("compiler.inductor.bf16_products.are_available", lambda: form == "native")
    for place, limit in _SIZE_LIMITS.items() if form == "as large ones" else ():
        monkeypatch.setattr(place, limit)
