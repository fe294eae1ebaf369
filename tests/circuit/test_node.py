"""The node contract: strict frozen attributes, ports from the reference, and what the class refuses."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from circuit import Circuit, Node, StateType, TensorType, TypeRuleError, VerifyError, f32, node_types, snake_case
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyOptions, ToyRead, ToyScale, ToyWrite

CACHE = StateType("paged", f32("num_blocks", 4, 8))


@pytest.mark.parametrize(
    "attributes",
    [{"factor": "1e-5"}, {"factor": True}, {"factor": None}, {"factor": float("nan")}, {"factor": float("inf")}, {}],
    ids=repr,
)
def test_attribute_of_another_type_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ToyScale(**attributes)


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ToyScale(factor=1.0, faktor=2.0)  # type: ignore[call-arg]


def test_node_is_frozen() -> None:
    node = ToyScale(factor=1.0)
    with pytest.raises(ValidationError, match="frozen"):
        node.factor = 2.0  # type: ignore[misc]


def test_nodes_are_equal_and_hashed_by_value() -> None:
    assert ToyScale(factor=1.0) == ToyScale(factor=1.0)
    assert hash(ToyScale(factor=1.0)) == hash(ToyScale(factor=1.0))
    assert ToyScale(factor=1.0) != ToyScale(factor=2.0)


def test_ports_are_the_parameters_of_reference() -> None:
    assert ToyGain.ports == ("x", "gain")
    assert ToyWrite.ports == ("cache", "rows")


def test_attributes_are_plain_json_values() -> None:
    attributes = ToyOptions(count=3, sizes=(1, 2), limit=None).attributes()
    assert attributes == {
        "count": 3,
        "ratio": 0.5,
        "is_on": False,
        "mode": "fast",
        "label": "",
        "sizes": [1, 2],
        "limit": None,
    }


def test_text_of_a_node_has_its_attributes() -> None:
    assert str(ToyScale(factor=1e-5)) == "ToyScale(factor=1e-05)"
    assert str(ToyAdd()) == "ToyAdd()"


@pytest.mark.parametrize("types, words", [((), "expected 2 inputs (x, gain), got 0"), ((f32(1),) * 3, "got 3")])
def test_wrong_number_of_ports_is_refused(types: tuple[TensorType, ...], words: str) -> None:
    with pytest.raises(TypeRuleError) as caught:
        ToyGain().result_types(*types)
    assert words in str(caught.value)


def test_state_and_tensor_ports_are_told_apart() -> None:
    with pytest.raises(TypeRuleError, match=r"^ToyScale\.x: expected a tensor, not a state, got paged"):
        ToyScale(factor=1.0).result_types(CACHE)
    with pytest.raises(TypeRuleError, match=r"^ToyRead\.cache: expected a state, got f32"):
        ToyRead().result_types(f32("a", 4, 8), f32("n", 8))


def test_reject_names_the_port_the_expectation_and_what_came() -> None:
    with pytest.raises(TypeRuleError) as caught:
        ToyGain().result_types(f32("n", 8), f32(9))
    assert str(caught.value) == "ToyGain.gain: expected f32[8], like x's last dim, got f32[9]"


def test_result_types_are_one_per_result() -> None:
    assert ToyMinMax().result_types(f32("n"), f32("n")) == (f32("n"), f32("n"))
    assert ToyWrite().result_types(CACHE, f32("n", 8)) == (CACHE, f32("n", 8))


def test_call_appends_to_the_circuit_of_its_arguments() -> None:
    circuit = Circuit("c")
    x = circuit.input("x", f32("n"))
    least, most = ToyMinMax()(x, x)
    assert circuit.calls[0].results == (least, most)
    assert ToyScale(factor=2.0)(x).type == f32("n")


def test_call_without_arguments_is_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"^ToyGain: expected x, gain, got no inputs"):
        ToyGain()()


def test_node_types_are_sorted_and_hold_the_declared_ones() -> None:
    names = list(node_types())
    assert names == sorted(names)
    assert node_types()["ToyScale"] is ToyScale


def test_second_node_of_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ToyScale is declared in tests\.support\.toy_nodes already"):

        class ToyScale(Node):
            def reference(self, x: torch.Tensor) -> torch.Tensor:
                return x

    assert node_types()["ToyScale"].__module__ == "tests.support.toy_nodes"


def test_stray_state_port_is_refused() -> None:
    with pytest.raises(TypeError, match=r"reads or writes \['cash'\], which are no parameters of reference"):

        class ToyStray(Node):
            reads = ("cash",)

            def reference(self, cache: torch.Tensor) -> torch.Tensor:
                return cache


def test_results_that_do_not_start_with_the_written_states_are_refused() -> None:
    with pytest.raises(TypeError, match="results must start with the written states"):

        class ToyBackwards(Node):
            writes = ("cache",)
            results = ("out", "cache")

            def reference(self, cache: torch.Tensor) -> torch.Tensor:
                return cache


def test_port_with_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a plain parameter without a default"):

        class ToyDefault(Node):
            def reference(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
                return x


def test_port_that_takes_any_number_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a plain parameter without a default"):

        class ToyVariadic(Node):
            def reference(self, *tensors: torch.Tensor) -> torch.Tensor:
                return tensors[0]


def test_refused_class_is_not_in_the_catalogue() -> None:
    assert not {"ToyStray", "ToyBackwards", "ToyDefault", "ToyVariadic"} & node_types().keys()


def test_node_without_a_reference_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ToyBare\.reference: \*tensors"):

        class ToyBare(Node):
            pass


def test_node_without_rules_says_what_is_missing() -> None:
    class ToyUnruled(Node):
        def reference(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(NotImplementedError, match="ToyUnruled defines no infer"):
        ToyUnruled().result_types(f32("n"))
    with pytest.raises(NotImplementedError, match="ToyUnruled defines no cost"):
        ToyUnruled().cost(f32(1))


@pytest.mark.parametrize(
    "name, expected",
    [("RmsNorm", "rms_norm"), ("Add", "add"), ("SparseMlaAttention", "sparse_mla_attention"), ("Top2Of3", "top2_of3")],
)
def test_snake_case(name: str, expected: str) -> None:
    assert snake_case(name) == expected


def test_unprintable_circuit_name_is_refused() -> None:
    with pytest.raises(VerifyError, match="expected 1 to 256 printable characters"):
        Circuit("a\nb")
