"""The GLM-5.3-Flash MTP head as a circuit, readable beside the checkpoint: weights carry the checkpoint's names.

Per row, with token t (the next one) and the target's hidden h:

    x = eh_proj(concat(enorm(embed[t]), hnorm(h)))
    x = x + o_proj(attention(input_layernorm(x)))
    x = x + moe(post_attention_layernorm(x))
    y = shared_head.norm(x);  draft = argmax(lm_head(y)), among the tokens a grammar allows when there is one, and
    among those of the lever draft_vocab

Named values are the edges that golden vectors, the eager head and parity reports know by the same names.
Source: transformers glm5_next (the target's layers), the released checkpoint's MTP layer.
"""

import torch

from circuit import Circuit, StateType, TensorType, Value, f32, i64
from compiler import Feedback
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.head_weights import DRAFT_ROWS, DRAFT_TOKENS, INT8_ROWS, LM_HEAD, SCALES
from nodes import (
    AbsorbQuery,
    AbsorbValue,
    Add,
    AppendCache,
    AppendTail,
    Argmax,
    CacheSlots,
    Cast,
    Concat,
    Embedding,
    ExtendSelection,
    GrammarMask,
    Increment,
    IndexerScores,
    KeyPool,
    LayerNorm,
    Linear,
    QuantisedLinear,
    RmsNorm,
    RoutedExperts,
    SelectTopk,
    SparseMlaAttention,
    SplitHeads,
    Swiglu,
    TokenOfRow,
    TokenProbability,
    TopkRouter,
    TrimmedGrammarMask,
)

K_NORM_EPS = 1e-6  # the indexer's LayerNorm has its own, not rms_norm_eps


def mtp_head(
    config: DraftConfig,
    decisions: Decisions,
    *,
    block_size: int,
    max_num_drafts: int,
    draft_head: DraftHead = WHOLE_HEAD,
) -> Circuit:
    """Return the head over n rows.

    Inputs token, target_hidden, position, sequence, block_table, grammar_bitmask; states latent_cache, index_keys,
    tail; outputs token, hidden and position of the next draft, and the token's confidence.

    `block_size` in rows, a multiple of index_kpool; `max_num_drafts` bounds the rows that a shared selection grows by.
    `draft_head` says which rows of lm_head are read, and how; a confidence is over those rows.
    Raises ValueError for sizes that no cache has, BindingError for tokens that may be drafted and are not there.
    """
    if block_size < 1 or block_size % config.index_kpool or max_num_drafts < 1:
        raise ValueError(
            f"mtp_head: expected block_size a multiple of index_kpool {config.index_kpool} and max_num_drafts 1 or "
            f"more, got {block_size} and {max_num_drafts}; take them from the drafter's cache"
        )
    head = _Head(config, decisions, draft_head, block_size=block_size, max_num_drafts=max_num_drafts)
    return head.build()


def chain_feedback(decisions: Decisions) -> tuple[Feedback, ...]:
    """Return the edges from one draft to the next: token, hidden, position, and the selection where it is shared."""
    hidden = "drafter_hidden" if decisions.applies_target_norm else "target_hidden"
    edges = [Feedback("token", "token"), Feedback("hidden", hidden), Feedback("position", "position")]
    if decisions.index_share == "exact_set":
        edges.append(Feedback("selected", "selected"))
    if decisions.index_share == "pools_and_new_rows":
        edges += [Feedback("chosen", "chosen"), Feedback("selected_at", "selected_at")]
    return tuple(edges)


# the parts of a step that a run may leave out: without a grammar the mask is bypassed
WITHOUT_GRAMMAR = {"allowed_logits": "logits"}
CONFIDENCE = "confidence"


