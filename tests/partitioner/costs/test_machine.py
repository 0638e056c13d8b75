"""Machines: from files and by hand, their links, and the mistakes in them."""

from __future__ import annotations

from math import inf

import pytest

from partitioner.costs.cost import Speed
from partitioner.costs.machine import Device, Level, LinkSpec, Machine
from partitioner.costs.machine_files import load_machine
from symgraph import cpu, gpu
from symgraph.core.errors import ConfigError, PlacementError
from symgraph.frontend import sym
from symgraph.frontend.lower import lower

# Two racks; in the first, node a has two sockets:
#
#     rack 0                           rack 1
#       node a             node b        node a
#         socket 0  gpu(0)   gpu(3)        gpu(4)
#                   gpu(1)
#         socket 1  gpu(2)
GOOD = """\
devices:
  gpu(0): &gpu {flops: 15 TFLOP/s, bandwidth: 900GB/s, call: 10us, memory: 16 GiB, node: a}
  gpu(1): *gpu
  gpu(2): {<<: *gpu, socket: 1}
  gpu(3): {<<: *gpu, node: b}
  gpu(4): {flops: 1.0e+12, node: a, rack: 1}
links:
  socket: {latency: 2us, bandwidth: 100 GB/s}
  node: {latency: 4us, bandwidth: 12 GB/s, shared: true}
  rack: {latency: 20us, bandwidth: 10 Gbit/s, shared: true}
  network: {latency: 1.0e-4, bandwidth: 1.0e+8, shared: true}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text):
        (tmp_path / "m.yaml").write_text(text)
        return load_machine("m.yaml")

    return load


def refusal(load, text):
    """The one line that a machine file is refused with."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- what is right -----------------------------------------------------------------------------


def test_devices(load):
    machine = load(GOOD)
    assert machine.devices[2] == Device(gpu(2), 15e12, 1e-5, 9e11, 16 << 30, "1", "a", "0")
    assert machine.devices[4] == Device(gpu(4), 1e12, 0.0, inf, None, "0", "a", "1")
    assert machine.devices[2].speed == Speed(15e12, 1e-5, 9e11)
    assert machine.contexts == tuple(map(gpu, range(5)))


@pytest.mark.parametrize(
    ("a", "b", "link"),
    [
        (0, 0, LinkSpec(0.0, inf, "")),
        (0, 1, LinkSpec(2e-6, 1e11, "")),
        (0, 2, LinkSpec(4e-6, 1.2e10, "node 0/a")),
        (1, 2, LinkSpec(4e-6, 1.2e10, "node 0/a")),
        (2, 3, LinkSpec(2e-5, 1.25e9, "rack 0")),
        (0, 4, LinkSpec(1e-4, 1e8, "network")),  # another node a
    ],
)
def test_a_link_is_that_of_the_narrowest_place_that_holds_both(load, a, b, link):
    machine = load(GOOD)
    assert machine.link(a, b) == machine.link(b, a) == link


def test_where_a_level_has_no_link_the_next_wider_one_serves(load):
    kept = [line for line in GOOD.splitlines() if "socket: {" not in line and "rack: {" not in line]
    machine = load("\n".join(kept))
    assert machine.link(0, 1) == machine.link(0, 2) == LinkSpec(4e-6, 1.2e10, "node 0/a")
    assert machine.link(2, 3) == machine.link(0, 4) == LinkSpec(1e-4, 1e8, "network")


