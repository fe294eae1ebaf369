"""The decisions that are silent when wrong: declared here, never implied.

Each changes only how well a drafter drafts, not whether it runs, so no error ever points at a wrong one. They are
fields of the binding, printed by `circuit check`, and held by the acceptance gate on the demo model.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from circuit.errors import BindingError
from drafts.config import DraftConfig

HiddenForm = Literal["pre_norm", "post_norm"]
Recycle = Literal["post_norm", "block_output"]
IndexShare = Literal["off", "pools_and_new_rows", "exact_set"]


class Decisions(BaseModel):
    """How a drafter is fed and how its drafts follow one another.

    hidden_source: the target's hidden that the drafter was trained on, before or after the target's final norm.
    supplied_hidden: what the caller hands in. Supplied pre_norm for a post_norm drafter, the target's norm is applied
        here, to the target's own hiddens only, never to recycled ones. The reverse cannot be undone and is refused.
    recycle: what drafts 2..K take as hidden: `post_norm`, the output of shared_head.norm, or the `block_output` before.
    index_share: whether drafts 2..K reuse draft 1's selection. `pools_and_new_rows` attends the rows written since as
        well, the row's own included; `exact_set` attends draft 1's rows only. Cache rows are written all the same.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    hidden_source: HiddenForm = "post_norm"
    supplied_hidden: HiddenForm = "pre_norm"
    recycle: Recycle = "post_norm"
    index_share: IndexShare = "off"

    @model_validator(mode="after")
    def _refuse_unresolvable(self) -> "Decisions":
        if self.supplied_hidden == "post_norm" and self.hidden_source == "pre_norm":
            raise BindingError(
                "Decisions.supplied_hidden: expected pre_norm for a drafter trained on pre_norm hiddens, got "
                "post_norm; the target's norm cannot be undone, hand in the hidden before it"
            )
        return self

    @property
    def applies_target_norm(self) -> bool:
        """Whether the target's final norm is part of the circuit."""
        return self.supplied_hidden == "pre_norm" and self.hidden_source == "post_norm"


def default_decisions(config: DraftConfig, *, supplied_hidden: HiddenForm = "pre_norm") -> Decisions:
    """Return the stated defaults, with index_share as the checkpoint's `index_share_for_mtp_iteration` says."""
    share: IndexShare = "pools_and_new_rows" if config.index_share_for_mtp_iteration else "off"
    return Decisions(supplied_hidden=supplied_hidden, index_share=share)
