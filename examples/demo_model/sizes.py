"""The demo model's sizes: one function that gives the whole glm5_next configuration."""

from __future__ import annotations

from transformers import Glm5NextConfig

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|pad|>",
    "<|image|>",
    "<|video|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
)
VOCAB_SIZE = 2048
NUM_DRAFTS = 3
# the training window, in tokens: longer than the 96 + 128 tokens the demo generates
WINDOW = 256
MTP_LAYER = 4


def demo_config() -> Glm5NextConfig:
    """Return the configuration of the demo model: 4 layers, hidden 256, an MTP layer, a vestigial vision tower.

    `index_topk` 64 with `index_kpool` 4 keeps 16 of up to 56 pools at the demo's 224 tokens, so selection does drop
    pools. Eight index heads make an index score of exactly zero (every head's relu closed) rare: such scores tie,
    and a tie may be broken differently when K + 1 tokens are verified at once.
    """
    text = {
        "model_type": "glm5_next_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": MTP_LAYER,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "kv_lora_rank": 64,
        "q_lora_rank": 96,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "max_position_embeddings": 2048,
        "initializer_range": 0.04,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
        "indexer_types": ["full"] * MTP_LAYER,
        "index_topk": 64,
        "index_kpool": 4,
        "index_kpool_always_select_tail": True,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_share_for_mtp_iteration": False,
        "swiglu_limit": 10.0,
        "linear_head_dim": 32,
        "linear_num_heads": 8,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "hc_mult": 2,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 4,
    }
    # the class wants a vision tower; this is the smallest that builds (0.17 M parameters, untrained, unused)
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 32,
        "projection_intermediate_size": 32,
        "out_hidden_size": 256,
        "image_size": 28,
        "patch_size": 14,
    }
    return Glm5NextConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=2,
        video_token_id=3,
        image_start_token_id=4,
        image_end_token_id=5,
        video_start_token_id=6,
        video_end_token_id=7,
        tie_word_embeddings=False,
    )
