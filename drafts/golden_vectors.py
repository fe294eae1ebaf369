"""Golden vectors as an execution: the edges that an oracle recorded, played beside a head that is run.

A folder of them holds cases.json, checkpoints and, per case, a file of tensors. Recorded numbers are untrusted input:
a case that lacks a field or a tensor is refused by name. Format: tests/golden/vectors/README.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from circuit import CircuitError
from drafts.decisions import Decisions
from drafts.executions import DRAFT, Edges
from drafts.script import Feed, Operation, Propose, Rewind, Script

CASES = "cases.json"
# recorded names that are other than the circuit's
_RENAMED = {"pool_keys": "next_index_keys"}
_CHAIN_HIDDEN = {"post_norm": "post_norm", "pre_norm": "block_output"}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Step(_Record):
    selected: tuple[int, ...]


class _Operation(_Record):
    op: Literal["prefill", "propose", "after_verify"]
    # of a prefill, and of the rows that follow a verify
    tokens: tuple[int, ...] = ()
    hiddens: tuple[int, int] = (0, 0)
    catchup_tokens: tuple[int, ...] | None = None
    catchup_hiddens: tuple[int, int] | None = None
    rows_after_rewind: int = 0
    rows_after: int = 0
    # of a propose
    last_token: int = 0
    hidden_row: int = 0
    position: int = 0
    k: int = 0
    drafts: tuple[int, ...] = ()
    steps: tuple[_Step, ...] = ()


class _Sequence(_Record):
    hiddens: str
    ops: tuple[_Operation, ...]


class GoldenCase(_Record):
    """One case: its checkpoint and tensors relative to the folder, and what was done to each sequence."""

    name: str
    checkpoint: str
    vectors: str
    dtype: Literal["float32", "bfloat16"]
    chain_hidden: Literal["post_norm", "pre_norm"]
    sequences: tuple[_Sequence, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The model dtype that was recorded."""
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    @property
    def decisions(self) -> Decisions:
        """How the recorded drafter is fed: hiddens come in the form it takes, drafts as `chain_hidden` says."""
        return Decisions.model_validate({"supplied_hidden": "post_norm", "recycle": _CHAIN_HIDDEN[self.chain_hidden]})


class _Cases(_Record):
    cases: tuple[GoldenCase, ...]


@dataclass(frozen=True, slots=True)
class GoldenVectors:
    """A case with its tensors: scripts to play, one a sequence, and the recorded edges."""

    case: GoldenCase
    tensors: Mapping[str, Tensor]
    place: str

    def scripts(self) -> list[Script]:
        """Return each sequence's operations; CircuitError names a tensor that is missing."""
        return [self._script(index, sequence) for index, sequence in enumerate(self.case.sequences)]

    def edges_under(self, key: str) -> Edges:
        """Return the recorded edges under `seq0/op1/step2`, by the circuit's names; ids are int64."""
        held = {name.removeprefix(f"{key}/"): tensor for name, tensor in self.tensors.items()}
        edges = {
            _RENAMED.get(name, name): tensor if tensor.is_floating_point() else tensor.long()
            for name, tensor in held.items()
            if "/" not in name
        }
        if not edges:
            raise CircuitError(f"{self.place}: expected edges under {key}, got none; record the case again")
        return edges

    def _script(self, index: int, sequence: _Sequence) -> Script:
        if sequence.hiddens not in self.tensors:
            raise CircuitError(f"{self.place}: expected the tensor {sequence.hiddens!r}, got none; record it again")
        hiddens = self.tensors[sequence.hiddens].to(self.case.torch_dtype)
        operations: list[Operation] = []
        num_rows = 0
        for number, op in enumerate(sequence.ops):
            key = f"seq{index}/op{number}"
            if op.op == "propose":
                operations.append(Propose(key, op.last_token, hiddens[op.hidden_row], op.position, op.k))
                num_rows = op.position + op.k
                continue
            tokens, first = op.tokens, op.hiddens[0]
            if op.op == "after_verify":
                operations.append(Rewind(op.rows_after_rewind))
                num_rows = op.rows_after_rewind
                tokens, first = op.catchup_tokens or (), (op.catchup_hiddens or (0, 0))[0]
            if len(tokens) > 1:
                # row i of the fed rows pairs tokens[i + 1] with hiddens[first + i]
                count = len(tokens) - 1
                operations.append(Feed(key, torch.tensor(tokens[1:]), hiddens[first : first + count], num_rows))
                num_rows += count
            if num_rows != op.rows_after:
                raise CircuitError(f"{self.place}: {key}: expected {op.rows_after} rows after it, got {num_rows}")
        longest = max((op.rows_after for op in sequence.ops), default=0)
        return Script(self.case.name, tuple(operations), max_rows=longest + 1)


