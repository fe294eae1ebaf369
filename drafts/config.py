"""The part of a checkpoint's config.json that the drafter reads, with every other key classified.

Both spellings load: the released one and the one transformers 5.24 writes, nested under `text_config` or flat. A key
that would make the MTP layer another model than ours is refused here, before a weight is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from circuit.errors import ConfigError
from drafts.config_keys import CHECKED_KEYS, REQUIRED_CHECKED_KEYS, TARGET_KEYS

MODEL_TYPES = ("glm5_next", "glm5_next_text")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

Count = Annotated[int, Field(gt=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DraftConfig(BaseModel):
    """Dimensions and constants of the MTP layer, named like config.json's keys.

    `dtype` is the model dtype: weights, activations and caches. `unknown_keys` were met and tolerated, `ignored_keys`
    are known and belong to the target; both carry their place, as `text_config.hc_mult`.
    Not supported, hence refused: RoPE, more than one MTP layer, quantised weights, biases in attention, another router.
    Source: transformers 5.24, Glm5NextTextConfig, and the released GLM-5.3-Flash spelling.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    model_type: str
    dtype: torch.dtype
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count  # of the target; the MTP layer carries this number in the checkpoint
    num_nextn_predict_layers: Count
    max_position_embeddings: Count
    tie_word_embeddings: bool = False
    rms_norm_eps: Positive
    # attention
    num_attention_heads: Count
    q_lora_rank: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_head_dim: Count
    v_head_dim: Count
    # indexer
    index_n_heads: Count
    index_head_dim: Count
    index_kpool: Count
    index_topk: Count
    index_share_for_mtp_iteration: bool = False
    # experts
    n_routed_experts: Count
    n_shared_experts: Count
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    n_group: Count = 1
    topk_group: Count = 1
    norm_topk_prob: bool
    routed_scaling_factor: Positive
    swiglu_limit: Positive
    unknown_keys: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()

    @property
    def mtp_layer(self) -> int:
        """The number the MTP layer carries in checkpoint names; no per-layer list of the config has such an entry."""
        return self.num_hidden_layers

    @property
    def index_topk_pools(self) -> int:
        """Pools a row may choose: index_topk // index_kpool."""
        return self.index_topk // self.index_kpool

    @property
    def selected_width(self) -> int:
        """Width of a selection: every token of the chosen pools, then the tail's kpool - 1 places."""
        return self.index_topk + self.index_kpool - 1

    @model_validator(mode="after")
    def _check_relations(self) -> DraftConfig:
        for key, holds, expected in self._relations():
            if not holds:
                raise ValueError(f"{key}: expected {expected}, got {getattr(self, key)!r}")
        return self

    def _relations(self) -> tuple[tuple[str, bool, str], ...]:
        """(key, whether it fits the other keys, what was expected) for each rule between keys."""
        group_size = self.n_routed_experts // self.n_group
        return (
            ("model_type", self.model_type in MODEL_TYPES, " or ".join(MODEL_TYPES)),
            ("dtype", self.dtype in DTYPES.values(), "one of " + ", ".join(DTYPES)),
            ("num_nextn_predict_layers", self.num_nextn_predict_layers == 1, "1, the only depth the drafter models"),
            (
                "qk_head_dim",
                self.qk_head_dim == self.qk_nope_head_dim,
                f"qk_nope_head_dim {self.qk_nope_head_dim}, for there is no rope part",
            ),
            ("index_topk", self.index_topk % self.index_kpool == 0, f"a multiple of index_kpool {self.index_kpool}"),
            (
                "num_experts_per_tok",
                self.num_experts_per_tok <= self.n_routed_experts,
                f"at most n_routed_experts {self.n_routed_experts}",
            ),
            (
                "n_group",
                self.n_routed_experts % self.n_group == 0 and (self.n_group == 1 or group_size >= 2),
                f"a divisor of n_routed_experts {self.n_routed_experts} with two experts or more a group",
            ),
            ("topk_group", self.topk_group <= self.n_group, f"at most n_group {self.n_group}"),
            (
                "topk_group",
                self.topk_group * group_size >= self.num_experts_per_tok,
                f"enough groups of {group_size} to choose {self.num_experts_per_tok} experts from",
            ),
        )


