"""The weights that a binding derives of lm_head for the levers draft_head and draft_vocab.

lm_head.draft_tokens   i64[rows]   the token ids that may be drafted, ascending: stated by the lever
lm_head.draft_rows     T[rows, h]  their rows of lm_head
lm_head.int8           i8[rows, h] the rows in eight bits, for draft_head=int8
lm_head.scale          f32[rows]   and the scale of each
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from circuit import BindingError
from compiler import DerivedWeight, WithDerived
from drafts.draft_head import DraftHead

LM_HEAD = "lm_head"
DRAFT_TOKENS = "lm_head.draft_tokens"
DRAFT_ROWS = "lm_head.draft_rows"
INT8_ROWS = "lm_head.int8"
SCALES = "lm_head.scale"
OWN_NAMES = frozenset({DRAFT_TOKENS, DRAFT_ROWS, INT8_ROWS, SCALES})


def derived_of(draft_head: DraftHead) -> tuple[DerivedWeight, ...]:
    """Return what is made of lm_head, nothing for the whole head."""
    sources = (LM_HEAD,) if draft_head.draft_vocab is None else (LM_HEAD, DRAFT_TOKENS)
    if draft_head.draft_head == "int8":
        return (
            DerivedWeight(name=INT8_ROWS, recipe="int8_rows", sources=sources),
            DerivedWeight(name=SCALES, recipe="row_scales", sources=sources),
        )
    if draft_head.draft_vocab is None:
        return ()
    return (DerivedWeight(name=DRAFT_ROWS, recipe="take_rows", sources=sources),)


def certified_of(draft_head: DraftHead) -> tuple[str, ...]:
    """Return the weights whose product a compile certifies, see compiler/passes/certify_products.py."""
    if draft_head.draft_head != "int8_certified":
        return ()
    return (LM_HEAD if draft_head.draft_vocab is None else DRAFT_ROWS,)


def with_head(weights: Mapping[str, Tensor], draft_head: DraftHead) -> Mapping[str, Tensor]:
    """Return the weights and, beside them, what a head other than the whole one reads; the former are not copied."""
    derived = derived_of(draft_head)
    if not derived:
        return weights
    if LM_HEAD not in weights:
        raise BindingError(f"draft_head: expected the weight {LM_HEAD!r} to derive rows of, got none; load it first")
    tokens = {}
    if draft_head.draft_vocab is not None:
        ids = torch.tensor(draft_head.draft_vocab, dtype=torch.int64, device=weights[LM_HEAD].device)
        tokens[DRAFT_TOKENS] = ids
    return WithDerived(derived, {**weights, **tokens})
