"""The language of circuits: types, nodes' contract, graph, checks, the interpreter. Knows no node, kernel or model."""

from circuit.cost import Cost, total_bytes
from circuit.errors import (
    BindingError,
    CaptureError,
    CheckpointError,
    CircuitError,
    ConfigError,
    DocumentError,
    LoweringError,
    StateError,
    TypeRuleError,
    VerifyError,
)
from circuit.graph import Call, Circuit, Value
from circuit.interpreter import RunResult, check_tensor, interpret
from circuit.node import Count, Node, PortType, node_types, snake_case
from circuit.state_type import StateType
from circuit.tensor_type import DTYPES, Dim, TensorType, as_dim, bf16, dim_text, dtype_name, f32, i64, match_sizes
from circuit.text import call_text, to_text
from circuit.verify import verify

__all__ = [
    "DTYPES",
    "BindingError",
    "Call",
    "CaptureError",
    "CheckpointError",
    "Circuit",
    "CircuitError",
    "ConfigError",
    "Cost",
    "Count",
    "Dim",
    "DocumentError",
    "LoweringError",
    "Node",
    "PortType",
    "RunResult",
    "StateError",
    "StateType",
    "TensorType",
    "TypeRuleError",
    "Value",
    "VerifyError",
    "as_dim",
    "bf16",
    "call_text",
    "check_tensor",
    "dim_text",
    "dtype_name",
    "f32",
    "i64",
    "interpret",
    "match_sizes",
    "node_types",
    "snake_case",
    "to_text",
    "total_bytes",
    "verify",
]