DRAFTER_KEYS = frozenset(DraftConfig.model_fields) - {"dtype", "unknown_keys", "ignored_keys"}


def read_config(path: Path, *, dtype: torch.dtype | None = None) -> DraftConfig:
    """Read and check the drafter's part of `path`, a checkpoint folder or its config.json.

    `dtype` overrides the checkpoint's. Raises ConfigError, one line: file, key, expected, got, next step.
    """
    file = path / "config.json" if path.is_dir() else path
    document = _read_json_object(file)
    text, prefix = _text_section(document, file)
    _refuse_unmodelled(text, document, prefix, file)
    fields = {key: text[key] for key in DRAFTER_KEYS if key in text}
    _settle_expert_count(fields, text, prefix, file)
    _settle_model_type(fields, document)
    _settle_tie(fields, text, document, prefix, file)
    fields.setdefault("qk_head_dim", fields.get("qk_nope_head_dim"))
    # null says "not stated"; only here, for a null size is a fault
    if fields.get("index_share_for_mtp_iteration", False) is None:
        del fields["index_share_for_mtp_iteration"]
    fields["dtype"] = _settle_dtype(text, document, file) if dtype is None else dtype
    if not fields.get("num_nextn_predict_layers"):
        raise ConfigError(
            f"{file}: {prefix}num_nextn_predict_layers: expected 1, "
            f"got {_shown(text.get('num_nextn_predict_layers', 'no such key'))}; "
            "this checkpoint has no MTP layer to draft with, use one that ships it"
        )
    unknown, ignored = _classify(text, document, prefix)
    try:
        return DraftConfig(**fields, unknown_keys=unknown, ignored_keys=ignored)
    except ValidationError as error:
        raise ConfigError(_first_fault(error, prefix, file)) from None


def _read_json_object(file: Path) -> dict[str, Any]:
    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"key {twice!r} appears twice in one object")
        return dict(pairs)

    try:
        text = file.read_bytes().decode("utf-8")
        document = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)
    except FileNotFoundError:
        raise ConfigError(f"{file}: expected a config.json, got no such file; name a checkpoint folder") from None
    except OSError as error:
        raise ConfigError(f"{file}: expected a readable file, got {error.strerror}; check the path") from None
    except RecursionError:
        raise ConfigError(f"{file}: expected a JSON object, got one nested too deep to read; repair the file") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{file}: expected valid JSON, got a fault: {error}; repair the file") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: expected a JSON object, got {type(document).__name__}; repair the file")
    return document


def _text_section(document: dict[str, Any], file: Path) -> tuple[dict[str, Any], str]:
    """Return the object with the language model's keys and the prefix that names its keys in messages."""
    if document.get("text_config") is None:
        return document, ""
    if not isinstance(document["text_config"], dict):
        raise ConfigError(
            f"{file}: text_config: expected an object, got {_shown(document['text_config'])}; repair the file"
        )
    return document["text_config"], "text_config."


def _refuse_unmodelled(text: dict[str, Any], document: dict[str, Any], prefix: str, file: Path) -> None:
    """Raise ConfigError for a key that asks for what the drafter does not model."""
    for key, expected in CHECKED_KEYS.items():
        places = [(prefix, text)] if not key.endswith("_config") else [(prefix, text), ("", document)]
        for place, section in places:
            if key not in section and key not in REQUIRED_CHECKED_KEYS:
                continue
            got = section.get(key, "no such key")
            # 1 == True and 0 == False in Python, so the type is compared too
            if got != expected or type(got) is not type(expected):
                raise ConfigError(
                    f"{file}: {place}{key}: expected {_shown(expected)}, got {_shown(got)}; "
                    "the drafter models nothing else, run this checkpoint without the drafter"
                )
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    # heads that are not stated are named as such, by the fields
    if None not in (heads, kv_heads) and kv_heads != heads:
        raise ConfigError(
            f"{file}: {prefix}num_key_value_heads: expected num_attention_heads {_shown(heads)}, "
            f"got {_shown(kv_heads)}; the drafter models nothing else, run this checkpoint without the drafter"
        )
    for key in ("index_kpool", "index_topk"):
        if text.get(key) is None:
            raise ConfigError(
                f"{file}: {prefix}{key}: expected the checkpoint's own value, got none; "
                "a wrong one drafts badly without an error, so state it in the file"
            )


