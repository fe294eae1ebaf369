"""The language of circuits: types, nodes' contract, graph, checks, the interpreter. Knows no node, kernel or model."""

from circuit.communicator import Axis, Communicator, Exchange, communicating, communicator_over
from circuit.cost import Cost, total_bytes
from circuit.diff import Change, Difference, diff
from circuit.document import from_document, load_document, save_document, to_document, to_json, to_yaml
from circuit.errors import (
    BindingError,
    CaptureError,
    CheckpointError,
    CircuitError,
    ConfigError,
    DocumentError,
    LoweringError,
    RankError,
    StateError,
    TypeRuleError,
    VerifyError,
    close_names,
)
from circuit.fx import NodeModule, argument_names, from_graph_module, to_graph_module
from circuit.graph import Call, Circuit, Value
from circuit.interpreter import RunResult, check_tensor, interpret
from circuit.node import Count, Node, NonNegative, PortType, node_types, snake_case
from circuit.state_type import StateType
from circuit.tensor_type import DTYPES, Dim, TensorType, as_dim, bf16, dim_text, dtype_name, f32, i64, match_sizes
from circuit.text import call_text, to_text
from circuit.verify import verify

__all__ = [
    "DTYPES",
    "Axis",
    "BindingError",
    "Call",
    "CaptureError",
    "Change",
    "CheckpointError",
    "Circuit",
    "CircuitError",
    "Communicator",
    "ConfigError",
    "Cost",
    "Count",
    "Difference",
    "Dim",
    "DocumentError",
    "Exchange",
    "LoweringError",
    "Node",
    "NodeModule",
    "NonNegative",
    "PortType",
    "RankError",
    "RunResult",
    "StateError",
    "StateType",
    "TensorType",
    "TypeRuleError",
    "Value",
    "VerifyError",
    "argument_names",
    "as_dim",
    "bf16",
    "call_text",
    "check_tensor",
    "close_names",
    "communicating",
    "communicator_over",
    "diff",
    "dim_text",
    "dtype_name",
    "f32",
    "from_document",
    "from_graph_module",
    "i64",
    "interpret",
    "load_document",
    "match_sizes",
    "node_types",
    "save_document",
    "snake_case",
    "to_document",
    "to_graph_module",
    "to_json",
    "to_text",
    "to_yaml",
    "total_bytes",
    "verify",
]
