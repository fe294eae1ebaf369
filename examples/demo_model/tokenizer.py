"""The demo's tokenizer: byte-level BPE that keeps a newline with its indentation in one token."""

from __future__ import annotations

import json
from pathlib import Path

from sizes import SPECIAL_TOKENS, VOCAB_SIZE
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# newline and indentation | one word with its blank | underscores | one digit | signs | other blanks
PRE_SPLIT = r"\n+[ ]*| ?[A-Za-z]+|_+|[0-9]| ?[^\sA-Za-z0-9_]+|\s+"


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train the tokenizer on `texts`: 2048 entries, of which the first 8 are special tokens; seconds."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"tokenizer: expected {VOCAB_SIZE} entries, got {tokenizer.get_vocab_size()}; give more text")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that AutoTokenizer reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "backend": "tokenizers",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[1],
        "model_max_length": 2048,
        "tokenizer_class": "TokenizersBackend",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
