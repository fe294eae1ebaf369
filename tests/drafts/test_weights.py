"""load_weights: all is checked before any is read, and every miss names tensor and file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from circuit.errors import CheckpointError
from drafts import checkpoint as checkpoint_module
from drafts.checkpoint import read_headers
from drafts.config import DraftConfig, read_config
from drafts.weights import head_weight_specs, load_weights, unused_layer_tensors
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint

LAYER = "model.language_model.layers.3."
VECTORS = Path(__file__).parents[1] / "golden" / "vectors"


@pytest.fixture
def config() -> DraftConfig:
    return tiny_config()


@pytest.fixture
def checkpoint(tmp_path: Path, config: DraftConfig) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", config, tiny_weights(config))


def rewrite(checkpoint: Path, *, drop: str | None = None, **changes: Tensor) -> Path:
    """Write the checkpoint's file again without `drop` and with tensors changed, named below the layer by `a__b`."""
    stored = load_file(checkpoint / "model.safetensors")
    stored |= {LAYER + name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in stored.items() if name != drop}, checkpoint / "model.safetensors")
    return checkpoint


def refusal(checkpoint: Path, config: DraftConfig) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_weights(checkpoint, head_weight_specs(config))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_come_back_as_they_were(checkpoint: Path, config: DraftConfig) -> None:
    loaded, written = load_weights(checkpoint, head_weight_specs(config)), tiny_weights(config)
    assert loaded.keys() == written.keys()
    assert all(torch.equal(loaded[name], written[name]) for name in written)
    assert read_config(checkpoint) == read_config(checkpoint / "config.json")


def test_gate_rows_go_before_up_rows(checkpoint: Path, config: DraftConfig) -> None:
    stored = load_file(checkpoint / "model.safetensors")
    fused = load_weights(checkpoint, head_weight_specs(config))["mlp.experts.gate_up_proj"]
    for expert in range(config.n_routed_experts):
        place = f"{LAYER}mlp.experts.{expert}."
        expected = torch.cat((stored[f"{place}gate_proj.weight"], stored[f"{place}up_proj.weight"]))
        assert torch.equal(fused[expert], expected)


def test_router_stays_float32_and_the_rest_is_converted(checkpoint: Path) -> None:
    config = tiny_config(dtype=torch.bfloat16)
    loaded, written = load_weights(checkpoint, head_weight_specs(config)), tiny_weights(tiny_config())
    router = {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"}
    for name, weight in loaded.items():
        assert weight.dtype == (torch.float32 if name in router else torch.bfloat16)
        assert torch.equal(weight, written[name].to(weight.dtype))


def test_tied_lm_head_is_the_embedding(checkpoint: Path) -> None:
    config = tiny_config(tie_word_embeddings=True)
    loaded = load_weights(rewrite(checkpoint, drop="lm_head.weight"), head_weight_specs(config))
    assert loaded["lm_head"] is loaded["embed_tokens"]


def test_target_norm_is_needed_only_where_it_is_asked_for(checkpoint: Path, config: DraftConfig) -> None:
    rewrite(checkpoint, drop="model.language_model.norm.weight")
    assert "target_norm" not in load_weights(checkpoint, head_weight_specs(config, target_norm=False))
    assert "model.language_model.norm.weight" in refusal(checkpoint, config)


def test_shards_are_read_where_the_index_says(checkpoint: Path, config: DraftConfig) -> None:
    make_shards(checkpoint)
    loaded, written = load_weights(checkpoint, head_weight_specs(config)), tiny_weights(config)
    assert all(torch.equal(loaded[name], written[name]) for name in written)


def make_shards(checkpoint: Path) -> Path:
    """Split the single file: target in one shard, the MTP layer over two others, every other tensor in each."""
    stored = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    layer = sorted(name for name in stored if name.startswith(LAYER))
    shards = {
        "a.safetensors": [n for n in stored if n not in layer],
        "b.safetensors": layer[::2],
        "c.safetensors": layer[1::2],
    }
    for shard, names in shards.items():
        save_file({name: stored[name] for name in names}, checkpoint / shard)
    placed = {name: shard for shard, names in shards.items() for name in names}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return checkpoint


def test_text_only_names_load(checkpoint: Path, config: DraftConfig) -> None:
    stored = load_file(checkpoint / "model.safetensors")
    renamed = {name.replace("model.language_model.", "model."): tensor for name, tensor in stored.items()}
    save_file(renamed, checkpoint / "model.safetensors")
    loaded = load_weights(checkpoint, head_weight_specs(config))
    assert torch.equal(loaded["eh_proj"], tiny_weights(config)["eh_proj"])
    assert unused_layer_tensors(checkpoint, config) == ()


def test_unknown_layer_tensors_are_listed(checkpoint: Path, config: DraftConfig) -> None:
    rewrite(checkpoint, embed_tokens__weight=torch.zeros(2), shared_head__head__weight=torch.zeros(2))
    assert unused_layer_tensors(checkpoint, config) == (
        f"{LAYER}embed_tokens.weight",
        f"{LAYER}shared_head.head.weight",
    )
    load_weights(checkpoint, head_weight_specs(config))


@pytest.mark.parametrize("name", ["enorm.weight", "mlp.gate.e_score_correction_bias", "mlp.experts.5.up_proj.weight"])
def test_missing_tensor_is_named_with_file_and_close_names(checkpoint: Path, config: DraftConfig, name: str) -> None:
    message = refusal(rewrite(checkpoint, drop=LAYER + name), config)
    assert LAYER + name in message
    assert str(checkpoint / "model.safetensors") in message
    assert "close names: model.language_model" in message


def test_wrong_shape_says_expected_and_got(checkpoint: Path, config: DraftConfig) -> None:
    message = refusal(rewrite(checkpoint, self_attn__q_a_proj__weight=torch.zeros(13, 20)), config)
    assert "self_attn.q_a_proj.weight: expected shape [14, 20], got [13, 20]" in message


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool], ids=str)
def test_other_dtypes_are_refused(checkpoint: Path, config: DraftConfig, dtype: torch.dtype) -> None:
    message = refusal(rewrite(checkpoint, eh_proj__weight=torch.zeros(20, 40).to(dtype)), config)
    assert "eh_proj.weight: expected F32, BF16, F16 or F64" in message