def test_shared_links_of_two_places_have_two_names(load):
    text = GOOD.replace("node: {latency: 4us", "#").replace("100 GB/s}", "100 GB/s, shared: true}")
    machine = load(text.replace("gpu(4): {", "gpu(5): *gpu\n  gpu(4): {socket: 1, "))
    here, there = machine.link(0, 1), machine.only([gpu(4), gpu(0)]).link(0, 1)
    assert (here.name, there.name) == ("socket 0/a/0", "network")
    assert machine.link(0, 4) == here  # gpu(5), of the same socket
    two = Machine(
        tuple(Device(cpu(i), 1.0, node=str(i // 2)) for i in range(4)),
        {"node": Level(shared=True), "network": Level()},
    )
    names = [two.link(*pair).name for pair in ((0, 1), (2, 3), (1, 2))]
    assert names == ["node 0/0", "node 0/1", ""]


def test_one_device_needs_no_link(load):
    machine = load("devices: {cpu(0): {flops: 1GFLOP/s}}\n")
    assert machine.links == {}
    assert machine.link(0, 0) == LinkSpec()
    assert str(machine).splitlines()[1].split()[:2] == ["cpu(0)", "0/0/0"]
    assert load(machine.to_yaml()) == machine


def test_round_trip(load):
    machine = load(GOOD)
    assert load(machine.to_yaml()) == machine
    odd = Machine(
        (Device(cpu(0), 123456789.125, 1.37e-7, 3e20, 2**30 + 1, node="1e3"), Device(cpu(7), 0.5)),
        {
            "network": Level(0.0, inf, True, ((8, 0.0147), (384, 1 / 30), (4 << 20, 0.5))),
            "socket": Level(1 / 3, 7.77e7),
        },
    )
    assert load(odd.to_yaml()) == odd


def test_messages_are_sorted_and_have_units(load):
    """F10: a network has several regimes, which a latency and a bandwidth cannot describe."""
    text = """
devices: {cpu(0): {flops: 1, node: a}, cpu(1): {flops: 1, node: b}}
links: {network: {latency: 15 ms, messages: {64 KiB: 50 ms, 8: 14.7 ms}}}
"""
    messages = ((8, 0.0147), (65536, 0.05))
    assert load(text).links["network"].messages == messages
    assert load(text).link(0, 1) == LinkSpec(0.015, inf, "", messages)


def test_uniform():
    machine = Machine.uniform([cpu(0), gpu(1), cpu(2)], Speed(5.0, 2.0, 3.0), 0.5, 8.0)
    assert [d.speed for d in machine.devices] == [Speed(5.0, 2.0, 3.0)] * 3
    assert {d.memory for d in machine.devices} == {None}
    pairs = {machine.link(a, b) for a in range(3) for b in range(3) if a != b}
    assert pairs == {LinkSpec(0.5, 8.0, "")}


def test_some_devices_of_a_machine(load):
    machine = load(GOOD)
    few = machine.only([gpu(4), gpu(0)])
    assert few.contexts == (gpu(4), gpu(0))
    assert few.link(0, 1) == machine.link(4, 0)
    assert few.index(gpu(0)) == 1
    with pytest.raises(ConfigError, match=r"no device gpu\(9\): did you mean 'gpu\(4\)'"):
        machine.only([gpu(0), gpu(9)])
    with pytest.raises(PlacementError, match=r"gpu\(0\) is listed 2 times"):
        machine.only([gpu(0), gpu(0)])


def test_a_slower_device_takes_longer(load):
    fast, slow = (load(GOOD).devices[i].speed for i in (0, 4))
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=3000, no_bias=True, name="fc")
    graph = lower(net, {"x": (1000, 2000)})
    assert fast.seconds_of(graph["fc"], graph) == pytest.approx(10e-6 + 12e9 / 15e12)
    assert slow.seconds_of(graph["fc"], graph) == pytest.approx(12e9 / 1e12)


def test_the_table(load):
    text = [line for line in str(load(GOOD)).splitlines() if ":" not in line]  # no notes
    lines = [line.split("  ") for line in text]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    assert cells[0] == [
        "device",
        "rack/node/socket",
        "operations",
        "memory bandwidth",
        "a call",
        "memory",
    ]
    assert cells[3] == ["gpu(2)", "0/a/1", "15.0 TFLOP/s", "900 GB/s", "10 µs", "16.0 GiB"]
    assert cells[5] == ["gpu(4)", "1/a/0", "1.00 TFLOP/s", "any", "0 µs", "any"]
    assert cells[7] == ["link inside a", "latency", "bandwidth", "shared"]
    assert cells[9] == ["node", "4 µs", "12.0 GB/s", "yes"]
    assert cells[11] == ["network", "100 µs", "100 MB/s", "yes"]


# -- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "devices:",
            "device:",
            "m.yaml:1: device: unknown key: did you mean 'devices'? (known: 'devi",
        ),
        (
            "links:",
            "flops: 1\nlinks:",
            "m.yaml:7: flops: unknown key here: it belongs under 'devices'",
        ),
        (
            "flops: 15",
            "flop: 15",
            "m.yaml:2: devices.gpu(0).flop: unknown key: did you mean 'flops'? ",
        ),
        (
            "node: a}",
            "nod: a}",
            "m.yaml:2: devices.gpu(0).nod: unknown key: did you mean 'node'? (kno",
        ),
        (
            "node: b}",
            "shared: a}",
            "m.yaml:5: devices.gpu(3).shared: unknown key: known: 'bandwidth',",
        ),
        (
            "  rack:",
            "  rak:",
            "m.yaml:10: links.rak: unknown key: did you mean 'rack'? (known: 'netwo",
        ),
        (
            "latency: 20",
            "latenzy: 20",
            "m.yaml:10: links.rack.latenzy: unknown key: did you mean 'lat",
        ),
        (
            "15 TFLOP/s",
            "fast",
            "m.yaml:2: devices.gpu(0).flops: expected a figure in FLOP/s, such as ",
        ),
        (
            "15 TFLOP/s",
            "15 GB/s",
            "m.yaml:2: devices.gpu(0).flops: expected a figure in FLOP/s, such ",
        ),
        ("1.0e+12", "0", "m.yaml:6: devices.gpu(4).flops: must be more than 0, got 0"),
        ("1.0e+12", ".inf", "m.yaml:6: devices.gpu(4).flops: expected a finite number, got inf"),
        ("1.0e+12", "", "m.yaml:6: devices.gpu(4).flops: expected a number, got null"),
        ("1.0e+12", "true", "m.yaml:6: devices.gpu(4).flops: expected a number, got true"),
        (
            "900GB/s",
            "900GB",
            "m.yaml:2: devices.gpu(0).bandwidth: expected a figure in B/s, such as 1",
        ),
        ("call: 10us", "call: -1", "m.yaml:2: devices.gpu(0).call: must be at least 0, got -1"),
        (
            "16 GiB",
            "16 GB/s",
            "m.yaml:2: devices.gpu(0).memory: expected bytes, such as 4GiB, 500MB o",
        ),
        ("16 GiB", "0", "m.yaml:2: devices.gpu(0).memory: must be at least 1, got 0"),
        ("16 GiB", "1.5", "m.yaml:2: devices.gpu(0).memory: expected a whole number, got 1.5"),
        (
            "socket: 1}",
            "socket: [1]}",
            "m.yaml:4: devices.gpu(2).socket: expected text, got a list",
        ),
        (
            "10 Gbit/s",
            "10 Gb/s",
            "m.yaml:10: links.rack.bandwidth: expected a figure in B/s, such as ",
        ),
        ("10 Gbit/s", "0", "m.yaml:10: links.rack.bandwidth: must be more than 0, got 0"),
        (
            "s, shared: true}",
            "s, shared: 1}",
            "m.yaml:9: links.node.shared: expected true or false, ",
        ),
        (
            "  socket: {latency: 2us, bandwidth: 100 GB/s}",
            "  socket: 3",
            "m.yaml:8: links.socket: expected keys and values, got 3",
        ),
        (
            "gpu(3):",
            "gpu3:",
            "m.yaml:5: devices.gpu3: 'gpu3' is not a device: write cpu(N) or gpu(N) ",
        ),
        (
            "gpu(3):",
            "gpu(1):",
            "m.yaml:5: devices.gpu(1): this key is given twice, first at m.yaml:3",
        ),
        ("gpu(3):", "gpu(01):", "m.yaml:3: devices.gpu(1): gpu(1) is listed 2 times"),
        (
            "gpu(1): *gpu",
            "gpu(1): 15",
            "m.yaml:3: devices.gpu(1): expected keys and values, got 15",
        ),
        (
            "flops: 1.0e+12, ",
            "",
            "m.yaml:6: devices.gpu(4).flops: required key is missing: Operations",
        ),
        (
            "  network:",
            "  # ",
            "m.yaml:7: links: gpu(0) and gpu(4) are in different racks, but no lin",
        ),
    ],
)
def test_mistake_in_a_file(load, old, new, message):
    assert old in GOOD
    assert refusal(load, GOOD.replace(old, new, 1)).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: {}\n", "m.yaml:1: devices: needs at least 1 entry, got an empty mapping"),
        ("devices: [cpu(0)]\n", "m.yaml:1: devices: expected keys and values, got a list"),
        (
            "links: {}\n",
            "m.yaml:1: devices: required key is missing: Devices by name, such as cpu(0)",
        ),
        (
            "devices:\n  cpu(0): {flops: 1}\n  cpu(1): {flops: 1}\n",
            "m.yaml:1: links: cpu(0) and cpu(1) are in one socket, but no link joins them: add "
            "socket",
        ),
        (
            "devices:\n  cpu(0): {flops: 1}\n  cpu(1): {flops: 1, socket: b}\nlinks: {socket: "
            "{}}\n",
            "m.yaml:4: links: cpu(0) and cpu(1) are in different sockets, but no link joins them: "
            "add n",
        ),
        (
            "devices:\n  cpu(0): {flops: 1}\n  cpu(1): {flops: 1, node: b}\nlinks: {node: {}}\n",
            "m.yaml:4: links: cpu(0) and cpu(1) are in different nodes, but no link joins them: "
            "add rac",
        ),
    ],
)
def test_mistake_in_another_file(load, text, message):
    assert refusal(load, text).startswith(message)


def test_of_several_mistakes_the_first_in_the_file_is_named(load):
    text = GOOD.replace("node: b}", "node: [b]}").replace("20us", "20").replace("100 GB", "0 GB")
    assert refusal(load, text).startswith("m.yaml:5: devices.gpu(3).node")
    assert refusal(load, text.replace("[b]", "b")).startswith("m.yaml:8: links.socket.bandwidth")


def test_no_file(load):
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: no such machine file$"):
        load_machine("nowhere.yaml")


@pytest.mark.parametrize(
    ("devices", "links", "message"),
    [
        ((), {}, "machine: devices: needs at least 1 entry"),
        ((Device(cpu(0), 1.0),) * 2, {"node": Level()}, r"cpu\(0\) is listed 2 times"),
        (
            (Device(cpu(0), 1.0),),
            {"rac": Level()},
            r"links\.rac: unknown level: did you mean 'rack'",
        ),
        (
            (Device(cpu(0), 1.0), Device(cpu(1), 1.0)),
            {},
            "are in one socket, but no link joins them",
        ),
    ],
)
def test_machines_that_cannot_be(devices, links, message):
    with pytest.raises(PlacementError, match=message):
        Machine(devices, links)
