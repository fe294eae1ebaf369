"""Arena: where the intermediate buffers of a launch plan lie, by what is alive between which launches.

before:  launch 0 writes a, launch 1 reads a and writes b, launch 2 reads b and writes c
after:   a at 0, b at 512, c at 0: a is dead when c is made
"""

from collections.abc import Mapping, Sequence

from compiler.passes.plan_memory import place_by_lifetime
from compiler.triton.launch import Buffer, Launch


def lay_out(buffers: Mapping[str, Buffer], launches: Sequence[Launch]) -> tuple[dict[str, int], int]:
    """Return the byte offset of every arena buffer, and the arena's size.

    A buffer lives from the first launch that takes a view of it to the last; scratch that one launch alone takes lives
    for that launch.
    """
    alive: dict[str, tuple[int, int]] = {}
    for index, launch in enumerate(launches):
        for view in launch.views:
            if buffers[view.buffer].kind == "arena":
                first, _ = alive.get(view.buffer, (index, index))
                alive[view.buffer] = (first, index)
    return place_by_lifetime({name: buffers[name].num_bytes for name in alive}, alive)
