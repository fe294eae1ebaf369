"""Circuits that are hard to draw: names that every format gives a meaning to, and one of many nodes."""

from circuit import Circuit, StateType, f32
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyScale, ToyWrite

# each of these means something in DOT, Mermaid, HTML, JSON, JavaScript or a terminal
HARD_NAMES = (
    'a:b.c "quoted" \\n',
    "</script><script>alert(1)</script>",
    "<br/> & #35; %s {x} [y] (z) |w| `v` $u$ @STYLE@",
    "ünïcödé 漢字 🙂 e\u0301",
    "end",
    "&lt;b&gt; &amp;amp;",
    "%% -- ; //",
    "\u2028line\u2029",
)


def hard_circuit() -> Circuit:
    """Return a circuit whose own name, blocks, inputs, weights, values and outputs are all hard to write."""
    circuit = Circuit('c:"<&>"')
    x = circuit.input("in: " + HARD_NAMES[0], f32("n", 3))
    gain = circuit.weight('w"' + HARD_NAMES[1], f32(3))
    for number, name in enumerate(_printable(HARD_NAMES)):
        with circuit.block(name):
            x = ToyGain()(x, gain).named(f"{number} {name}")
    circuit.output('out "' + HARD_NAMES[3], x)
    return circuit


def large_circuit(num_nodes: int, width: int = 25) -> Circuit:
    """Return a circuit of so many calls, `width` beside one another, each block two layers deep."""
    circuit = Circuit("large")
    row = [circuit.input(f"x{lane}", f32("n", 8)) for lane in range(width)]
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8)))
    made = 0
    while made < num_nodes - 1:
        with circuit.block(f"layer {made // (2 * width)}"):
            for lane in range(min(width, num_nodes - 1 - made)):
                left = row[(lane + 1) % width]
                row[lane] = ToyAdd()(row[lane], left) if (made + lane) % 3 else ToyScale(factor=0.5)(row[lane])
        made += min(width, num_nodes - 1 - made)
    cache, size = ToyWrite()(cache, row[0])
    circuit.output("y", row[-1])
    circuit.output("size", size)
    circuit.state_output("cache", cache)
    return circuit


def diamond(middle: float = 2.0, last: str = "y") -> Circuit:
    """Return x, scaled by `middle`, joined with itself; `last` names the result."""
    circuit = Circuit("diamond")
    x = circuit.input("x", f32("n", 3))
    least, most = ToyMinMax()(ToyScale(factor=middle)(x).named("scaled"), x)
    circuit.output("y", ToyAdd()(least.named("least"), most.named("most")).named(last))
    return circuit


def _printable(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("".join(char for char in name if char.isprintable() and char != "/") for name in names)
