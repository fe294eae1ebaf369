"""Texts to draft after where the user gives none: the demo model's held-out ones, else a few plain ones."""

import json
from dataclasses import dataclass
from pathlib import Path

from circuit import CircuitError
from drafts.commands.subject import checkpoint_folder

DEMO_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "demo_model"

PLAIN_PROMPTS = (
    'def read_lines(path, encoding=\'utf-8\'):\n    """Return the lines of a text file."""\n    with open(path',
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n        self._items",
    "import os\n\ndef main(args):\n    for name in args:\n        if not os.path.exists(name):\n            print",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and where it comes from."""

    source: str
    text: str


def demo_checkpoint() -> Path:
    """Return the folder of the model that the repository ships; CircuitError outside of a checkout."""
    folder = DEMO_FOLDER / "model"
    if not folder.is_dir():
        raise CircuitError(f"{folder}: expected the demo's checkpoint, got no such folder; name another with --model")
    return checkpoint_folder(folder)


def demo_prompts(count: int) -> list[Prompt]:
    """Return up to `count` of the held-out prompts of the demo model, spread over all; else the plain ones."""
    file = DEMO_FOLDER / "prompts.json"
    if not file.is_file():
        return [Prompt("", text) for text in PLAIN_PROMPTS[:count]]
    held = json.loads(file.read_text(encoding="utf-8"))["prompts"]
    num_prompts = min(count, len(held))
    spread = [held[index * len(held) // num_prompts] for index in range(num_prompts)]
    return [Prompt(str(prompt["module"]), str(prompt["text"])) for prompt in spread]
