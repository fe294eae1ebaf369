"""A checkpoint loaded to decode with: its target, its tokenizer, and one drafter with both of its paths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from circuit import BindingError
from drafts.binding import not_modelled
from drafts.commands.screen import Screen
from drafts.commands.stream import WatchedPath
from drafts.commands.subject import checkpoint_folder
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions, default_decisions
from drafts.generation import Generation
from drafts.levers import ModelLevers
from drafts.load_compiled import Artifact
from drafts.parallel import ONE_RANK, ParallelPlan
from drafts.path import DraftPath
from drafts.proposer import DraftProposer
from drafts.ranks import Ranks
from drafts.runner import DraftRunner
from drafts.sampling import Sampling
from drafts.sharing import Sharing
from drafts.speculate import generate
from drafts.targets.tokenizer import CheckpointTokenizer, load_tokenizer
from drafts.targets.transformers_target import TransformersTarget, load_target
from drafts.triton_runner import TritonRunner
from drafts.weights import check_weights, load_weights

# a model this narrow gains nothing from a second thread and loses 50-fold where another process holds its core: 480 ms
# against 9 ms a round with the demo model on two shared cores
NARROW_HIDDEN_SIZE = 1024

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}
Form = Literal["eager", "circuit"]


@dataclass(frozen=True, slots=True)
class Session:
    """What a checkpoint gives to a command; `weights` are the drafter's, by our names, in the dtype asked for.

    ranks: those that share the drafter, whose parts `weights` are then; the target is whole on every rank.
    """

    folder: Path
    config: DraftConfig
    decisions: Decisions
    tokenizer: CheckpointTokenizer
    target: TransformersTarget
    weights: dict[str, Tensor]
    levers: ModelLevers = field(default_factory=ModelLevers)
    ranks: Ranks | None = None

    @property
    def is_split(self) -> bool:
        """Whether ranks share the drafter."""
        return self.ranks is not None and self.levers.mtp_ep_propose

    @property
    def plan(self) -> ParallelPlan:
        """The plan by which ranks share the drafter; of one rank where they do not."""
        return self.ranks.plan if self.ranks is not None and self.is_split else ONE_RANK

    def encode(self, prompt: str, *, max_new_tokens: int) -> list[int]:
        """Return the prompt's token ids; ValueError for an empty prompt or one that leaves no room for new tokens."""
        tokens = self.tokenizer.encode(prompt)
        if not tokens:
            raise ValueError("--prompt: expected some text, got none; give the text to continue")
        limit = self.target.max_positions
        # the last token is never run, so it needs no position
        if len(tokens) + max_new_tokens - 1 > limit:
            raise ValueError(
                f"--prompt: expected prompt and --max-tokens to fit the checkpoint's {limit:,} positions, "
                f"got {len(tokens):,} + {max_new_tokens:,}; shorten the prompt or lower --max-tokens"
            )
        return tokens

    def drafter(
        self,
        form: Form,
        *,
        num_tokens: int,
        num_drafts: int,
        artifact: Artifact | None = None,
        backend: str | None = None,
    ) -> tuple[DraftProposer, WatchedPath]:
        """Return a drafter for a text of up to `num_tokens`, running in `form`, and the watch on its path.

        The circuit runs the artifact's programs, its Triton launches where `backend` says so, or else interpreted.
        """
        proposer = DraftProposer(
            self.config,
            self.weights,
            self.decisions,
            max_seq_len=min(num_tokens + num_drafts, self.config.max_position_embeddings),
            max_num_drafts=num_drafts if artifact is None else artifact.recorded.max_num_drafts,
            levers=self.levers,
            ranks=self.ranks,
        )
        watch = WatchedPath(self._runner(proposer, artifact, backend) if form == "circuit" else proposer.path)
        proposer.set_circuit_draft(watch)
        return proposer, watch

    def _runner(self, proposer: DraftProposer, artifact: Artifact | None, backend: str | None) -> DraftPath:
        if artifact is not None:
            return artifact.runner(proposer, checkpoint=self.folder)
        binding = proposer.circuit_draft()
        if binding is None:
            gaps = "; ".join(not_modelled(self.config))
            raise BindingError(f"{self.folder}: the circuit does not model {gaps}; run with --eager")
        if backend == "triton":
            return TritonRunner(binding, is_exact=proposer.levers.mtp_batch_exact)
        return DraftRunner(binding)

    def generate(
        self,
        proposer: DraftProposer | None,
        prompt_tokens: Sequence[int],
        *,
        max_new_tokens: int,
        num_drafts: int,
        sampling: Sampling | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Decode after the prompt, with the drafter's own way of being fed; None decodes plainly."""
        return generate(
            self.target,
            proposer,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            num_drafts=num_drafts,
            sampling=sampling,
            stop_tokens=self.target.stop_tokens,
            supplied_hidden=self.decisions.supplied_hidden,
            on_token=on_token,
        )


def load_session(
    folder: Path,
    screen: Screen,
    *,
    dtype_name: str = "f32",
    decisions: Decisions | None = None,
    device: str = "cpu",
    levers: ModelLevers | None = None,
    ranks: Ranks | None = None,
) -> Session:
    """Load a checkpoint, the cheap checks first: config, tensor headers, tokenizer; then the tensors, onto `device`.

    `decisions` in place of the checkpoint's stated defaults. Of a drafter that `ranks` share, this rank's parts.
    """
    levers = levers or ModelLevers()
    config = read_config(checkpoint_folder(folder), dtype=DTYPES[dtype_name])
    decisions = decisions or default_decisions(config)
    specs = Sharing(config, decisions, ranks, levers).specs()
    check_weights(folder, specs)
    tokenizer = load_tokenizer(folder)
    if config.hidden_size <= NARROW_HIDDEN_SIZE:
        torch.set_num_threads(1)
    with screen.step("loading the drafter"):
        weights = {name: tensor.to(device) for name, tensor in load_weights(folder, specs).items()}
    with screen.step("loading the target"):
        target = load_target(folder, dtype=config.dtype, device=device)
    return Session(folder, config, decisions, tokenizer, target, weights, levers, ranks)
