"""Bytes against a ring all-reduce in float32: by our counters, and by the network interfaces' own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist

import thinwire
from thinwire.collectives import Channel, average
from thinwire.lab.models import build
from thinwire.types import Key, Message
from thinwire.wire import compose
from workers import Workers, serve, workers

CALLS = 4
HEADERS = 66  # bytes of Ethernet (14), IP (20) and TCP with its time stamps (32) around what a packet carries


def message_of(what: str) -> Message:
    """One tensor of 2^20 values, or ResNet-20's gradients with small parameters uncompressed."""
    if what == "tensor":
        return compose(torch.randn(1 << 20), thinwire.ORQ(levels=9))[0]
    named = {
        name: torch.randn_like(p) for name, p in build("resnet20", channels=3, classes=10, seed=0).named_parameters()
    }
    orq, plain = thinwire.ORQ(levels=9), thinwire.NoCompression()
    return compose(named, {name: orq if x.numel() >= 1024 else plain for name, x in named.items()})[0]


def on_the_wire() -> tuple[int, int]:
    """Bytes and packets, acknowledgements too, that this process's interfaces, the loopback excepted, have sent."""
    with open("/proc/thread-self/net/dev") as table:
        lines = [line.split(":") for line in table if ":" in line]
    sent = [numbers.split()[8:10] for name, numbers in lines if name.strip() != "lo"]
    return sum(int(count) for count, _ in sent), sum(int(packets) for _, packets in sent)


def bytes_job(rank: int, n: int, what: str, algorithm: str) -> tuple[int, int, int, int]:
    """Bytes by the counters and by the interfaces, their packets, and how many values were averaged in each call."""
    channel, message = Channel(), message_of(what)
    average(channel, message, Key(), algorithm).wait()  # connections are up
    dist.barrier()
    counted, (seen, packets) = channel.traffic.bytes_sent, on_the_wire()
    for step in range(CALLS):
        average(channel, message, Key(step=step), algorithm).wait()
    counted, (seen_after, packets_after) = channel.traffic.bytes_sent - counted, on_the_wire()
    channel.close()
    return counted, seen_after - seen, packets_after - packets, message.numel


def ratio(n: int, counted: list[int], values: int) -> float:
    """To a ring all-reduce in float32, over all ranks together."""
    return sum(counted) / n / CALLS / (2 * (n - 1) / n * 4 * values)


CASES = [
    (2, "all_gather", "tensor", 0.11),
    (8, "reduce_scatter", "tensor", 0.11),
    (8, "reduce_scatter", "resnet", 0.115),
]


@pytest.mark.parametrize(("n", "algorithm", "what", "limit"), CASES)
def test_counted_bytes_against_float32(n: int, algorithm: str, what: str, limit: float) -> None:
    counted, _, _, values = zip(*workers(n).run(bytes_job, what, algorithm))
    assert ratio(n, list(counted), values[0]) <= limit


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Eight network namespaces whose interfaces meet in a bridge."""
    if not shutil.which("ip") or os.geteuid():
        pytest.skip("needs root and the ip command")
    names = [f"thinwire{os.getpid()}-{i}" for i in range(9)]
    bridge = names[8]
    try:
        ip("netns", "add", bridge)
        ip("-n", bridge, "link", "add", "middle", "type", "bridge")
        ip("-n", bridge, "link", "set", "middle", "up")
        for i, name in enumerate(names[:8]):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", bridge)
            ip("-n", bridge, "link", "set", f"port{i}", "master", "middle", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                ip("-n", name, "link", "set", interface, "up")
        yield names[:8]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def serve_apart(rank: int, count: int, store: str, pipe: Connection) -> None:
    """`serve` in the namespace whose name comes first through the pipe."""
    with open(f"/run/netns/{pipe.recv()}") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    serve(rank, count, store, pipe)


@pytest.mark.parametrize(("n", "algorithm", "what", "limit"), CASES)
def test_interfaces_count_the_same_bytes(
    namespaces: list[str], n: int, algorithm: str, what: str, limit: float
) -> None:
    team = Workers(n, serve_apart)
    for name, pipe in zip(namespaces, team.pipes):
        pipe.send(name)
    counted, seen, packets, values = zip(*team.run(bytes_job, what, algorithm))
    team.stop()
    carried = [count - HEADERS * number for count, number in zip(seen, packets)]
    assert sum(carried) == pytest.approx(sum(counted), rel=0.02)
    assert ratio(n, carried, values[0]) <= 1.02 * limit
    slack = 0.02 if what == "tensor" else 0.06  # headers and acknowledgements weigh more beside frames of 15 KB
    assert sum(seen) == pytest.approx(sum(counted), rel=slack)
    rows = {"counted": counted, "carried by packets": carried, "with headers and acknowledgements": seen}
    print(f"{algorithm} n={n} {what}:", *(f"{ratio(n, list(row), values[0]):.4f} {name}" for name, row in rows.items()))
