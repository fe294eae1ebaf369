"""A checkpoint's tokenizer, read from its tokenizer.json alone: no network, no code from the checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from circuit.errors import CheckpointError


class CheckpointTokenizer:
    """Text to token ids and back, without adding special tokens. Chat templates are not supported."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def load_tokenizer(checkpoint: Path) -> CheckpointTokenizer:
    """Read `tokenizer.json` in a checkpoint folder; raises CheckpointError when it is missing or malformed."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{checkpoint}: expected a tokenizer.json, got none; add the checkpoint's tokenizer file")
    try:
        return CheckpointTokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception for malformed files
        raise CheckpointError(f"{path}: expected a tokenizer, got {error}; fetch the file again") from error
