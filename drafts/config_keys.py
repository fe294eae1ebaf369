"""Which keys of a config.json the drafter checks, and which it leaves to the target: the table behind read_config.

A key in neither table, and not a field of DraftConfig, is unknown: listed and tolerated.
"""

from __future__ import annotations

from typing import Any

# what the drafter models: a key that is present must say exactly this
CHECKED_KEYS: dict[str, Any] = {
    "qk_rope_head_dim": 0,
    "hidden_act": "silu",
    "attention_bias": False,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_router_dtype": "float32",
    "mla_use_nope": True,
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "quantization_config": None,
    "compression_config": None,
}
# of these, absence is no statement, so the key itself is required
REQUIRED_CHECKED_KEYS = ("qk_rope_head_dim",)

# known, and the target's own business
TARGET_KEYS = frozenset(
    {
        # the target's layers
        "intermediate_size",
        "head_dim",
        "num_key_value_heads",
        "attention_dropout",
        "layer_types",
        "mlp_layer_types",
        "indexer_types",
        "index_topk_pattern",
        "index_topk_freq",
        "index_skip_topk_offset",
        "first_k_dense_replace",
        "moe_layer_freq",
        "linear_attn_config",
        "linear_head_dim",
        "linear_num_heads",
        "linear_conv_kernel_dim",
        "linear_lower_bound",
        "mhc",
        "hc_mult",
        "hc_eps",
        "hc_sinkhorn_iters",
        "num_local_experts",
        # rotary positions, which a layer without them ignores
        "indexer_rope_interleave",
        "rope_interleave",
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "partial_rotary_factor",
        # other modalities
        "vision_config",
        "image_token_id",
        "video_token_id",
        "image_start_token_id",
        "image_end_token_id",
        "video_start_token_id",
        "video_end_token_id",
        # training
        "initializer_range",
        "router_aux_loss_coef",
        "output_router_logits",
        "ep_size",
        "pretraining_tp",
        # generation
        "use_cache",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        # serialisation
        "architectures",
        "auto_map",
        "transformers_version",
        "_name_or_path",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
    }
)
