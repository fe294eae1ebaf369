"""The nodes against the classes that transformers ships for this model, on random weights."""

import pytest
import torch
from torch import Tensor

from nodes import (
    AbsorbQuery,
    AbsorbValue,
    IndexerScores,
    KeyPool,
    LayerNorm,
    Linear,
    RmsNorm,
    RoutedExperts,
    SelectTopk,
    SparseMlaAttention,
    SplitHeads,
    Swiglu,
    TopkRouter,
)
from tests.support.node_cases import same_bits
from tests.support.rounding import num_differing, randn

glm = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next", reason="transformers is an extra")

F32, BF16 = torch.float32, torch.bfloat16
each_dtype = pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])


def config(**changes: object):
    made = glm.Glm5NextTextConfig(
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=10,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=0,
        v_head_dim=4,
        index_n_heads=16,  # enough that no pool scores exactly 0: transformers leaves ties open
        index_head_dim=8,
        index_topk=8,
        index_kpool=4,
        index_kpool_always_select_tail=True,
        n_routed_experts=12,
        num_experts_per_tok=3,
        moe_intermediate_size=5,
        swiglu_limit=1.5,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        vocab_size=32,
    )
    for name, value in changes.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    made._attn_implementation = "eager"
    made._experts_implementation = "eager"
    return made


def filled(module: torch.nn.Module, *, dtype: torch.dtype, seed: int = 0) -> torch.nn.Module:
    for number, tensor in enumerate([*module.parameters(), *module.buffers()]):
        tensor.data = randn(*tensor.shape, seed=seed + number).to(dtype)
    return module.requires_grad_(False)


@each_dtype
def test_rms_norm(dtype: torch.dtype) -> None:
    module = filled(glm.Glm5NextTextRMSNorm(63, eps=1e-5), dtype=dtype)
    x = randn(5, 63, seed=7, dtype=dtype)
    assert same_bits(RmsNorm(eps=1e-5).reference(x, module.weight.data), module(x))


@each_dtype
def test_swiglu(dtype: torch.dtype) -> None:
    module = filled(glm.Glm5NextTextMLP(config(), intermediate_size=5), dtype=dtype)
    x = randn(5, 12, seed=7, dtype=dtype)
    gate, up, down = (projection.weight.data for projection in (module.gate_proj, module.up_proj, module.down_proj))
    active = Swiglu(limit=1.5).reference(Linear().reference(x, gate), Linear().reference(x, up))
    assert same_bits(Linear().reference(active, down), module(x))


@pytest.mark.parametrize("norm_topk_prob", [True, False], ids=["normed", "raw"])
@pytest.mark.parametrize("n_group, topk_group", [(1, 1), (3, 2), (4, 1)])
def test_topk_router(n_group: int, topk_group: int, norm_topk_prob: bool) -> None:
    made = config(n_group=n_group, topk_group=topk_group, norm_topk_prob=norm_topk_prob)
    module = filled(glm.Glm5NextTextTopkRouter(made), dtype=F32)
    logits, weights, ids = module(randn(33, 12, seed=7))
    node = TopkRouter(top_k=3, n_group=n_group, topk_group=topk_group, norm_topk_prob=norm_topk_prob, scale=2.5)
    got_ids, got_weights = node.reference(logits, module.e_score_correction_bias)
    in_order = ids.argsort(dim=1)
    assert same_bits(got_ids, ids.gather(1, in_order))
    torch.testing.assert_close(got_weights, weights.gather(1, in_order), rtol=1e-6, atol=0)


def test_routed_experts() -> None:
    module = filled(glm.Glm5NextTextExperts(config()), dtype=F32)
    x, ids = randn(5, 12, seed=7), torch.tensor([[0, 3, 11], [1, 2, 3], [0, 1, 2], [5, 6, 7], [0, 10, 11]])
    weights = randn(5, 3, seed=8).sigmoid()
    got = RoutedExperts(limit=1.5).reference(x, ids, weights, module.gate_up_proj.data, module.down_proj.data)
    torch.testing.assert_close(got, module(x, ids, weights), rtol=1e-5, atol=1e-5)


