"""ModelLevers: every switch of a drafter in one place, with its meaning and what it does to numerics."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from drafts.decisions import Decisions, IndexShare
from drafts.draft_head import DraftHead, DraftVocab, HeadForm

Numerics = Literal["bitwise", "other drafts"]


def _lever(numerics: Numerics, description: str) -> object:
    return Field(description=description, json_schema_extra={"numerics": numerics})


class ModelLevers(BaseModel):
    """Switches of a drafter. Each field's `numerics` says whether drafts may change: `other drafts`, or not: `bitwise`.

    None of them changes what a verified loop emits: the target decides that.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    mtp_kv_exact: Annotated[
        bool,
        _lever(
            "other drafts",
            "After a verify, rewrite the accepted drafts' cache rows from the target's own hiddens; off keeps the rows "
            "that paired them with drafted hiddens.",
        ),
    ] = True
    index_share: Annotated[
        Literal["checkpoint"] | IndexShare,
        _lever(
            "other drafts",
            "Whether drafts 2..K reuse draft 1's selection; `checkpoint` does as index_share_for_mtp_iteration says.",
        ),
    ] = "checkpoint"
    mtp_batch_exact: Annotated[
        bool,
        _lever(
            "other drafts",
            "Give each row of a propose_batch the bits that propose gives it; off lets compiled programs for several "
            "rows run that sum in another order, which is faster.",
        ),
    ] = True
    draft_head: Annotated[
        HeadForm,
        _lever(
            "other drafts",
            "How lm_head's rows are read: `bf16` as they were loaded, whatever the dtype; `int8` in eight bits with a "
            "scale per row, half the bytes and near ties may fall otherwise; `int8_certified` in eight bits, and again "
            "as they were loaded those that could win, so that the id is always that of `bf16`.",
        ),
    ] = "bf16"
    draft_vocab: Annotated[
        DraftVocab | None,
        _lever(
            "other drafts",
            "The token ids that may be drafted, ascending, as a list or as a file with one id a line; lm_head is "
            "trimmed to their rows. None drafts any token.",
        ),
    ] = None
    mtp_ep_propose: Annotated[
        bool,
        _lever(
            "other drafts",
            "Split the drafter over the ranks it is started on; off runs it whole on each, without any exchange.",
        ),
    ] = True
    propose_batch_max: Annotated[
        int,
        Field(ge=1, le=256, description="Sequences of one propose_batch.", json_schema_extra={"numerics": "bitwise"}),
    ] = 16

    @property
    def head(self) -> DraftHead:
        """How the levers have lm_head read."""
        return DraftHead(draft_head=self.draft_head, draft_vocab=self.draft_vocab)

    def applied_to(self, decisions: Decisions) -> Decisions:
        """Return the decisions of a checkpoint with what the levers override."""
        if self.index_share == "checkpoint":
            return decisions
        return decisions.model_copy(update={"index_share": self.index_share})


def lever_table() -> list[tuple[str, object, Numerics, str]]:
    """Return (name, default, numerics, meaning) of every lever, in order."""
    rows: list[tuple[str, object, Numerics, str]] = []
    for name, field in ModelLevers.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), f"lever {name} states no numerics"
        numerics: Numerics = "bitwise" if extra["numerics"] == "bitwise" else "other drafts"
        rows.append((name, field.default, numerics, field.description or ""))
    return rows
