"""Random legal circuits for property tests, with the names that break careless readers."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from circuit import Circuit, Node, StateType, Value, f32
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyOptions, ToyRead, ToyScale, ToyWrite

# the same examples on every run; how long one takes is the machine's business
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
NUM_COLUMNS = 3
AWKWARD_NAMES = [
    *(
        "a:b",
        "a: b",
        "x #y",
        "yes",
        "No",
        "on",
        "null",
        "~",
        "true",
        "1",
        "1e5",
        "0x1f",
        ".inf",
        "1:30",
        "<<",
        "=",
        "-",
    ),
    *("- x", "? x", "{", "[", "]", ", ", "'", '"', "\\", "\\n", "%x", "%", "&a", "*a", "!t", "@", "`", "|", ">", "#c"),
    *(
        " lead",
        "trail ",
        "a b",
        "é",
        "日本",
        "😀",
        "\N{COMBINING ACUTE ACCENT}",
        "self",
        "class",
        "_1",
        "x.y.z",
        "import",
    ),
    *("toy_scale_1", "toy_scale_2", "call_0", "weight_0", "outputs", "f32[n, 8]", "2001-01-01", "12e03", "a" * 256),
]

names = st.one_of(
    st.sampled_from(AWKWARD_NAMES),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8).filter(str.isprintable),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
nodes_of_one_port = st.one_of(
    st.builds(ToyScale, factor=floats),
    st.builds(
        ToyOptions,
        count=st.integers(),
        ratio=floats,
        is_on=st.booleans(),
        mode=st.sampled_from(["fast", "exact"]),
        label=st.text(max_size=8),
        sizes=st.lists(st.integers(), max_size=3).map(tuple),
        limit=st.none() | st.integers(),
    ),
)


@st.composite
def circuits(draw: st.DrawFn) -> Circuit:
    """Draw a circuit that `verify` accepts: every tensor is f32[n, 3], gains f32[3], states f32[num_blocks, 2, 3]."""
    circuit = Circuit(draw(names))
    taken: set[str] = set()

    def fresh() -> str:
        name = draw(names.filter(lambda drawn: drawn not in taken))
        taken.add(name)
        return name

    rows = [circuit.input(fresh(), f32("n", NUM_COLUMNS)) for _ in range(draw(st.integers(1, 3)))]
    gains = [circuit.weight(fresh(), f32(NUM_COLUMNS)) for _ in range(draw(st.integers(0, 2)))]
    layout = StateType("paged", f32("num_blocks", 2, NUM_COLUMNS), draw(st.integers(1, 4)))
    states = {name: circuit.state(name, layout) for name in [fresh() for _ in range(draw(st.integers(0, 2)))]}
    for _ in range(draw(st.integers(0, 8))):
        node, args = draw(_calls(rows, gains, states))
        block = draw(st.sampled_from(["", "head", "head/inner", "b: [c]"]))
        made = circuit.add_call(node, args, names=[fresh() for _ in node.results], block=block)
        if isinstance(node, ToyWrite):
            states[next(name for name, held in states.items() if held is args[0])] = made[0]
        rows += [value for value in made if not isinstance(value.type, StateType)]
    used = {arg for call in circuit.calls for arg in call.args}
    for value in [*rows, *gains]:
        if value not in used or draw(st.booleans()):
            circuit.output(draw(names.filter(lambda drawn: drawn not in circuit.outputs)), value)
    for name, value in states.items():
        circuit.state_output(name, value)
    return circuit


@st.composite
def _calls(
    draw: st.DrawFn, rows: list[Value], gains: list[Value], states: dict[str, Value]
) -> tuple[Node, list[Value]]:
    row = st.sampled_from(rows)
    choices: list[st.SearchStrategy[tuple[Node, list[Value]]]] = [
        st.tuples(nodes_of_one_port, st.tuples(row).map(list)),
        st.tuples(st.sampled_from([ToyAdd(), ToyMinMax()]), st.tuples(row, row).map(list)),
    ]
    if gains:
        choices.append(st.tuples(st.just(ToyGain()), st.tuples(row, st.sampled_from(gains)).map(list)))
    if states:
        state = st.sampled_from(list(states.values()))
        choices.append(st.tuples(st.sampled_from([ToyWrite(), ToyRead()]), st.tuples(state, row).map(list)))
    return draw(st.one_of(choices))
