"""Write prompts.json: 20 pieces of held-out modules, each 96 prompt tokens and 128 tokens of what really follows.

The text travels with the file, so the numbers do not move with the interpreter's version. Every prompt ends inside a
line: a newline at the end would be a token of its own, which the model has hardly seen before a line's indentation.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
from corpus import read_sources
from tokenizers import Tokenizer

HERE = Path(__file__).parent
PROMPT_TOKENS, CONTINUATION_TOKENS, NUM_PROMPTS = 96, 128, 20


def candidates(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
    """Return every (prompt, continuation) of one module that starts a line, ends inside one and encodes stably."""
    found = []
    starts = [0] + [at + 1 for at, character in enumerate(text) if character == "\n"]
    for start in starts:
        if text[start : start + 1] in ("", "\n"):
            continue
        encoding = tokenizer.encode(text[start : start + 4000])
        total = PROMPT_TOKENS + CONTINUATION_TOKENS
        if len(encoding.ids) <= total:
            continue
        middle, end = encoding.offsets[PROMPT_TOKENS - 1][1], encoding.offsets[total - 1][1]
        prompt, continuation = text[start : start + middle], text[start + middle : start + end]
        inside_line = "\n" not in prompt[-3:] and not continuation.startswith("\n")
        if inside_line and is_stable(tokenizer, prompt, continuation, encoding.ids[:total]):
            found.append((prompt, continuation))
    return found


def is_stable(tokenizer: Tokenizer, prompt: str, continuation: str, ids: list[int]) -> bool:
    """Say whether prompt and whole text encode to the ids they were cut from."""
    return tokenizer.encode(prompt).ids == ids[:PROMPT_TOKENS] and tokenizer.encode(prompt + continuation).ids == ids


def main() -> None:
    """Pick the prompts with a fixed seed, going round the modules, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=HERE / "model")
    parser.add_argument("--out", type=Path, default=HERE / "prompts.json")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    random = np.random.default_rng(0)
    held_out = read_sources()[2]
    pools = {}
    for module, text in held_out.items():
        pools[module] = candidates(tokenizer, text)
        random.shuffle(pools[module])
    prompts, seen = [], []
    while len(prompts) < NUM_PROMPTS:
        for module, pool in pools.items():
            if pool and len(prompts) < NUM_PROMPTS:
                prompt, continuation = pool.pop()
                # two prompts never share a line of forty characters or more
                lines = {line for line in (prompt + continuation).split("\n") if len(line) >= 40}
                if not any(lines & other for other in seen):
                    seen.append(lines)
                    prompts.append({"module": module, "text": prompt, "continuation": continuation})
    document = {
        "source": f"CPython {platform.python_version()} standard library, PSF licence",
        "prompt_tokens": PROMPT_TOKENS,
        "continuation_tokens": CONTINUATION_TOKENS,
        "prompts": prompts,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"prompts: {len(prompts)} from {len({p['module'] for p in prompts})} modules in {options.out}")


if __name__ == "__main__":
    main()
