"""read_config: both spellings load, every refusal is one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from circuit.errors import ConfigError
from drafts.config import DraftConfig, read_config
from tests.drafts.tiny_head import TEXT_KEYS, config_document

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"


def write(folder: Path, document: Any) -> Path:
    file = folder / "config.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def refusal(folder: Path, document: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(write(folder, document))
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / "config.json") in message
    assert ": expected " in message
    return message


@pytest.mark.parametrize("checkpoint", sorted(VECTORS.glob("ckpt_*")), ids=lambda path: path.name)
def test_released_spelling_loads_with_every_key_known(checkpoint: Path) -> None:
    config = read_config(checkpoint)
    assert config.unknown_keys == ()
    assert "text_config.hc_mult" in config.ignored_keys
    assert "vision_config" in config.ignored_keys
    assert config.mtp_layer == config.num_hidden_layers
    assert config.dtype == (torch.bfloat16 if checkpoint.name.endswith("bf16") else torch.float32)


def test_saved_spelling_loads(tmp_path: Path) -> None:
    # save_pretrained drops scoring_func and the like, writes head_dim 0 and renames the attention layers
    document = config_document(head_dim=0, layer_types=["linear_attention"] * 3, output_router_logits=False)
    document |= {"transformers_version": "5.24.0", "image_token_id": 2}
    config = read_config(write(tmp_path, document))
    assert config.unknown_keys == ()
    assert config.index_topk_pools == 2
    assert config.selected_width == 11


def test_flat_config_loads_like_the_nested_one(tmp_path: Path) -> None:
    flat = read_config(write(tmp_path, TEXT_KEYS | {"dtype": "float32"}))
    nested = read_config(write(tmp_path, config_document()))
    assert flat.model_dump(exclude={"ignored_keys"}) == nested.model_dump(exclude={"ignored_keys"})


def test_folder_and_file_are_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, config_document())
    assert read_config(tmp_path) == read_config(file)


def test_unknown_keys_are_listed_with_their_place(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, config_document(index_frobnicate=3) | {"novel": {}}))
    assert config.unknown_keys == ("novel", "text_config.index_frobnicate")


def test_layer_lists_of_the_target_are_not_read(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, config_document(indexer_types=[], mlp_layer_types=["dense"], layer_types=7)))
    assert "text_config.layer_types" in config.ignored_keys


@pytest.mark.parametrize("value, expected", [(True, True), (False, False), (None, False)], ids=str)
def test_index_share_key_loads(tmp_path: Path, value: bool | None, expected: bool) -> None:
    document = config_document()
    document["text_config"]["index_share_for_mtp_iteration"] = value
    assert read_config(write(tmp_path, document)).index_share_for_mtp_iteration is expected


def test_dtype_is_overridden_and_inherited(tmp_path: Path) -> None:
    document = config_document()
    document["dtype"] = "bfloat16"
    document["text_config"]["dtype"] = None
    file = write(tmp_path, document)
    assert read_config(file).dtype == torch.bfloat16
    assert read_config(file, dtype=torch.float64).dtype == torch.float64
    document["text_config"]["torch_dtype"] = "torch.float16"
    assert read_config(write(tmp_path, document)).dtype == torch.float16
    document = config_document()
    del document["dtype"]
    assert "dtype=" in refusal(tmp_path, document)


UNMODELLED = [
    ("qk_rope_head_dim", 64),
    ("qk_rope_head_dim", None),
    ("hidden_act", "gelu"),
    ("attention_bias", True),
    ("scoring_func", "softmax"),
    ("topk_method", "greedy"),
    ("moe_router_dtype", "bfloat16"),
    ("mla_use_nope", False),
    ("index_kpool_compress", False),
    ("index_kpool_always_select_tail", False),
    ("quantization_config", {"quant_method": "fp8"}),
    ("num_nextn_predict_layers", 0),
    ("num_nextn_predict_layers", None),
    ("num_nextn_predict_layers", 2),
    ("num_key_value_heads", 1),
    ("index_kpool", None),
    ("index_topk", None),
    ("index_topk", 10),
    ("qk_head_dim", 8),
    ("n_group", 4),
    ("n_group", 6),
    ("topk_group", 2),
    ("num_experts_per_tok", 7),
    ("n_shared_experts", 0),
    ("model_type", "deepseek_v3"),
    ("num_local_experts", 5),
]


@pytest.mark.parametrize("key, value", UNMODELLED, ids=lambda value: str(value))
def test_what_is_not_modelled_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    assert key in refusal(tmp_path, config_document(**{key: value}))


def test_heads_that_are_not_stated_are_named_as_such(tmp_path: Path) -> None:
    document = config_document(num_key_value_heads=4)
    del document.get("text_config", document)["num_attention_heads"]
    assert "num_attention_heads: expected a value, got no such key" in refusal(tmp_path, document)


def test_too_few_experts_in_the_best_groups_is_refused(tmp_path: Path) -> None:
    document = config_document(n_group=3, topk_group=1, num_experts_per_tok=3)
    assert "topk_group" in refusal(tmp_path, document)


def test_quantised_top_level_is_refused(tmp_path: Path) -> None:
    document = config_document() | {"quantization_config": {"bits": 4}}
    assert "quantization_config" in refusal(tmp_path, document)
    assert read_config(write(tmp_path, config_document() | {"quantization_config": None})).unknown_keys == ()


def test_tied_embeddings_must_agree(tmp_path: Path) -> None:
    assert "tie_word_embeddings" in refusal(tmp_path, config_document() | {"tie_word_embeddings": True})
    tied = config_document(tie_word_embeddings=True) | {"tie_word_embeddings": True}
    assert read_config(write(tmp_path, tied)).tie_word_embeddings


NONSENSE = [-1, 0, 2.5, "64", True, [64], {}, 10**30]


@pytest.mark.parametrize("key", ["hidden_size", "index_kpool", "num_experts_per_tok", "vocab_size"])
@pytest.mark.parametrize("value", NONSENSE, ids=str)
def test_nonsense_sizes_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    assert key in refusal(tmp_path, config_document(**{key: value}))


@pytest.mark.parametrize("value", [-1e-5, 0, "1e-5", 1e999], ids=str)
def test_nonsense_eps_is_refused(tmp_path: Path, value: Any) -> None:
    text = json.dumps(config_document(rms_norm_eps="EPS")).replace(
        '"EPS"', "1e999" if value == 1e999 else json.dumps(value)
    )
    assert "rms_norm_eps" in refusal(tmp_path, text)


@pytest.mark.parametrize("key", sorted(key for key, field in DraftConfig.model_fields.items() if field.is_required()))
def test_each_required_key_is_missed_by_name(tmp_path: Path, key: str) -> None:
    document = config_document(**{key: None})
    if key in ("dtype", "model_type"):
        del document[key]
    if key == "qk_head_dim":  # follows from the nope width
        assert read_config(write(tmp_path, document)).qk_head_dim == 6
        return
    assert key in refusal(tmp_path, document)


@pytest.mark.parametrize(
    "text, names",
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "object"),
        ("null", "object"),
        ('{"a": NaN}', "NaN"),
        ('{"text_config": {"hidden_size": 1, "hidden_size": 2}}', "twice"),
        ('{"text_config": []}', "text_config"),
        ('{"a": ' + "9" * 5000 + "}", "JSON"),
        ("[" * 100_000, "JSON"),
        ("\ud800", "JSON"),
    ],
    ids=["empty", "cut", "list", "null", "nan", "twice", "text_config", "digits", "deep", "encoding"],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=names) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path)
