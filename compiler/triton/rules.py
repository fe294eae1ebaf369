"""The launches of one draft on a GPU, as fusion rules: which nodes each takes, and what may be read outside it.

Eleven launches per draft over nine regions: sparse attention and the routed experts are one node each and start two
kernels, since a GPU needs a barrier of the whole device in their middle. All rules are planned: they shape plans, and a
program that holds one refuses to run by name. The patterns are those of the circuit after folding weights, where the
products of one input are one product and its slices.

    1 entry             embed + enorm + hnorm + concat + eh_proj
    2 in_proj           input norm + q_a | kv_a | wk | gate | weights_proj
    3 q_up              q_a norm + q_b | wq_b, beside it latent, tail and pool key writes and pool completion
    4 absorb_index      W_UK absorb beside pool scores and the best pools
    5, 6 sparse_mla     split attention over the selection; combine + W_UV
    7 o_proj            o_proj + residual
    8 router_shared     post norm + router top-k beside shared gate_up
    9, 10 experts       routed gate_up + SwiGLU; down + weighted sum + shared + residual
    11 lm_head          head norm + lm_head + argmax, logits never in memory; a grammar's mask and the draft's
                        probability where the program has them; lm_head_int8 is the same over rows in eight bits,
                        lm_head_certified takes two launches: bounds from eight bits, then the rows that could win
"""

from circuit import Node
from compiler.pattern import Step
from compiler.registry import Numerics, lowers_region, tolerance
from compiler.triton.lowering.absorb_index import lower_absorb_index
from compiler.triton.lowering.context_writes import lower_context_writes
from compiler.triton.lowering.entry import lower_entry
from compiler.triton.lowering.experts import lower_experts
from compiler.triton.lowering.in_proj import lower_in_proj
from compiler.triton.lowering.lm_head import lower_lm_head
from compiler.triton.lowering.lm_head_certified import lower_lm_head_certified
from compiler.triton.lowering.lm_head_int8 import lower_lm_head_int8
from compiler.triton.lowering.o_proj import lower_o_proj
from compiler.triton.lowering.q_up import lower_q_up
from compiler.triton.lowering.router_shared import lower_router_shared
from compiler.triton.lowering.sparse_mla import lower_sparse_mla
from nodes import (
    AbsorbQuery,
    AbsorbValue,
    Add,
    AppendCache,
    AppendTail,
    Argmax,
    CacheSlots,
    Cast,
    CertifiedLinear,
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
    Slice,
    SparseMlaAttention,
    SplitHeads,
    Swiglu,
    TokenOfRow,
    TokenProbability,
    TopkRouter,
    TrimmedGrammarMask,
)

BACKEND = "triton"
_SUMS: Numerics = tolerance(1e-5, "sums run in another order, and the norm's scale is applied after the sum")
_SOFTMAX: Numerics = tolerance(1e-5, "an online softmax over splits")

# row r of the latent cache, its raw key and gate, and the pool that it may complete
_CACHE_WRITES = (
    Step("kv_norm", RmsNorm, {"x": "kv_a"}),
    Step("latent_slots", CacheSlots, {"position": "position", "block_table": "block_table"}),
    Step("next_latent", AppendCache, {"rows": "kv_norm", "slots": "latent_slots"}),
    Step("k_norm", LayerNorm, {"x": "idx_k"}),
    Step("pool_key", KeyPool, {"tail": "tail", "keys": "k_norm", "position": "position", "sequence": "sequence"}),
    Step("next_tail", AppendTail, {"tail": "tail", "keys": "k_norm", "position": "position", "sequence": "sequence"}),
    Step("key_slots", CacheSlots, {"position": "position", "block_table": "block_table"}),
    Step("next_keys", AppendCache, {"rows": "pool_key", "slots": "key_slots"}),
)
# the parts of the first product tie what is read from it to one draft
_PARTS_OF_IN_PROJ = (
    Step("in_proj", Linear, is_outside=True),
    Step("kv_a", Slice, {"x": "in_proj"}, is_outside=True),
    Step("idx_k", Slice, {"x": "in_proj"}, is_outside=True),
)

lowers_region(
    "entry",
    (
        Step("target_norm", RmsNorm, at_least=0),
        Step("embedded", Embedding),
        Step("e_norm", RmsNorm, {"x": "embedded"}),
        Step("h_norm", RmsNorm, {"x": "target_norm"}),
        Step("joined", Concat, {"left": "e_norm", "right": "h_norm"}),
        Step("eh_proj", Linear, {"x": "joined"}, leaves=True),
    ),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_entry)
