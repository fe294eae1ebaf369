"""ModelLevers: every switch of a drafter in one place, with its meaning and what it does to numerics."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from drafts.decisions import Decisions, IndexShare

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
    propose_batch_max: Annotated[
        int,
        Field(ge=1, le=256, description="Sequences of one propose_batch.", json_schema_extra={"numerics": "bitwise"}),
    ] = 16

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
