"""context_writes: what rows that only fill the caches leave there, and the arguments of any row's writes."""

from collections.abc import Mapping

from circuit import LoweringError
from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Argument, Constant
from compiler.triton.tiles import power_of_two
from nodes import CacheSlots, KeyPool, LayerNorm, RmsNorm


def lower_context_writes(emit: RegionEmission) -> None:
    """Two launches: latents and pooled keys, which read the ring as it was; then the ring."""
    arguments, constants = write_arguments(emit)
    rows = emit.sizes(emit.call("k_norm").results[0])[0]
    emit.launch(
        "context_writes",
        "cache_writes.context_writes",
        grid=(rows,),
        arguments=arguments,
        constants=constants,
        # one warp reduces without a barrier, and as many rows are at work as with four, which hold fewer registers each
        num_warps=1,
    )
    ring = ("tail_ptr", "raw_key_ptr", "gate_ptr", "k_gain_ptr", "k_bias_ptr", "position_ptr", "sequence_ptr")
    emit.launch(
        "context_tail",
        "cache_writes.context_tail",
        grid=(rows,),
        arguments={
            **{name: arguments[name] for name in ring},
            "num_rows": rows,
            "raw_key_stride": arguments["raw_key_stride"],
            "gate_stride": arguments["gate_stride"],
        },
        constants={name: constants[name] for name in ("WIDTH", "DEPTH", "K_EPS", "BLOCK_D")},
        num_warps=1,
    )


def write_arguments(emit: RegionEmission) -> tuple[Mapping[str, Argument], Mapping[str, Constant]]:
    """Return the arguments and constants that the cache writes of a region take, by the kernels' names.

    LoweringError where the caches hold other entries than a row and a pool.
    """
    kv_norm, k_norm, pooling = (emit.call(step) for step in ("kv_norm", "k_norm", "pool_key"))
    latent_slots, key_slots = emit.call("latent_slots"), emit.call("key_slots")
    assert isinstance(kv_norm.node, RmsNorm)
    assert isinstance(k_norm.node, LayerNorm)
    assert isinstance(pooling.node, KeyPool)
    assert isinstance(latent_slots.node, CacheSlots)
    assert isinstance(key_slots.node, CacheSlots)
    pool, per_entry = pooling.node.pool, (latent_slots.node.rows_per_entry, key_slots.node.rows_per_entry)
    if per_entry != (1, pool):
        raise LoweringError(
            f"region {emit.rule.name!r}: expected 1 row a latent and {pool} a pooled key, the pool, got {per_entry}; "
            "declare the slots of both caches so"
        )
    kv_a, kv_gain = (emit.view(value) for value in kv_norm.args)
    raw_key, k_gain, k_bias = (emit.view(value) for value in k_norm.args)
    tail, _, gate, pool_bias, position, sequence = (emit.view(value) for value in pooling.args)
    block_table = emit.view(latent_slots.args[1])
    latent, width, depth = kv_a.shape[1], raw_key.shape[1], tail.shape[1]
    arguments: dict[str, Argument] = {
        "latent_ptr": emit.view(emit.call("next_latent").results[0]),
        "index_keys_ptr": emit.view(emit.call("next_keys").results[0]),
        "tail_ptr": tail,
        "kv_a_ptr": kv_a,
        "kv_gain_ptr": kv_gain,
        "raw_key_ptr": raw_key,
        "gate_ptr": gate,
        "k_gain_ptr": k_gain,
        "k_bias_ptr": k_bias,
        "pool_bias_ptr": pool_bias,
        "position_ptr": position,
        "sequence_ptr": sequence,
        "block_table_ptr": block_table,
        "kv_a_stride": kv_a.row_stride,
        "raw_key_stride": raw_key.row_stride,
        "gate_stride": gate.row_stride,
        "block_table_stride": block_table.row_stride,
    }
    constants: dict[str, Constant] = {
        "LATENT": latent,
        "WIDTH": width,
        "POOL": pool,
        "DEPTH": depth,
        "ROWS_A_BLOCK": latent_slots.node.entries_per_block,
        "POOLS_A_BLOCK": key_slots.node.entries_per_block,
        "KV_EPS": kv_norm.node.eps,
        "K_EPS": k_norm.node.eps,
        "BLOCK_L": power_of_two(latent),
        "BLOCK_D": power_of_two(width),
        "BLOCK_P": power_of_two(pool),
    }
    return arguments, constants