def pooled_keys(keys: Tensor, gates: Tensor, bias: Tensor, *, pool: int) -> Tensor:
    """Return the key of each full pool of one sequence, all rows in one run, [rows // pool, d]."""
    num_rows = keys.shape[0]
    tail = torch.full((2, pool, 2, keys.shape[1]), float("nan"), dtype=keys.dtype)
    position, sequence = torch.arange(num_rows), torch.ones(num_rows, dtype=torch.int64)
    made = KeyPool(pool=pool).reference(tail, keys, gates, bias, position, sequence)
    return made[pool - 1 :: pool]


@each_dtype
@pytest.mark.parametrize("pool", [1, 4, 16])
def test_key_pool(pool: int, dtype: torch.dtype) -> None:
    module = filled(glm.Glm5NextTextIndexer(config(index_kpool=pool, index_topk=16), 0), dtype=dtype)
    keys, gates = randn(35, 8, seed=7, dtype=dtype), randn(35, 8, seed=8, dtype=dtype)
    packed = torch.cat([keys, gates, torch.ones(35, 1, dtype=dtype)], dim=1)[None]
    expected, _, valid = module.get_pooled_states(packed)
    got = pooled_keys(keys, gates, module.index_kpool_compress_ape.data, pool=pool)
    assert same_bits(got, expected[0, valid[0]])


@each_dtype
@pytest.mark.parametrize("pool, topk", [(4, 8), (4, 100), (1, 5), (2, 7)])
def test_indexer(pool: int, topk: int, dtype: torch.dtype) -> None:
    module = filled(glm.Glm5NextTextIndexer(config(index_kpool=pool, index_topk=topk), 0), dtype=dtype)
    num_rows = 35
    x, q_resid = randn(num_rows, 12, seed=7, dtype=dtype), randn(num_rows, 10, seed=8, dtype=dtype)
    expected = module(x[None], q_resid[None], torch.ones(1, num_rows, dtype=torch.bool), None)[0]

    weights = {name: parameter.data for name, parameter in module.named_parameters()}
    keys = LayerNorm(eps=1e-6).reference(
        Linear().reference(x, weights["wk.weight"]), weights["k_norm.weight"], weights["k_norm.bias"]
    )
    gates = Linear().reference(x, weights["index_kpool_compress_gate"])
    query = SplitHeads(num_heads=16).reference(Linear().reference(q_resid, weights["wq_b.weight"]))
    head_weights = Linear().reference(x, weights["weights_proj.weight"])
    made = pooled_keys(keys, gates, weights["index_kpool_compress_ape"], pool=pool)
    # one entry per block, in order, after the null block; the last pool may be missing
    table = torch.arange(1, num_rows // pool + 2).expand(num_rows, -1)
    missing = torch.full((1, 8), float("nan"), dtype=dtype)
    cache = torch.cat([missing, made, missing]).unsqueeze(1)
    position = torch.arange(num_rows)
    scores = IndexerScores(pool=pool).reference(cache, query, head_weights, position, table)
    got = SelectTopk(topk=topk, pool=pool).reference(scores, position)
    for row in range(num_rows):
        assert got[row][got[row] >= 0].tolist() == sorted(token for token in expected[row].tolist() if token >= 0)
    assert (got[-1] >= 0).sum() == min(num_rows // pool, topk // pool) * pool + num_rows % pool


def test_attention_in_absorbed_form() -> None:
    module = filled(glm.Glm5NextTextAttention(config(indexer_types=["full"]), 0), dtype=F32)
    num_rows = 23
    x = randn(num_rows, 12, seed=7)
    expected, _, _ = module(x[None], torch.ones(1, num_rows, dtype=torch.bool))
    q_resid = module.q_a_layernorm(module.q_a_proj(x))
    selected = module.indexer(x[None], q_resid[None], torch.ones(1, num_rows, dtype=torch.bool), None)[0].long()
    query = SplitHeads(num_heads=3).reference(module.q_b_proj(q_resid))
    latent = torch.cat([torch.full((1, 8), float("nan")), module.kv_a_layernorm(module.kv_a_proj_with_mqa(x))])
    kv_b, table = module.kv_b_proj.weight, torch.arange(1, num_rows + 1).expand(num_rows, -1)
    attended = SparseMlaAttention(scale=6**-0.5).reference(
        latent.unsqueeze(1), AbsorbQuery(v_head_dim=4).reference(query, kv_b), selected, table
    )
    got = module.o_proj(AbsorbValue(v_head_dim=4, qk_nope_head_dim=6).reference(attended, kv_b))
    torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-4)
    assert num_differing(selected[-1], torch.arange(selected.shape[1])) > 0, "the last rows do not select everything"
