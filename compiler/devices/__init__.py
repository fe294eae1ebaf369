"""What a plan knows of a device: one TOML file each, every figure with its public source."""

from compiler.devices.device import THIS_MACHINE, Device, Figure, device_names, load_device
from compiler.devices.measure import measure_this_machine

__all__ = ["THIS_MACHINE", "Device", "Figure", "device_names", "load_device", "measure_this_machine"]
