"""The corpus: the sources of this interpreter's own standard library, with some modules held out."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

HELD_OUT = (
    "textwrap", "shlex", "fnmatch", "configparser", "sched", "bisect",
    "calendar", "csv", "queue", "ftplib", "wave", "contextlib",
)  # fmt: skip
SKIPPED_FOLDERS = {"site-packages", "encodings", "pydoc_data", "data", "__pycache__", "cjkencodings"}
MAX_DIGIT_SHARE = 0.12
MAX_LINE_CHARACTERS = 160
END_OF_TEXT = 0


def is_held_out(path: Path) -> bool:
    """Say whether `path` is a held-out module or one of its tests (`test_csv.py`, `test_contextlib_async.py`)."""
    stem = path.stem.removeprefix("test_")
    return any(stem == name or stem.startswith(name + "_") for name in HELD_OUT)


def clean_text(path: Path) -> str | None:
    """Return the text of one source file, or None for tables of digits and files that are not plain UTF-8.

    Lines over 160 characters are dropped: they are data, not code.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    if not text.strip() or sum(character.isdigit() for character in text) > MAX_DIGIT_SHARE * len(text):
        return None
    return "\n".join(line.rstrip() for line in text.split("\n") if len(line) <= MAX_LINE_CHARACTERS)


def read_sources() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return (library, tests, held_out) as path -> text, read from `sysconfig.get_path("stdlib")`.

    Tests are training text of lower weight; held-out modules and their tests are in neither.
    """
    root = Path(sysconfig.get_path("stdlib"))
    library: dict[str, str] = {}
    tests: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS & set(name.parts):
            continue
        text = clean_text(path)
        if text is None:
            continue
        if is_held_out(name):
            if len(name.parts) == 1 and name.stem in HELD_OUT:
                held_out[str(name)] = text
            continue
        is_test = name.stem.startswith("test_") or any(part in ("test", "tests", "idle_test") for part in name.parts)
        (tests if is_test else library)[str(name)] = text
    return library, tests, held_out


def to_stream(tokenizer: Tokenizer, sources: dict[str, str], seed: int) -> Tensor:
    """Return every source as one int64 stream [num_tokens], files in shuffled order, each ended by <|endoftext|>."""
    names = list(sources)
    np.random.default_rng(seed).shuffle(names)
    pieces = []
    for encoding in tokenizer.encode_batch([sources[name] for name in names]):
        pieces.append(np.asarray([*encoding.ids, END_OF_TEXT], dtype=np.int64))
    return torch.from_numpy(np.concatenate(pieces))


class WindowSampler:
    """Draws random windows from several streams, each stream with its share of the rows.

    A stream is used up (without replacement, at a fresh offset per epoch) before it is seen again.
    """

    def __init__(self, streams: list[Tensor], shares: list[float], window: int, seed: int) -> None:
        if len(streams) != len(shares):
            raise ValueError(f"WindowSampler: {len(streams)} streams but {len(shares)} shares; give one share each")
        self.streams, self.window = streams, window
        self.shares = np.asarray(shares) / sum(shares)
        self.random = np.random.default_rng(seed)
        self.queues: list[list[int]] = [[] for _ in streams]

    def _next_start(self, which: int) -> int:
        if not self.queues[which]:
            offset = int(self.random.integers(0, self.window))
            starts = np.arange(offset, len(self.streams[which]) - self.window, self.window)
            self.random.shuffle(starts)
            self.queues[which] = starts.tolist()
        return self.queues[which].pop()

    def batch(self, rows: int) -> Tensor:
        """Return `rows` windows, int64 [rows, window]."""
        chosen = self.random.choice(len(self.streams), size=rows, p=self.shares)
        starts = [(which, self._next_start(which)) for which in chosen]
        return torch.stack([self.streams[which][start : start + self.window] for which, start in starts])


def fixed_windows(stream: Tensor, window: int, limit: int | None = None) -> Tensor:
    """Return the stream cut into consecutive windows, int64 [num_windows, window]; the rest is dropped."""
    count = len(stream) // window
    return stream[: count * window].view(count, window)[:limit]
