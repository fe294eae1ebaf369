"""Drawings of circuits: for the terminal, Graphviz, Mermaid, Model Explorer, as a picture and as an interactive page.

A package of its own beside the language: importing `circuit` loads none of it.
"""

from circuit.draw.difference import draw_difference, num_changes
from circuit.draw.dot import to_dot
from circuit.draw.drawing import CallNote, Drawing, DrawnEdge, DrawnGroup, DrawnNode, DrawnPort, DrawnWeight, Overlay
from circuit.draw.from_circuit import Notes, draw_circuit
from circuit.draw.mermaid import to_mermaid
from circuit.draw.model_explorer import to_model_explorer
from circuit.draw.page import View, to_page
from circuit.draw.picture import to_png, to_svg
from circuit.draw.terminal import to_terminal

__all__ = [
    "CallNote",
    "Drawing",
    "DrawnEdge",
    "DrawnGroup",
    "DrawnNode",
    "DrawnPort",
    "DrawnWeight",
    "Notes",
    "Overlay",
    "View",
    "draw_circuit",
    "draw_difference",
    "num_changes",
    "to_dot",
    "to_mermaid",
    "to_model_explorer",
    "to_page",
    "to_png",
    "to_svg",
    "to_terminal",
]
