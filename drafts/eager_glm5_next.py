"""The GLM-5.3-Flash MTP head as a plain nn.Module: the head before circuits, and their independent check.

It knows neither circuits nor nodes. Read it beside the checkpoint's names: one step is pair, attention, experts, head.
Source: transformers 5.24, the classes of models/glm5_next, wired as the released next-token layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.eager_attention import CacheWrite, EagerAttention, Edges, RowPlaces, rms_norm
from drafts.eager_draft_head import EagerDraftHead
from drafts.eager_moe import EagerMoe
from drafts.eager_shard import EagerShard
from drafts.path import Drafts
from drafts.weights import WeightSpec, head_weight_specs


@dataclass(frozen=True, slots=True)
class EagerStep:
    """What one step gives: draft ids, the hidden the next step takes, logits, and the rows attended.

    `edges` holds every named intermediate when the step recorded, else nothing.
    """

    token: Tensor  # int64 [n]
    hidden_out: Tensor  # [n, hidden]
    logits: Tensor  # [n, rows of lm_head that are read]
    row: Tensor  # int64 [n], the draft's place among the logits
    selected: Tensor  # int64 [n, S], -1 = none
    edges: Edges


class EagerGlm5NextHead(nn.Module):
    """One draft step over n rows, several rows of one sequence included.

    `weights` are named as head_weight_specs names them and are held, not copied: writing into them is seen. A
    missing name, or a shape or dtype that does not fit, raises ValueError. With a `shard` they are one rank's parts, as
    `specs` says, and every rank runs the same steps.
    """

    embed_tokens: Tensor  # [vocab, hidden]
    lm_head: Tensor  # [vocab, hidden]
    enorm: Tensor
    hnorm: Tensor
    eh_proj: Tensor  # [hidden, 2*hidden], the embedding's columns first
    input_layernorm: Tensor
    post_attention_layernorm: Tensor
    head_norm: Tensor
    target_norm: Tensor | None

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        decisions: Decisions,
        *,
        draft_head: DraftHead = WHOLE_HEAD,
        shard: EagerShard | None = None,
        specs: Sequence[WeightSpec] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.decisions = decisions
        self.shard = shard
        _check_weights(weights, specs or head_weight_specs(config, target_norm=decisions.applies_target_norm))
        for name in ("embed_tokens", "lm_head", "enorm", "hnorm", "eh_proj"):
            self.register_buffer(name, weights[name])
        self.register_buffer("input_layernorm", weights["input_layernorm"])
        self.register_buffer("post_attention_layernorm", weights["post_attention_layernorm"])
        self.register_buffer("head_norm", weights["shared_head.norm"])
        self.register_buffer("target_norm", weights["target_norm"] if decisions.applies_target_norm else None)
        self.self_attn = EagerAttention(config, weights, shard)
        self.mlp = EagerMoe(config, weights, shard)
        self.draft = EagerDraftHead(self.lm_head, draft_head)

    @torch.no_grad()
    def step(
        self,
        token: Tensor,
        hidden: Tensor,
        position: Tensor,
        sequence: Tensor,
        block_table: Tensor,
        latent: Tensor,
        index_keys: Tensor,
        tail: Tensor,
        *,
        recycled: bool,
        selected: Tensor | None = None,
        selected_at: Tensor | None = None,
        grammar_bitmask: Tensor | None = None,
        needs_logits: bool = False,
        record_edges: bool = False,
    ) -> EagerStep:
        """Run one step; rows and cache tensors as in RowBatch and DrafterCache. Writes the cache tensors in place.

        `recycled`: the hidden is a previous step's hidden_out, so the target's norm is not applied. `selected` with
        `selected_at` [n], the position it was selected at, reuses an earlier step's selection as index_share says.
        `grammar_bitmask` int32 [n, words] restricts the draft to the tokens whose bits are set; the logits and the
        confidence are those without it. Of a head that ranks share, the logits are this rank's unless `needs_logits` or
        a bitmask asks for all of them. A second call with the same rows writes the same values again.
        """
        edges: Edges = {}
        places = RowPlaces(position, sequence, block_table)
        x = self.pair(token, hidden, recycled=recycled, edges=edges)
        attn_in = self._norm(x, self.input_layernorm)
        self.self_attn.cache_rows(attn_in, places, latent, tail, edges).apply(latent, index_keys, tail)
        query_residual = self.self_attn.query_residual(attn_in)
        edges["attn_in"], edges["q_a_normed"] = attn_in, query_residual
        if selected is None:
            selected = self._select(attn_in, query_residual, places, index_keys, edges, must_score=record_edges)
        else:
            selected = self._shared_selection(selected, selected_at, position)
        attn_out = self.self_attn.attend(query_residual, selected, places, latent, edges)
        x1 = x + attn_out
        moe_in = self._norm(x1, self.post_attention_layernorm)
        moe_out = self.mlp(moe_in, edges)
        block_out = x1 + moe_out
        head_normed = self._norm(block_out, self.head_norm)
        logits, row, drafts = self._choose(head_normed, grammar_bitmask, needs_logits=needs_logits)
        edges |= {"selected": selected, "attn_out": attn_out, "x1": x1, "moe_in": moe_in, "moe_out": moe_out}
        edges |= {"block_out": block_out, "head_normed": head_normed, "logits": logits, "token": drafts}
        hidden_out = head_normed if self.decisions.recycle == "post_norm" else block_out
        return EagerStep(drafts, hidden_out, logits, row, selected, edges if record_edges else {})

    @torch.no_grad()
    def context(self, rows: RowBatch, latent: Tensor, tail: Tensor, *, edges: Edges | None = None) -> CacheWrite:
        """Compute what context rows add to the cache, and nothing else; writes nothing. `edges` collects its edges."""
        edges = {} if edges is None else edges
        x = self.pair(rows.token, rows.hidden, recycled=False, edges=edges)
        attn_in = self._norm(x, self.input_layernorm)
        edges["attn_in"] = attn_in
        places = RowPlaces(rows.position, rows.sequence, rows.block_table)
        return self.self_attn.cache_rows(attn_in, places, latent, tail, edges)

    def pair(self, token: Tensor, hidden: Tensor, *, recycled: bool, edges: Edges) -> Tensor:
        """Join the token's embedding and the hidden into the block's input [n, hidden], embedding half first."""
        if self.target_norm is not None and not recycled:
            hidden = self._norm(hidden, self.target_norm)
        e_normed = self._norm(self.embed_tokens[token], self.enorm)
        h_normed = self._norm(hidden, self.hnorm)
        eh_out = functional.linear(torch.cat((e_normed, h_normed), dim=-1), self.eh_proj)
        edges["e_normed"], edges["h_normed"], edges["eh_out"] = e_normed, h_normed, eh_out
        return eh_out

    def _choose(self, normed: Tensor, bitmask: Tensor | None, *, needs_logits: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, those of all ranks where they are needed, and the drafts [n] by row and by token."""
        shard, logits = self.shard, self.draft.logits(normed)
        if shard is None or shard.has_whole_logits:
            row = self.draft.best_row(logits, bitmask)
            return logits, row, self.draft.token(row)
        # a vocabulary that is split is whole otherwise: its rows are its tokens
        if bitmask is not None:
            logits = shard.whole_logits(logits)
            row = self.draft.best_row(logits, bitmask)
            return logits, row, row
        row = shard.draft(logits)
        return shard.whole_logits(logits) if needs_logits else logits, row, row

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _select(
        self,
        attn_in: Tensor,
        query_residual: Tensor,
        places: RowPlaces,
        index_keys: Tensor,
        edges: Edges,
        *,
        must_score: bool,
    ) -> Tensor:
        """Select rows to attend; scores are skipped where no row has more pools than it may choose."""
        num_rows = places.position.shape[0]
        num_pools = int((places.position.max() + 1) // self.config.index_kpool) if num_rows else 0
        if num_pools <= self.config.index_topk_pools and not must_score:
            return self.self_attn.indexer.select(None, places.position)
        scores = self.self_attn.indexer.score_pools(attn_in, query_residual, places, index_keys, num_pools, edges)
        edges["index_scores"] = scores
        return self.self_attn.indexer.select(scores, places.position)

    def _shared_selection(self, selected: Tensor, selected_at: Tensor | None, position: Tensor) -> Tensor:
        """Reuse an earlier selection; pools_and_new_rows adds every row since, the step's own included."""
        mode = self.decisions.index_share
        if mode == "off" or selected_at is None:
            raise ValueError(
                f"EagerGlm5NextHead.step: expected index_share with selected and selected_at, got index_share {mode!r} "
                f"and selected_at {'missing' if selected_at is None else 'given'}; declare the decision or pass neither"
            )
        if mode == "exact_set" or position.shape[0] == 0:
            return selected
        num_new = int((position - selected_at).max())
        new = selected_at[:, None] + 1 + torch.arange(num_new, device=position.device)
        return torch.cat((selected, new.masked_fill(new > position[:, None], -1)), dim=1)


class EagerPath:
    """The eager head as a draft path: `write_rows` for context, `draft` for a chain of K steps.

    Rows written are not counted here; the caller commits them. When a run fails, what it had written to the cache is
    put back before the exception leaves: the places a run can write are known and copied before it starts.
    `record_edges` keeps the steps of the last draft in `last_steps`. `check_values` looks at ids, positions and blocks
    before a run, which waits for the device.
    """

    name = "eager"
    binding = None

    def __init__(self, head: EagerGlm5NextHead, *, record_edges: bool = False, check_values: bool = True) -> None:
        self.head = head
        self.record_edges = record_edges
        self.check_values = check_values
        self.last_steps: list[EagerStep] = []

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write context rows to the cache; no attention, experts or logits. Raises ValueError before anything runs."""
        self._check(rows, cache, lookahead=0)
        rows = rows.beside_hiddens()
        write = self.head.context(rows, cache.latent, cache.tail)
        with _put_back_on_error(rows, cache, num_steps=1):
            write.apply(cache.latent, cache.index_keys, cache.tail)

    @property
    def is_batch_invariant(self) -> bool:
        """False: matrix products round otherwise for other numbers of rows."""
        return False

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft a chain a row, step i writes position + i; one row a sequence. See DraftPath.

        Raises ValueError before anything runs.
        """
        if num_drafts < 1:
            raise ValueError(f"EagerPath.draft.num_drafts: expected 1 or more, got {num_drafts}")
        self._check(rows, cache, lookahead=num_drafts - 1)
        if self.check_values:
            live = rows.sequence[rows.sequence > 0]
            if live.unique().numel() != live.numel():
                raise ValueError("EagerPath.draft.rows: expected one row a sequence, got several; use write_rows first")
        rows = rows.beside_hiddens()
        grammar = None if grammar is None else grammar.to(rows.hidden.device)
        with _put_back_on_error(rows, cache, num_steps=num_drafts):
            steps = self._chain(rows, cache, num_drafts, grammar, needs_logits=has_confidence)
            confidences = [confidence(step.logits, step.row) for step in steps] if has_confidence else None
            ids = torch.stack([step.token for step in steps], dim=1)
            drafts = Drafts(ids, None if confidences is None else torch.stack(confidences, dim=1))
        self.last_steps = steps if self.record_edges else []
        return drafts

    def _chain(
        self, rows: RowBatch, cache: DrafterCache, num_drafts: int, grammar: Tensor | None, *, needs_logits: bool
    ) -> list[EagerStep]:
        shares_selection = self.head.decisions.index_share != "off"
        token, hidden = rows.token, rows.hidden
        steps: list[EagerStep] = []
        for index in range(num_drafts):
            reuses = shares_selection and index > 0
            step = self.head.step(
                token,
                hidden,
                rows.position + index,
                rows.sequence,
                rows.block_table,
                cache.latent,
                cache.index_keys,
                cache.tail,
                recycled=index > 0,
                selected=steps[0].selected if reuses else None,
                selected_at=rows.position if reuses else None,
                grammar_bitmask=grammar[:, index] if grammar is not None and index < grammar.shape[1] else None,
                needs_logits=needs_logits,
                record_edges=self.record_edges,
            )
            steps.append(step)
            token, hidden = step.token, step.hidden_out
        return steps

    def _check(self, rows: RowBatch, cache: DrafterCache, *, lookahead: int) -> None:
        config = self.head.config
        if rows.hidden.shape[1] != config.hidden_size or rows.hidden.dtype != config.dtype:
            raise ValueError(
                f"RowBatch.hidden: expected {config.dtype} [n, {config.hidden_size}], got {rows.hidden.dtype} "
                f"{list(rows.hidden.shape)}; hand in the target's hidden of this checkpoint"
            )
        if self.check_values:
            rows.check_values(
                vocab_size=config.vocab_size,
                num_blocks=cache.num_blocks,
                block_size=cache.block_size,
                num_sequences=cache.num_sequences,
                lookahead=lookahead,
            )


def confidence(logits: Tensor, row: Tensor) -> Tensor:
    """Return the float32 softmax probability [n] of a row [n] of the logits among all of them."""
    return torch.softmax(logits.float(), dim=-1).gather(1, row.unsqueeze(1)).squeeze(1)


@contextmanager
def _put_back_on_error(rows: RowBatch, cache: DrafterCache, *, num_steps: int) -> Iterator[None]:
    """Copy what `num_steps` steps from `rows` on may overwrite, and write it back if they raise."""
    position = rows.position[:, None] + torch.arange(num_steps, device=rows.position.device)  # [n, num_steps]
    places = RowPlaces(rows.position, rows.sequence, rows.block_table)
    block, offset = places.block_and_offset(position, cache.block_size)
    entry, sequence, ring = offset // cache.config.index_kpool, rows.sequence[:, None], position % cache.tail_depth
    latent, index_keys = cache.latent[block, offset], cache.index_keys[block, entry]
    tail = cache.tail[sequence, ring]
    try:
        yield
    except BaseException:
        cache.latent[block, offset] = latent
        cache.index_keys[block, entry] = index_keys
        cache.tail[sequence, ring] = tail
        raise


def _check_weights(weights: Mapping[str, Tensor], specs: Sequence[WeightSpec]) -> None:
    for spec in specs:
        weight = weights.get(spec.name)
        got = "no such weight" if weight is None else f"{weight.dtype} {list(weight.shape)}"
        if weight is None or weight.shape != spec.shape or weight.dtype != spec.dtype:
            raise ValueError(
                f"EagerGlm5NextHead.{spec.name}: expected {spec.dtype} {list(spec.shape)}, got {got}; "
                "load it with load_weights"
            )