def _settle_expert_count(fields: dict[str, Any], text: dict[str, Any], prefix: str, file: Path) -> None:
    """Accept `num_local_experts`, transformers' other name of n_routed_experts; refuse two that disagree."""
    other = text.get("num_local_experts")
    if other is None:
        return
    if fields.setdefault("n_routed_experts", other) != other:
        raise ConfigError(
            f"{file}: {prefix}num_local_experts: expected n_routed_experts {_shown(fields['n_routed_experts'])}, "
            f"got {_shown(other)}; they name one thing, drop one"
        )


def _settle_model_type(fields: dict[str, Any], document: dict[str, Any]) -> None:
    if "model_type" not in fields and "model_type" in document:
        fields["model_type"] = document["model_type"]


def _settle_tie(
    fields: dict[str, Any], text: dict[str, Any], document: dict[str, Any], prefix: str, file: Path
) -> None:
    """The key may stand at the top, in the text section, or both; both must agree."""
    places = (text, document)
    stated = [place["tie_word_embeddings"] for place in places if place.get("tie_word_embeddings") is not None]
    if len(stated) == 2 and stated[0] != stated[1]:
        raise ConfigError(
            f"{file}: {prefix}tie_word_embeddings: expected {_shown(stated[1])} like the top level, "
            f"got {_shown(stated[0])}; make them agree, lm_head depends on it"
        )
    fields["tie_word_embeddings"] = stated[0] if stated else False


def _settle_dtype(text: dict[str, Any], document: dict[str, Any], file: Path) -> torch.dtype:
    """The text section speaks before the top level, `dtype` before the older `torch_dtype`; null is silence."""
    for section in (text, document):
        for key in ("dtype", "torch_dtype"):
            name = section.get(key)
            if name is None:
                continue
            if not isinstance(name, str) or name.removeprefix("torch.") not in DTYPES:
                raise ConfigError(
                    f"{file}: {key}: expected one of {', '.join(DTYPES)}, got {_shown(name)}; pass dtype="
                )
            return DTYPES[name.removeprefix("torch.")]
    raise ConfigError(f"{file}: dtype: expected one of {', '.join(DTYPES)}, got no such key; pass dtype=")


def _classify(text: dict[str, Any], document: dict[str, Any], prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (unknown, ignored): every key that neither the drafter reads nor this module checks, with its place."""
    read = DRAFTER_KEYS | CHECKED_KEYS.keys() | {"dtype", "torch_dtype"}
    placed = [(prefix + key, key) for key in text if key not in read]
    if document is not text:
        top_read = {"text_config", "model_type", "dtype", "torch_dtype", "tie_word_embeddings"} | CHECKED_KEYS.keys()
        placed += [(key, key) for key in document if key not in top_read]
    unknown = tuple(sorted(place for place, key in placed if key not in TARGET_KEYS and key != "text_config"))
    ignored = tuple(sorted(place for place, key in placed if key in TARGET_KEYS or key == "text_config"))
    return unknown, ignored


def _first_fault(error: ValidationError, prefix: str, file: Path) -> str:
    """Say the first of pydantic's faults as one line in the project's form."""
    faults = error.errors()
    fault = faults[0]
    if fault["loc"]:
        key = ".".join(str(part) for part in fault["loc"])
        got = "no such key" if fault["type"] == "missing" else _shown(fault["input"])
        expected = "a value" if fault["type"] == "missing" else fault["msg"].removeprefix("Input should be ")
        line = f"{key}: expected {expected}, got {got}"
    else:
        line = str(fault["ctx"]["error"])
    more = f" ({len(faults) - 1} more keys are at fault)" if len(faults) > 1 else ""
    return f"{file}: {prefix}{line}; correct the file or use another checkpoint{more}"


def _shown(value: object) -> str:
    """A short one-line form of a value that came from a file."""
    shown = value if value == "no such key" else json.dumps(value)
    return str(shown) if len(str(shown)) <= 60 else str(shown)[:57] + "..."
