"""The floor of a launch on a device: the slower of moving its bytes and doing its operations. Nothing runs faster."""

from dataclasses import dataclass

from circuit import Cost
from compiler.devices import Device


@dataclass(frozen=True, slots=True)
class Roofline:
    """The two roofs of a device, and the gap between launches.

    bytes_per_s and where it comes from; flops_per_s in the model's dtype and launch_gap_us are None where unknown:
    then the floor is that of the bytes alone, and gaps are not counted.
    """

    bytes_per_s: float
    bandwidth_kind: str
    flops_per_s: float | None
    launch_gap_us: float | None

    def floor_us(self, cost: Cost) -> float:
        """Return the least microseconds that a launch of this cost takes."""
        moving = (cost.bytes_read + cost.bytes_written) / self.bytes_per_s * 1e6
        return max(moving, self.computing_us(cost))

    def computing_us(self, cost: Cost) -> float:
        """Return the microseconds of the operations alone; 0 where the rate is unknown."""
        return cost.flops / self.flops_per_s * 1e6 if self.flops_per_s else 0.0

    def gaps_us(self, num_launches: int) -> float | None:
        """Return what the gaps of so many launches take, None where a gap is unknown."""
        return None if self.launch_gap_us is None else num_launches * self.launch_gap_us


def roofline_of(
    device: Device, *, is_16_bit: bool, bandwidth: float | None = None, launch_gap_us: float | None = None
) -> Roofline:
    """Return a device's roofs; `bandwidth` in bytes a second and the gap override what its file says.

    Operations in another dtype than a 16-bit one run at a rate that the files do not state, so they count nothing.
    """
    known, kind = device.bandwidth() if bandwidth is None else (bandwidth, "as given")
    rate = device.bf16_tflops.value * 1e12 if device.bf16_tflops and is_16_bit else None
    gap = launch_gap_us
    if gap is None and device.launch_gap_us:
        gap = device.launch_gap_us.value
    return Roofline(bytes_per_s=known, bandwidth_kind=kind, flops_per_s=rate, launch_gap_us=gap)
