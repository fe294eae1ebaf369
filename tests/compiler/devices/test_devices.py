"""The described devices, this machine's measurement, and what a wrong name or file says."""

from pathlib import Path

import pytest

from circuit import CircuitError
from compiler import THIS_MACHINE, Device, Figure, device_names, load_device, measure_this_machine
from compiler.devices.device import read_device
from compiler.devices.measure import to_toml

DESCRIBED = ("a100-80gb", "b200", "gb10", "gb200", "h100-sxm", "h200", "l40s", "mi300x", "rtx-5090")


def test_the_described_devices_are_these() -> None:
    assert device_names() == DESCRIBED


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_figure_has_a_public_source(name: str) -> None:
    device = load_device(name)
    assert device.memory_bandwidth_gbps is not None
    assert device.capacity_gb is not None
    assert all(figure.source.startswith("https://") for figure in device.figures().values())
    known = [*device.figures(), *device.unknown, *device.lacks]
    assert sorted(known) == sorted({*Device.model_fields} - {"name", "title", "lacks"})


@pytest.mark.parametrize(
    "name, gbps, capacity", [("h100-sxm", 3350, 80), ("h200", 4800, 141), ("mi300x", 5300, 192), ("gb10", 273, 128)]
)
def test_datasheet_figures(name: str, gbps: float, capacity: float) -> None:
    device = load_device(name)
    assert device.bandwidth() == (gbps * 1e9, "datasheet")
    assert device.capacity_gb is not None
    assert device.capacity_gb.value == capacity


# dense rates, of the vendors' tables: a sparse one is twice as much
RATES = {
    "a100-80gb": (312, None, 624),
    "b200": (2250, 4500, 4500),
    "gb10": (None, None, None),
    "gb200": (2500, 5000, 5000),
    "h100-sxm": (989.4, 1978.9, 1978.9),
    "h200": (989.4, 1978.9, 1978.9),
    "l40s": (362.05, 733, 733),
    "mi300x": (1307.4, 2614.9, 2614.9),
    "rtx-5090": (209.5, 419, 838),
}
# multiprocessors, L2 in MB
CHIPS = {
    "a100-80gb": (108, 40),
    "b200": (148, 126),
    "gb10": (48, 24),
    "gb200": (148, 126),
    "h100-sxm": (132, 50),
    "h200": (132, 50),
    "l40s": (142, 96),
    "mi300x": (304, 32),
    "rtx-5090": (170, 96),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_rates_are_dense_and_chips_are_these(name: str) -> None:
    device = load_device(name)
    figures = {key: figure.value for key, figure in device.figures().items()}
    assert tuple(figures.get(key) for key in ("bf16_tflops", "fp8_tflops", "int8_tops")) == RATES[name]
    assert tuple(figures.get(key) for key in ("num_multiprocessors", "l2_mb")) == CHIPS[name]


def test_what_the_hardware_lacks_is_not_called_unknown() -> None:
    ampere = load_device("a100")
    assert "fp8_tflops" in ampere.lacks
    assert "fp8_tflops" not in ampere.unknown
    for lacks in (("l3_mb",), ("l2_mb",)):
        with pytest.raises(ValueError, match="lacks: expected keys of figures that are not given"):
            Device(name="d", title="d", lacks=lacks, l2_mb=Figure(value=1, source="s"))


@pytest.mark.parametrize("spelt", ["H200", " h200 ", "h100", "H100_SXM", "a100", "rtx 5090", "MI300X"])
def test_names_are_read_in_any_spelling_and_by_their_start(spelt: str) -> None:
    assert load_device(spelt).name in DESCRIBED


@pytest.mark.parametrize("name, close", [("h20O", "h200"), ("b20", "b200"), ("mi300", "mi300x"), ("5090", "rtx-5090")])
def test_unknown_device_lists_the_known_ones_close_ones_first(name: str, close: str) -> None:
    if name in ("b20", "mi300"):  # the start of one name
        assert load_device(name).name == close
        return
    with pytest.raises(CircuitError) as caught:
        load_device(name)
    assert f"did you mean {close}" in str(caught.value)
    assert all(known in str(caught.value) for known in (*DESCRIBED, THIS_MACHINE))


@pytest.mark.parametrize("name", ["", "  ", "xyz", "../device", "h"])
def test_names_that_are_none_or_several_list_the_known_ones(name: str) -> None:
    with pytest.raises(CircuitError, match="the known ones are a100-80gb, b200"):
        load_device(name)


def test_this_machine_says_how_to_measure_it_first(tmp_path: Path) -> None:
    with pytest.raises(CircuitError, match=r"run `circuit plan --measure` once"):
        load_device(THIS_MACHINE, measured=tmp_path / "none.toml")


def test_measurement_is_kept_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.devices.measure.COPY_BYTES", 1 << 12)
    file = tmp_path / "new" / "this-machine.toml"
    device = measure_this_machine(file)
    assert load_device("this-machine", measured=file) == device
    assert device.memory_bandwidth_gbps is None
    assert device.copy_rate_gbps is not None
    assert device.bandwidth()[1] == "measured copy rate"


def test_titles_with_quotes_and_line_ends_survive_the_file(tmp_path: Path) -> None:
    device = Device(name="d", title='a "b" \\ c\n', l2_mb=Figure(value=1e-3, source="s", note="n"))
    (tmp_path / "d.toml").write_text(to_toml(device))
    assert read_device(tmp_path / "d.toml", name="d").title == 'a "b" \\ c '
    assert read_device(tmp_path / "d.toml", name="d").l2_mb == device.l2_mb


@pytest.mark.parametrize(
    "text, fault",
    [
        ("title = ", "expected TOML"),
        ('title = "x"\n[l2_mb]\nvalue = 0\nsource = "s"', "l2_mb.value"),
        ('title = "x"\n[l2_mb]\nvalue = inf\nsource = "s"', "l2_mb.value"),
        ('title = "x"\n[l2_mb]\nvalue = 3', "l2_mb.source"),
        ('title = "x"\n[l3_mb]\nvalue = 3\nsource = "s"', "l3_mb"),
        ("", "title"),
    ],
)
def test_damaged_device_files_are_named_with_the_key(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "this-machine.toml"
    file.write_text(text)
    with pytest.raises(CircuitError, match=fault) as caught:
        load_device(THIS_MACHINE, measured=file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_device_without_a_bandwidth_says_how_to_give_one() -> None:
    with pytest.raises(CircuitError, match="--bandwidth"):
        Device(name="d", title="d").bandwidth()
