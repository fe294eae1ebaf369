"""A device as data: bandwidth, capacity, rates, and where each figure was published.

A figure that no public source gives is left out of the file, never guessed; what needs it says that it is unknown.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from circuit import CircuitError

FOLDER = Path(__file__).parent
THIS_MACHINE = "this-machine"  # what `measure_this_machine` wrote, in a folder of the user's


class Figure(BaseModel):
    """One number of a device, in the unit that its key names, and the page or the measurement it comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]
    note: str = ""


class Device(BaseModel):
    """What a roofline and a memory plan need of a device.

    memory_bandwidth_gbps: of the datasheet, GB/s, GB = 1e9 bytes. copy_rate_gbps: measured, bytes read plus bytes
    written a second; the two are kept apart. capacity_gb: 1e9 bytes. l2_mb: 1e6 bytes. Rates are dense, without
    sparsity, in 1e12 operations a second. launch_gap_us: from one kernel's end to the next one's start in a graph.
    `lacks` names what the hardware does not have, so that no figure of it can be known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: Annotated[str, Field(min_length=1)]
    lacks: tuple[str, ...] = ()
    memory_bandwidth_gbps: Figure | None = None
    copy_rate_gbps: Figure | None = None
    capacity_gb: Figure | None = None
    l2_mb: Figure | None = None
    num_multiprocessors: Figure | None = None
    bf16_tflops: Figure | None = None
    fp8_tflops: Figure | None = None
    int8_tops: Figure | None = None
    launch_gap_us: Figure | None = None

    def figures(self) -> dict[str, Figure]:
        """Return the figures that are known, by key."""
        held = {key: getattr(self, key) for key in FIGURE_KEYS}
        return {key: figure for key, figure in held.items() if figure is not None}

    @model_validator(mode="after")
    def _check_lacks(self) -> Self:
        for key in self.lacks:
            if key not in FIGURE_KEYS or getattr(self, key) is not None:
                raise ValueError(f"lacks: expected keys of figures that are not given, got {key!r}")
        return self

    @property
    def unknown(self) -> tuple[str, ...]:
        """The keys of the figures that the hardware has and that no public source gives."""
        return tuple(key for key in FIGURE_KEYS if getattr(self, key) is None and key not in self.lacks)

    def bandwidth(self) -> tuple[float, str]:
        """Return (bytes a second, what kind of figure it is): the measured copy rate where known, else the datasheet's.

        Raises CircuitError for a device that has neither.
        """
        for figure, kind in ((self.copy_rate_gbps, "measured copy rate"), (self.memory_bandwidth_gbps, "datasheet")):
            if figure is not None:
                return figure.value * 1e9, kind
        raise CircuitError(f"device {self.name}: expected a memory bandwidth, got none; give one with --bandwidth")


FIGURE_KEYS = tuple(key for key in Device.model_fields if key not in ("name", "title", "lacks"))


def device_names() -> tuple[str, ...]:
    """Return the names of the devices that are described here, sorted; this machine's own is not among them."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_device(name: str, *, measured: Path | None = None) -> Device:
    """Return a device by name, in any case; `measured` is the file that holds this machine's.

    CircuitError lists the known names, the close ones first, or says how to measure this machine.
    """
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted == THIS_MACHINE:
        if measured is None or not measured.is_file():
            raise CircuitError(
                f"device {THIS_MACHINE}: expected its measurement, got none yet; run `circuit plan --measure` once"
            )
        return read_device(measured, name=THIS_MACHINE)
    known = (*device_names(), THIS_MACHINE)
    # `h100` for `h100-sxm`: the start of one name alone is that name
    starts = [known_name for known_name in known if wanted and known_name.startswith(wanted)]
    if wanted not in known and len(starts) == 1:
        return load_device(starts[0], measured=measured)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise CircuitError(f"device {name!r}: {meant}the known ones are {', '.join(known)}")
    return read_device(FOLDER / f"{wanted}.toml", name=wanted)


def read_device(file: Path, *, name: str) -> Device:
    """Read a device's TOML file; CircuitError, one line, for what is not one."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CircuitError(f"{file}: expected a readable device file, got {error.strerror}; check the path") from None
    except ValueError as error:  # bad TOML and bad UTF-8 alike
        raise CircuitError(f"{file}: expected TOML, got a fault: {error}; repair or remove the file") from None
    try:
        return Device(**{**document, "name": name})
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise CircuitError(f"{file}: {place}: {fault['msg']}; repair or remove the file") from None