lowers_region(
    "in_proj",
    (
        Step("norm", RmsNorm),
        Step("product", Linear, {"x": "norm"}),
        Step("parts", Slice, {"x": "product"}, leaves=True, at_most=None),
    ),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_in_proj)
lowers_region(
    "q_up",
    (
        *_PARTS_OF_IN_PROJ,
        Step("q_a", Slice, {"x": "in_proj"}, is_outside=True),
        Step("q_norm", RmsNorm, {"x": "q_a"}),
        Step("product", Linear, {"x": "q_norm"}),
        # one product alone where drafts 2..K take over a selection and ask for no index query
        Step("parts", Slice, {"x": "product"}, at_least=0, at_most=None),
        Step("heads", SplitHeads, {"x": ("parts", "product")}, leaves=True, at_most=None),
        *_CACHE_WRITES,
        Step("next_position", Increment, {"x": "position"}, leaves=True, at_least=0),
    ),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_q_up)
lowers_region(
    "context_writes",
    (*_PARTS_OF_IN_PROJ, *_CACHE_WRITES),
    backend=BACKEND,
    numerics=_SUMS,
    # pooling reads the ring as it was before the run, so it is written after
    launches=("context_writes", "context_tail"),
)(lower_context_writes)
lowers_region(
    "absorb_index",
    (
        Step("absorbed", AbsorbQuery, leaves=True),
        Step("scores", IndexerScores, {"position": "position"}, at_least=0),
        Step("chosen", SelectTopk, {"scores": "scores", "position": "position"}, leaves=True, at_least=0),
        Step("extended", ExtendSelection, {"selected": "chosen"}, leaves=True, at_least=0),
        # ties the query to the selection that it meets
        Step("attend", SparseMlaAttention, {"query": "absorbed", "selected": ("extended", "chosen")}, is_outside=True),
    ),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_absorb_index)
lowers_region(
    "sparse_mla",
    (
        Step("attended", SparseMlaAttention),
        Step("values", AbsorbValue, {"attended": "attended"}, leaves=True),
    ),
    backend=BACKEND,
    numerics=_SOFTMAX,
    launches=("mla_split", "combine_values"),
)(lower_sparse_mla)
lowers_region(
    "o_proj",
    (Step("product", Linear), Step("residual", Add, {"right": "product"}, leaves=True)),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_o_proj)
lowers_region(
    "router_shared",
    (
        Step("norm", RmsNorm, leaves=True),
        Step("wide", Cast, {"x": "norm"}),
        Step("logits", Linear, {"x": "wide"}),
        Step("router", TopkRouter, {"logits": "logits"}, leaves=True),
        Step("product", Linear, {"x": "norm"}),
        Step("gate", Slice, {"x": "product"}),
        Step("up", Slice, {"x": "product"}),
        Step("active", Swiglu, {"gate": "gate", "up": "up"}, leaves=True),
    ),
    backend=BACKEND,
    numerics=_SUMS,
)(lower_router_shared)
lowers_region(
    "experts",
    (
        Step("routed", RoutedExperts),
        Step("shared", Linear),
        Step("both", Add, {"left": "routed", "right": "shared"}),
        Step("residual", Add, {"right": "both"}, leaves=True),
    ),
    backend=BACKEND,
    numerics=_SUMS,
    launches=("experts_up", "experts_down"),
)(lower_experts)


def _head(product: type[Node]) -> tuple[Step, ...]:
    """The steps of the head over one kind of product."""
    return (
        Step("norm", RmsNorm, leaves=True),
        Step("logits", product, {"x": "norm"}),
        Step("allowed", GrammarMask, {"logits": "logits"}, at_least=0),
        Step("allowed_rows", TrimmedGrammarMask, {"logits": "logits"}, at_least=0),
        Step("draft", Argmax, {"logits": ("allowed", "allowed_rows", "logits")}, leaves=True),
        # a trimmed weight has a row for some tokens only
        Step("token", TokenOfRow, {"row": "draft"}, leaves=True, at_least=0),
        Step("confidence", TokenProbability, {"logits": "logits", "token": "draft"}, leaves=True, at_least=0),
    )


lowers_region("lm_head", _head(Linear), backend=BACKEND, numerics=_SUMS)(lower_lm_head)
# a probability is over all logits: a program that has it certifies nothing
lowers_region(
    "lm_head_certified",
    _head(CertifiedLinear)[:-1],
    backend=BACKEND,
    numerics=_SUMS,
    launches=("lm_head_bounds", "lm_head_rescore"),
)(lower_lm_head_certified)
lowers_region("lm_head_int8", _head(QuantisedLinear), backend=BACKEND, numerics=_SUMS, launches=("lm_head",))(
    lower_lm_head_int8
)
