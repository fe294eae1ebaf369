"""What a plan is made of: a checkpoint, a config.json alone, an artifact, or the name of a shipped config."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

import drafts.configs
from circuit import CircuitError
from compiler import MANIFEST
from drafts.commands.prompts import demo_checkpoint
from drafts.commands.session import DTYPES
from drafts.commands.subject import DOCUMENT_SUFFIXES
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions, default_decisions
from drafts.load_compiled import open_artifact

CONFIG_FOLDER = Path(drafts.configs.__file__).parent
DEMO = "demo"
READ_AHEAD = 4096  # characters


@dataclass(frozen=True, slots=True)
class PlanSubject:
    """A drafter's config and decisions, under the name it was asked for; `is_compiled` for an artifact."""

    name: str
    config: DraftConfig
    decisions: Decisions
    is_compiled: bool = False


def shipped_configs() -> tuple[str, ...]:
    """Return the names of the configs that come with the package."""
    return tuple(sorted(path.stem for path in CONFIG_FOLDER.glob("*.json")))


def plan_subject(x: str | None, *, dtype_name: str | None) -> PlanSubject:
    """Find what to plan; no weight is read. CircuitError says what was expected, ConfigError which key is missing."""
    known = (*shipped_configs(), DEMO)
    if x is None or not x.strip():
        raise CircuitError(f"plan: expected a checkpoint folder, a config.json or one of {', '.join(known)}, got none")
    dtype = None if dtype_name is None else DTYPES[dtype_name]
    path = CONFIG_FOLDER / f"{x}.json" if x in known and x != DEMO else demo_checkpoint() if x == DEMO else Path(x)
    # a folder beside us of that very name is what was meant
    if x in known and Path(x).is_dir():
        path = Path(x)
    if (path / MANIFEST).is_file():
        artifact = open_artifact(path)
        config = read_config(artifact.checkpoint, dtype=dtype or artifact.recorded.torch_dtype)
        return PlanSubject(x, config, artifact.recorded.decisions, is_compiled=True)
    if not path.exists():
        close = difflib.get_close_matches(x.lower(), known, n=1, cutoff=0.5)
        meant = f"did you mean {close[0]}? " if close else ""
        raise CircuitError(
            f"{x}: expected a checkpoint folder, a config.json or an artifact, got no such path; {meant}"
            f"the names are {', '.join(known)}"
        )
    if path.is_file() and _is_document(path):
        raise CircuitError(f"{x}: expected a config.json, got a circuit document; name the checkpoint it belongs to")
    if path.is_file() and path.suffix != ".json":
        raise CircuitError(f"{x}: expected a config.json, got a file {path.suffix or 'without a suffix'}; name one")
    config = read_config(path, dtype=dtype)
    return PlanSubject(x, config, default_decisions(config))


def _is_document(file: Path) -> bool:
    """Whether a file starts with the keys of a circuit document, which no config has."""
    if file.suffix not in DOCUMENT_SUFFIXES:
        return False
    try:
        with file.open(encoding="utf-8") as opened:
            start = opened.read(READ_AHEAD)
    except (OSError, UnicodeDecodeError):
        return False
    return all(re.search(rf'^\s*"?{key}"?\s*:', start, re.MULTILINE) for key in ("circuit", "format"))