class GoldenExecution:
    """The recorded side; what it did not record is missing. `start` finds the case by the script's label."""

    name = "golden"
    shows_edges = True

    def __init__(self, vectors: Sequence[GoldenVectors]) -> None:
        self._by_label = {one.case.name: one for one in vectors}
        self._held: GoldenVectors | None = None

    def start(self, script: Script) -> None:
        """See Execution."""
        self._held = self._by_label[script.label]

    def feed(self, operation: Feed) -> Edges:
        """See Execution; rows that follow a verify were not recorded."""
        vectors = self._vectors
        is_recorded = any(name.startswith(f"{operation.key}/") for name in vectors.tensors)
        edges = vectors.edges_under(operation.key) if is_recorded else {}
        return {name: edge for name, edge in edges.items() if name != "next_index_keys"}

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        """See Execution; it teaches, and takes no teacher."""
        assert teacher is None, "what is recorded cannot be taught"
        vectors = self._vectors
        sequence, number = (int(part.strip("seqop")) for part in operation.key.split("/"))
        recorded = vectors.case.sequences[sequence].ops[number]
        steps = []
        for index in range(operation.num_drafts):
            key = f"{operation.key}/step{index}"
            if index >= min(len(recorded.drafts), len(recorded.steps)):
                raise CircuitError(f"{vectors.place}: {key}: expected a draft and a step, got none; record it again")
            selected = torch.tensor([recorded.steps[index].selected])
            own = {DRAFT: torch.tensor([recorded.drafts[index]]), "selected": selected}
            steps.append(vectors.edges_under(key) | own)
        return steps

    def rewind(self, rows: int) -> None:
        """See Execution."""

    def contents(self, num_rows: int) -> Edges:
        """Return nothing: the cache was recorded at a sequence's end only."""
        return {}

    @property
    def _vectors(self) -> GoldenVectors:
        assert self._held is not None, "start comes before a script's first operation"
        return self._held


def read_golden(folder: Path) -> list[GoldenCase]:
    """Read the cases of a folder; `CircuitError`, one line, for a folder without them or a case that lacks a field."""
    path = folder / CASES
    try:
        data: Any = json.loads(path.read_bytes())
        cases = _Cases.model_validate(data).cases
    except OSError as error:
        raise CircuitError(
            f"{path}: expected golden cases, got {error.strerror}; name a folder of golden vectors"
        ) from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise CircuitError(f"{path}: {place}: {fault['msg']}; record the vectors again") from None
    except (ValueError, RecursionError) as error:
        raise CircuitError(f"{path}: expected JSON, got {error}; record the vectors again") from None
    if not cases:
        raise CircuitError(f"{path}: expected golden cases, got an empty list; record the vectors again")
    return list(cases)


def load_golden(folder: Path, case: GoldenCase) -> GoldenVectors:
    """Load a case's tensors; `CircuitError` for a file that is missing, damaged or outside the folder."""
    path = (folder / case.vectors).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise CircuitError(f"{folder / CASES}: {case.name}: expected vectors inside the folder, got {case.vectors!r}")
    try:
        return GoldenVectors(case, load_file(path), str(folder / case.vectors))
    except (OSError, SafetensorError) as error:
        raise CircuitError(f"{path}: expected readable tensors, got {error}; record the vectors again") from None