class _Head:
    """Builds the circuit; one method per block, in the order of the forward."""

    def __init__(
        self, config: DraftConfig, decisions: Decisions, draft_head: DraftHead, *, block_size: int, max_num_drafts: int
    ) -> None:
        self.config = config
        self.decisions = decisions
        self.draft_head = draft_head
        self.block_size = block_size
        self.max_num_drafts = max_num_drafts
        self.c = Circuit("glm5_next_mtp")

    def build(self) -> Circuit:
        c, config = self.c, self.config
        token = c.input("token", i64("n"))
        target_hidden = c.input("target_hidden", self._type("n", config.hidden_size))
        self.position = c.input("position", i64("n"))
        self.sequence = c.input("sequence", i64("n"))
        self.block_table = c.input("block_table", i64("n", "max_blocks"))
        x = self._embed(token, target_hidden)
        with c.block("attention"):
            x = Add()(x, self._attention(self._norm(x, "input_layernorm").named("attn_in"))).named("x1")
        with c.block("moe"):
            moe_in = self._norm(x, "post_attention_layernorm").named("moe_in")
            x = Add()(x, self._moe(moe_in)).named("block_out")
        with c.block("head"):
            y = self._norm(x, "shared_head.norm").named("head_normed")
            self._draft(y)
            c.output("hidden", y if self.decisions.recycle == "post_norm" else x)
            c.output("position", Increment(by=1)(self.position).named("next_position"))
        return c

    def _draft(self, y: Value) -> None:
        c, num_rows = self.c, self.draft_head.num_rows(self.config.vocab_size)
        is_trimmed = self.draft_head.draft_vocab is not None
        shape = (num_rows, self.config.hidden_size)
        if self.draft_head.draft_head == "int8":
            weight = c.weight(INT8_ROWS, TensorType.of(torch.int8, *shape))
            logits = QuantisedLinear()(y, weight, c.weight(SCALES, f32(num_rows))).named("logits")
        else:
            logits = Linear()(y, self._weight(DRAFT_ROWS if is_trimmed else LM_HEAD, *shape)).named("logits")
        bitmask = c.input("grammar_bitmask", TensorType.of(torch.int32, "n", "mask_words"))
        if not is_trimmed:
            row = draft = Argmax()(GrammarMask()(logits, bitmask).named("allowed_logits")).named("draft")
        else:
            tokens = c.weight(DRAFT_TOKENS, i64(num_rows))
            row = Argmax()(TrimmedGrammarMask()(logits, bitmask, tokens).named("allowed_logits")).named("draft_row")
            draft = TokenOfRow()(row, tokens).named("draft")
        c.output("token", draft)
        c.output("confidence", TokenProbability()(logits, row).named("confidence"))

    def _embed(self, token: Value, target_hidden: Value) -> Value:
        c, hidden_size = self.c, self.config.hidden_size
        with c.block("embed"):
            hidden = target_hidden
            if self.decisions.applies_target_norm:
                hidden = self._norm(target_hidden, "target_norm").named("drafter_hidden")
            table = self._weight("embed_tokens", self.config.vocab_size, hidden_size)
            embedded = self._norm(Embedding()(token, table).named("embedded"), "enorm").named("e_normed")
            normed = self._norm(hidden, "hnorm").named("h_normed")
            eh_proj = self._weight("eh_proj", hidden_size, 2 * hidden_size)
            return Linear()(Concat()(embedded, normed).named("eh_in"), eh_proj).named("eh_out")

    def _attention(self, x: Value) -> Value:
        c, config = self.c, self.config
        heads, nope, v, rank = (
            config.num_attention_heads,
            config.qk_nope_head_dim,
            config.v_head_dim,
            config.kv_lora_rank,
        )
        q_a = Linear()(x, self._weight("self_attn.q_a_proj", config.q_lora_rank, config.hidden_size))
        q_residual = self._norm(q_a.named("q_a"), "self_attn.q_a_layernorm").named("q_a_normed")
        query = Linear()(q_residual, self._weight("self_attn.q_b_proj", heads * nope, config.q_lora_rank)).named("q")
        kv_a = Linear()(x, self._weight("self_attn.kv_a_proj_with_mqa", rank, config.hidden_size))
        latent_row = self._norm(kv_a.named("kv_a"), "self_attn.kv_a_layernorm").named("latent")
        latent = self._append("latent_cache", latent_row, rows_per_entry=1)
        with c.block("indexer"):
            selected = self._indexer(x, q_residual)
        kv_b = self._weight("self_attn.kv_b_proj", heads * (nope + v), rank)
        absorbed = AbsorbQuery(v_head_dim=v)(SplitHeads(num_heads=heads)(query).named("q_heads"), kv_b).named(
            "q_latent"
        )
        # the width of a query head, not of a latent
        attend = SparseMlaAttention(scale=config.qk_head_dim**-0.5)
        attended = attend(latent, absorbed, selected, self.block_table).named("attended")
        values = AbsorbValue(v_head_dim=v, qk_nope_head_dim=nope)(attended, kv_b).named("attn_heads")
        return Linear()(values, self._weight("self_attn.o_proj", config.hidden_size, heads * v)).named("attn_out")

    def _indexer(self, x: Value, q_residual: Value) -> Value:
        config, width, pool = self.config, self.config.index_head_dim, self.config.index_kpool
        prefix = "self_attn.indexer."
        wq_b = self._weight(f"{prefix}wq_b", config.index_n_heads * width, config.q_lora_rank)
        query = Linear()(q_residual, wq_b).named("idx_q")
        raw_key = Linear()(x, self._weight(f"{prefix}wk", width, config.hidden_size))
        k_norm = (self._weight(f"{prefix}k_norm.weight", width), self._weight(f"{prefix}k_norm.bias", width))
        key = LayerNorm(eps=K_NORM_EPS)(raw_key.named("idx_k_raw"), *k_norm).named("idx_k")
        gate = Linear()(x, self._weight(f"{prefix}index_kpool_compress_gate", width, config.hidden_size))
        gate = gate.named("idx_gate")
        head_weights = Linear()(x, self._weight(f"{prefix}weights_proj", config.index_n_heads, config.hidden_size))
        head_weights = head_weights.named("idx_w")

        tail = self.c.state("tail", StateType("ring", self._type("num_sequences", "tail_depth", 2, width)))
        bias = self._weight(f"{prefix}index_kpool_compress_ape", pool, width)
        pooled = KeyPool(pool=pool)(tail, key, gate, bias, self.position, self.sequence).named("pool_key")
        self.c.state_output("tail", AppendTail()(tail, key, gate, self.position, self.sequence).named("next_tail"))
        index_keys = self._append("index_keys", pooled, rows_per_entry=pool)
        split = SplitHeads(num_heads=config.index_n_heads)(query).named("idx_q_heads")
        score = IndexerScores(pool=pool)
        scores = score(index_keys, split, head_weights, self.position, self.block_table).named("index_scores")
        return self._select(SelectTopk(topk=config.index_topk, pool=pool)(scores, self.position))

    def _select(self, chosen: Value) -> Value:
        """Apply index_share: what drafts 2..K take over from draft 1 is an output, and a feedback edge's target."""
        if self.decisions.index_share != "pools_and_new_rows":
            selected = chosen.named("selected")
            if self.decisions.index_share == "exact_set":
                self.c.output("selected", selected)
            return selected
        selected_at = self.c.input("selected_at", i64("n"))
        self.c.output("chosen", chosen.named("chosen"))
        self.c.output("selected_at", selected_at)
        # a chain of one extends nothing, yet the node has a row at least
        extend = ExtendSelection(rows=max(1, self.max_num_drafts - 1))
        return extend(chosen, selected_at, self.position).named("selected")

    def _moe(self, x: Value) -> Value:
        config, hidden = self.config, self.config.hidden_size
        experts, inter = config.n_routed_experts, config.moe_intermediate_size
        gate_weight = self.c.weight("mlp.gate.weight", f32(experts, hidden))
        logits = Linear()(Cast(dtype="f32")(x).named("router_in"), gate_weight).named("router_logits")
        router = TopkRouter(
            top_k=config.num_experts_per_tok,
            n_group=config.n_group,
            topk_group=config.topk_group,
            norm_topk_prob=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
        )
        ids, weights = router(logits, self.c.weight("mlp.gate.e_score_correction_bias", f32(experts)))
        ids, weights = ids.named("router_ids"), weights.named("router_weights")
        gate_up = self._weight("mlp.experts.gate_up_proj", experts, 2 * inter, hidden)
        down = self._weight("mlp.experts.down_proj", experts, hidden, inter)
        routed = RoutedExperts(limit=config.swiglu_limit)(x, ids, weights, gate_up, down).named("experts_out")
        with self.c.block("shared_experts"):
            width = inter * config.n_shared_experts
            gate = Linear()(x, self._weight("mlp.shared_experts.gate_proj", width, hidden))
            up = Linear()(x, self._weight("mlp.shared_experts.up_proj", width, hidden))
            active = Swiglu(limit=config.swiglu_limit)(gate.named("shared_gate"), up.named("shared_up")).named(
                "shared_active"
            )
            shared = Linear()(active, self._weight("mlp.shared_experts.down_proj", hidden, width)).named("shared_out")
        return Add()(routed, shared).named("moe_out")

    def _append(self, name: str, rows: Value, *, rows_per_entry: int) -> Value:
        entries = self.block_size // rows_per_entry
        slots = CacheSlots(entries_per_block=entries, rows_per_entry=rows_per_entry)(self.position, self.block_table)
        assert isinstance(rows.type, TensorType)
        cache_type = StateType("paged", self._type("num_blocks", entries, rows.type.shape[1]), rows_per_entry)
        cache = AppendCache()(self.c.state(name, cache_type), rows, slots.named(f"{name}_slots")).named(f"next_{name}")
        self.c.state_output(name, cache)
        return cache

    def _norm(self, x: Value, weight: str) -> Value:
        assert isinstance(x.type, TensorType)
        return RmsNorm(eps=self.config.rms_norm_eps)(x, self._weight(weight, *x.type.shape[1:]))

    def _weight(self, name: str, *dims: object) -> Value:
        return self.c.weight(name, self._type(*dims))

    def _type(self, *dims: object) -> TensorType:
        return TensorType.of(self.config.dtype, *dims)