def test_nothing_is_read_before_all_is_checked(
    checkpoint: Path, config: DraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(checkpoint, drop=f"{LAYER}mlp.experts.5.down_proj.weight")  # the last one that is checked
    opened = checkpoint_module.safe_open

    class HeadersOnly:
        def __init__(self, *arguments: object, **options: object) -> None:
            self.file = opened(*arguments, **options)

        def __enter__(self) -> HeadersOnly:
            self.file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.file.__exit__(*error)

        def keys(self) -> list[str]:
            return self.file.keys()

        def get_slice(self, name: str) -> object:
            return self.file.get_slice(name)

    monkeypatch.setattr(checkpoint_module, "safe_open", HeadersOnly)
    assert "experts.5.down_proj" in refusal(checkpoint, config)


def test_nan_is_accepted_in_routed_experts_only(checkpoint: Path, config: DraftConfig) -> None:
    rewrite(checkpoint, mlp__experts__4__down_proj__weight=torch.full((20, 9), torch.nan))
    loaded = load_weights(checkpoint, head_weight_specs(config))
    assert loaded["mlp.experts.down_proj"].isnan().flatten(1).any(1).tolist() == [False] * 4 + [True, False]
    rewrite(checkpoint, hnorm__weight=torch.tensor([1.0] * 19 + [torch.nan]))
    assert "hnorm.weight: expected numbers, got NaN" in refusal(checkpoint, config)


@pytest.mark.parametrize("kept", [0, 7, 400, -1], ids=["empty", "length", "header", "last byte"])
def test_truncated_file_is_refused(checkpoint: Path, config: DraftConfig, kept: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "expected a whole safetensors file" in refusal(checkpoint, config)


def test_pickle_is_never_opened(tmp_path: Path, config: DraftConfig) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    assert "the pickle pytorch_model.bin, which is never opened" in refusal(tmp_path, config)
    assert "pickle" in refusal(tmp_path / "pytorch_model.bin", config)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n")
    assert "expected a whole safetensors file" in refusal(tmp_path, config)


def test_missing_folder_and_empty_folder_are_refused(tmp_path: Path, config: DraftConfig) -> None:
    assert "no such path" in refusal(tmp_path / "absent", config)
    assert "expected model.safetensors or model.safetensors.index.json, got neither" in refusal(tmp_path, config)


@pytest.mark.parametrize(
    "placed, names",
    [
        ({"x": "../c.safetensors"}, "beside the index"),
        ({"x": "pytorch_model.bin"}, "beside the index"),
        ({"x": 3}, "beside the index"),
        ({}, "weight_map"),
        ([], "weight_map"),
        ({"x": "a.safetensors"}, "expected tensor 'x'"),
        ({"x": "absent.safetensors"}, "no such file"),
    ],
    ids=str,
)
def test_bad_index_is_refused(checkpoint: Path, config: DraftConfig, placed: object, names: str) -> None:
    make_shards(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert names in refusal(checkpoint, config)


def test_broken_index_is_refused(checkpoint: Path, config: DraftConfig) -> None:
    make_shards(checkpoint)
    for text in ("", "{", "[1]"):
        (checkpoint / "model.safetensors.index.json").write_text(text)
        assert "index.json: expected" in refusal(checkpoint, config)


@pytest.mark.parametrize("golden", sorted(VECTORS.glob("ckpt_*")), ids=lambda path: path.name)
def test_golden_checkpoints_hold_nothing_unread(golden: Path) -> None:
    config = read_config(golden)
    specs = head_weight_specs(config)
    sources = {source for spec in specs for source in spec.sources}
    assert sources == read_headers(golden).tensors.keys()
    assert not any(weight.isnan().any() for weight in load_weights(golden, specs).values())
