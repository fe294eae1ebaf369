"""DraftBinding: everything named, shaped and typed before anything runs, and nothing implied."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from circuit import BindingError, TensorType, VerifyError
from drafts.binding import DraftBinding, bind_head, not_modelled
from drafts.decisions import Decisions
from drafts.runner import DraftRunner
from drafts.weights import head_weight_specs
from tests.drafts.drafter_twin import make_proposer, make_text
from tests.drafts.tiny_head import tiny_config, tiny_weights

POST = Decisions(supplied_hidden="post_norm")


def bind(weights: dict[str, torch.Tensor], *, decisions: Decisions = POST) -> DraftBinding:
    return bind_head(tiny_config(), weights, decisions, block_size=16, max_num_drafts=4)


@pytest.mark.parametrize("supplied", ["pre_norm", "post_norm"])
def test_circuit_takes_exactly_the_weights_of_the_one_list(supplied: str) -> None:
    binding = bind(tiny_weights(tiny_config()), decisions=Decisions(supplied_hidden=supplied))  # type: ignore[arg-type]
    assert set(binding.circuit.weights) == {spec.name for spec in binding.weight_specs}
    for spec in binding.weight_specs:
        declared = binding.circuit.weights[spec.name].type
        assert isinstance(declared, TensorType)
        assert declared.sizes() == spec.shape
        assert declared.dtype == spec.dtype


@pytest.mark.parametrize("name", [spec.name for spec in head_weight_specs(tiny_config(), target_norm=False)])
@pytest.mark.parametrize("fault", ["missing", "shape", "dtype"])
def test_every_weight_is_checked_by_name_shape_and_dtype(name: str, fault: str) -> None:
    weights = tiny_weights(tiny_config())
    if fault == "missing":
        del weights[name]
    else:
        weights[name] = weights[name][..., :-1] if fault == "shape" else weights[name].double()
    with pytest.raises(BindingError, match=rf"%{name}: f32\[.*{'missing' if fault == 'missing' else 'load it for'}"):
        bind(weights)


def test_weights_are_shared_so_that_writing_into_one_is_seen() -> None:
    proposer = make_proposer("circuit")
    text, state = make_text(proposer, 30), proposer.alloc_state()
    text.prefill(proposer, state, 18)
    before = text.propose(proposer, state, 18, 1)
    proposer.weights["lm_head"][before[0]] = 0.0
    proposer.weights["lm_head"][7] *= 100.0
    changed = text.propose(proposer, state, 18, 1)
    assert changed != before
    proposer.set_circuit_draft(None)
    assert text.propose(proposer, state, 18, 1) == changed


def test_surplus_weights_are_no_fault() -> None:
    weights = tiny_weights(tiny_config()) | {"unused": torch.zeros(3)}
    assert bind(weights).weights is weights


@pytest.mark.parametrize("block_size, max_num_drafts", [(6, 4), (2, 4), (0, 4), (16, 0)])
def test_sizes_that_no_cache_has_are_refused(block_size: int, max_num_drafts: int) -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match=f"multiple of index_kpool 4.*got {block_size} and {max_num_drafts}"):
        bind_head(config, tiny_weights(config), POST, block_size=block_size, max_num_drafts=max_num_drafts)


def test_illegal_circuit_is_refused() -> None:
    binding = bind(tiny_weights(tiny_config()))
    del binding.circuit.state_outputs["tail"]
    with pytest.raises(VerifyError, match="tail"):
        replace(binding)


def test_fixed_dims_are_those_of_the_cache() -> None:
    proposer = make_proposer(max_num_drafts=5)
    binding = proposer.circuit_draft()
    assert binding is not None
    assert binding.dims == {"tail_depth": proposer.cache.tail_depth}
    assert binding.state_layout.block_size == proposer.cache.block_size
    assert binding.state_layout.max_num_drafts == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_common_dtypes_are_modelled(dtype: torch.dtype) -> None:
    assert not_modelled(tiny_config(dtype=dtype)) == ()
    assert make_proposer(dtype=dtype).circuit_draft() is not None


def test_what_is_not_modelled_has_no_circuit_and_never_half_runs() -> None:
    proposer = make_proposer(dtype=torch.float64)
    assert proposer.circuit_draft() is None
    [reason] = not_modelled(proposer.config)
    assert "float64" in reason
    binding = bind(tiny_weights(tiny_config()))
    with pytest.raises(BindingError, match="does not model float64 and 3 hats; run the eager head"):
        DraftRunner(replace(binding, not_modelled=("float64 and 3 hats",)))


@pytest.mark.parametrize("share", ["off", "pools_and_new_rows", "exact_set"])
@pytest.mark.parametrize("supplied", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("max_num_drafts", [1, 4])
def test_feedback_edges_join_outputs_to_values_of_their_type(share: str, supplied: str, max_num_drafts: int) -> None:
    decisions = Decisions(index_share=share, supplied_hidden=supplied)  # type: ignore[arg-type]
    config = tiny_config()
    binding = bind_head(config, tiny_weights(config), decisions, block_size=16, max_num_drafts=max_num_drafts)
    for edge in binding.feedback:
        assert binding.circuit.outputs[edge.source].type == binding.circuit.value(edge.target).type
    following = binding.step(is_first=False)
    # everything that a next step takes is fed back, or belongs to the run
    assert set(following.inputs) <= {edge.target for edge in binding.feedback} | {"sequence", "block_table"}
