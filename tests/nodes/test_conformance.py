"""What every node promises, held for each node of the catalogue by its case in `tests/nodes/cases/`."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import nodes
from circuit import (
    Circuit,
    Cost,
    Node,
    PortType,
    StateType,
    TypeRuleError,
    Value,
    argument_names,
    from_document,
    from_graph_module,
    interpret,
    node_types,
    snake_case,
    to_document,
    to_graph_module,
    to_json,
    to_text,
    to_yaml,
    total_bytes,
    verify,
)
from tests.support.node_cases import Example, NodeCase, Sizes, load_cases, perturbations, same_bits, strided_copy
from tests.support.node_docstring import PARTS, read_docstring

NODE_FOLDER = Path(nodes.__file__).parent
# other test modules may declare nodes of their own
CATALOGUE = {name: node for name, node in node_types().items() if node.__module__.split(".")[0] == "nodes"}
FILES = sorted(path.stem for path in NODE_FOLDER.glob("*.py") if path.stem != "__init__")
CASES = load_cases()
EXAMPLES = [
    pytest.param(case, example, dtype, id=f"{name}-{number}-{dtype}")
    for name, case in CASES.items()
    for number, example in enumerate(case.examples)
    for dtype in case.dtypes
]
RUNS = [
    pytest.param(example, dtype, sizes, id=f"{name}-{number}-{dtype}-{variant}")
    for name, case in CASES.items()
    for number, example in enumerate(case.examples)
    for dtype in case.dtypes
    for variant, sizes in enumerate(example.sizes)
]
each_node = pytest.mark.parametrize("node_type", CATALOGUE.values(), ids=lambda node_type: node_type.__name__)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
each_example = pytest.mark.parametrize("case, example, dtype", EXAMPLES)
each_run = pytest.mark.parametrize("example, dtype, sizes", RUNS)


def run(node: Node, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    made = node.reference(*tensors)
    return made if isinstance(made, tuple) else (made,)


def tensor_type(port_type: PortType):
    return port_type.tensor if isinstance(port_type, StateType) else port_type


def refusal(node: Node, types: tuple[PortType, ...]) -> str:
    try:
        return f"taken, as {node.result_types(*types)}"
    except TypeRuleError as error:
        return str(error)


def one_call_circuit(example: Example, dtype: str, sizes: Sizes | None = None) -> Circuit:
    circuit = Circuit("one_call")
    args: list[Value] = []
    for port, port_type in zip(example.node.ports, example.types(dtype), strict=True):
        declare = circuit.state if isinstance(port_type, StateType) else circuit.input
        args.append(declare(port, port_type.bind(sizes or {})))
    made = example.node(*args)
    results = made if isinstance(made, tuple) else (made,)
    for port in example.node.reads:
        circuit.state_output(port, args[example.node.ports.index(port)])
    for name, value in zip(example.node.results, results, strict=True):
        if name in example.node.writes:
            circuit.state_output(name, value)
        else:
            circuit.output(name, value)
    verify(circuit)
    return circuit


# the catalogue, the files and the cases are one list


def test_every_node_has_a_case_and_every_case_a_node() -> None:
    assert {name: case.node_type for name, case in CASES.items()} == {
        snake_case(name): node_type for name, node_type in CATALOGUE.items()
    }


def test_every_file_holds_the_one_node_it_is_named_for() -> None:
    assert sorted(snake_case(name) for name in CATALOGUE) == FILES
    for node_type in CATALOGUE.values():
        assert node_type.__module__ == f"nodes.{snake_case(node_type.__name__)}"
        tree = ast.parse((NODE_FOLDER / f"{snake_case(node_type.__name__)}.py").read_text())
        assert [item.name for item in tree.body if isinstance(item, ast.ClassDef)] == [node_type.__name__]


@pytest.mark.parametrize("stem", FILES)
def test_file_imports_torch_and_circuit_only(stem: str) -> None:
    tree = ast.parse((NODE_FOLDER / f"{stem}.py").read_text())
    imported = {alias.name for item in ast.walk(tree) if isinstance(item, ast.Import) for alias in item.names}
    imported |= {item.module or "" for item in ast.walk(tree) if isinstance(item, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= {"torch", "circuit", "typing", "math"}


@pytest.mark.parametrize("stem", FILES)
def test_file_decides_nothing_by_device(stem: str) -> None:
    tree = ast.parse((NODE_FOLDER / f"{stem}.py").read_text())
    tests = [ast.unparse(item.test) for item in ast.walk(tree) if isinstance(item, ast.If | ast.IfExp | ast.While)]
    assert not [test for test in tests if re.search(r"device|cuda|cpu", test)]


# the docstring


@each_node
def test_docstring_has_one_sentence_and_the_five_parts_in_order(node_type: type[Node]) -> None:
    doc = read_docstring(inspect.cleandoc(node_type.__doc__))
    assert tuple(doc.parts) == PARTS
    assert all(doc.parts.values())
    assert re.match(r"[A-Z].*\.$", doc.first_line)
    assert not re.search(r"[\w)]\. [A-Z]", doc.first_line)


@each_node
def test_docstring_names_the_ports_results_and_states(node_type: type[Node]) -> None:
    doc = read_docstring(inspect.cleandoc(node_type.__doc__))
    assert tuple(doc.ports()) == node_type.ports
    if len(node_type.results) > 1:
        assert tuple(doc.results()) == node_type.results
    assert tuple(doc.states("reads")) == node_type.reads
    assert tuple(doc.states("writes")) == node_type.writes
    assert (doc.parts["State"] == "none") == (not node_type.reads and not node_type.writes)


# the type rule against the reference


@each_run
def test_infer_agrees_with_the_reference(example: Example, dtype: str, sizes: Sizes) -> None:
    types = example.types(dtype)
    inferred = example.node.result_types(*types)
    bound = tuple(port_type.bind(sizes) for port_type in inferred)
    assert example.node.result_types(*(port_type.bind(sizes) for port_type in types)) == bound
    tensors = example.tensors(dtype, sizes)
    expected = [(tensor_type(port_type).dtype, tensor_type(port_type).sizes()) for port_type in bound]
    on_meta = run(example.node, tuple(tensor.to("meta") for tensor in tensors))
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in on_meta] == expected
    assert {tensor.device.type for tensor in on_meta} == {"meta"}
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in run(example.node, tensors)] == expected


@each_example
def test_written_states_keep_their_type(case: NodeCase, example: Example, dtype: str) -> None:
    types = example.types(dtype)
    inferred = example.node.result_types(*types)
    written = [types[example.node.ports.index(port)] for port in example.node.writes]
    assert list(inferred[: len(written)]) == written
    assert not [port_type for port_type in inferred[len(written) :] if isinstance(port_type, StateType)]


@each_example
def test_infer_refuses_a_wrong_type_at_each_port(case: NodeCase, example: Example, dtype: str) -> None:
    name, types = type(example.node).__name__, example.types(dtype)
    for index, port in enumerate(example.node.ports):
        for kind, wrong in perturbations(types[index]):
            fault = f"{port} {kind}"
            given = (*types[:index], wrong, *types[index + 1 :])
            if fault in case.accepts:
                assert example.node.result_types(*given)
                continue
            message = refusal(example.node, given)
            blamed = case.blames.get(fault, port)
            assert message.startswith(f"{name}.{blamed}: expected "), f"{fault} as {wrong}: {message}"
            if blamed == port:
                assert message.endswith(f"got {wrong}"), f"{fault}: {message}"


@each_case
def test_case_declares_no_perturbation_that_never_happens(case: NodeCase) -> None:
    made = {
        f"{port} {kind}"
        for example in case.examples
        for dtype in case.dtypes
        for port, port_type in zip(example.node.ports, example.types(dtype), strict=True)
        for kind, _ in perturbations(port_type)
    }
    assert {*case.accepts, *case.blames} <= made
    assert not {*case.accepts} & {*case.blames}
    assert all(case.accepts.values())


# the reference


@each_run
def test_reference_changes_no_argument_and_repeats_bitwise(example: Example, dtype: str, sizes: Sizes) -> None:
    tensors = example.tensors(dtype, sizes)
    kept = tuple(tensor.clone() for tensor in tensors)
    first = run(example.node, tensors)
    assert all(same_bits(tensor, copy) for tensor, copy in zip(tensors, kept, strict=True))
    second = run(example.node, tuple(tensor.clone() for tensor in tensors))
    assert all(same_bits(*pair) for pair in zip(first, second, strict=True))


@each_run
def test_reference_returns_states_that_share_no_memory(example: Example, dtype: str, sizes: Sizes) -> None:
    tensors = example.tensors(dtype, sizes)
    for made in run(example.node, tensors)[: len(example.node.writes)]:
        assert made.is_contiguous()
        assert all(made.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() for tensor in tensors)


@each_run
def test_reference_takes_strided_arguments(example: Example, dtype: str, sizes: Sizes) -> None:
    tensors = example.tensors(dtype, sizes)
    expected = run(example.node, tensors)
    for made, wanted in zip(run(example.node, tuple(map(strided_copy, tensors))), expected, strict=True):
        # a product may be summed in another order
        torch.testing.assert_close(made, wanted, equal_nan=True)


# the cost


@each_example
def test_cost_is_bounded_by_the_tensors_and_grows_with_the_rows(case: NodeCase, example: Example, dtype: str) -> None:
    for sizes in example.sizes:
        before = Cost()
        for num_rows in sorted({0, 1, 2, 3, 7, 64, 1000, sizes["n"]}):
            types = tuple(port_type.bind({**sizes, "n": num_rows}) for port_type in example.types(dtype))
            cost = example.node.cost(*types)
            made = total_bytes(*map(tensor_type, example.node.result_types(*types)))
            assert all(isinstance(count, int) for count in (cost.flops, cost.bytes_read, cost.bytes_written))
            if case.is_view:
                assert cost == Cost()
                continue
            assert cost.bytes_read <= total_bytes(*map(tensor_type, types))
            assert (cost.bytes_read > 0) or num_rows == 0
            assert cost.bytes_written == made if not example.node.writes else cost.bytes_written >= 0
            assert before.flops <= cost.flops
            assert before.bytes_read <= cost.bytes_read
            assert before.bytes_written <= cost.bytes_written
            assert before.bytes_written < cost.bytes_written or num_rows == 0 or made == 0
            before = cost


@each_example
def test_cost_refuses_unbound_dims(case: NodeCase, example: Example, dtype: str) -> None:
    if case.is_view:
        pytest.skip("a view costs nothing at any size")
    with pytest.raises(TypeRuleError, match="not bound"):
        example.node.cost(*example.types(dtype))


# attributes


@each_case
def test_attributes_are_strict_and_frozen(case: NodeCase) -> None:
    for example in case.examples:
        node, given = example.node, example.node.model_dump()
        assert type(node)(**given) == node
        with pytest.raises(ValidationError, match="Extra inputs"):
            type(node)(**given, undeclared=1)
        for name, value in given.items():
            wrong = {bool: (1, "true"), int: (True, 1.0, "1"), float: ("1.0", float("nan"), float("inf")), str: ("f8",)}
            for bad in (*wrong[type(value)], None, [value]):
                with pytest.raises(ValidationError):
                    type(node)(**{**given, name: bad})
            with pytest.raises(ValidationError, match="frozen"):
                setattr(node, name, value)


@each_case
def test_counts_are_at_least_one(case: NodeCase) -> None:
    example = case.examples[0]
    given = example.node.model_dump()
    counts = [name for name, value in given.items() if type(value) is int]
    assert case.free_attributes <= {*counts}
    for name in counts:
        if name in case.free_attributes:
            continue
        for bad in (0, -1):
            with pytest.raises(ValidationError, match=f"{name}\\n.*greater than or equal to 1"):
                type(example.node)(**{**given, name: bad})


# one call as a circuit


@each_example
def test_document_round_trip(case: NodeCase, example: Example, dtype: str) -> None:
    circuit = one_call_circuit(example, dtype)
    for document in (to_document(circuit), to_yaml(circuit), to_json(circuit)):
        back = from_document(document)
        assert to_text(back) == to_text(circuit)
        assert back.calls[0].node == example.node


@each_run
def test_fx_round_trip_and_run_are_those_of_the_interpreter(example: Example, dtype: str, sizes: Sizes) -> None:
    circuit = one_call_circuit(example, dtype, sizes)
    module = to_graph_module(circuit)
    assert to_text(from_graph_module(module)) == to_text(circuit)
    tensors = dict(zip(example.node.ports, example.tensors(dtype, sizes), strict=True))
    states = {name: tensors[name] for name in circuit.states}
    wanted = interpret(circuit, inputs={name: tensors[name] for name in circuit.inputs}, weights={}, states=states)
    outputs, next_states = module(*(tensors[name] for name in argument_names(module)))
    for made, expected in ((outputs, wanted.outputs), (next_states, wanted.states)):
        assert {*made} == {*expected}
        assert all(same_bits(made[name], expected[name]) for name in made)
