#!/usr/bin/env python3
"""The switch of a test cluster with latency: forwards every frame LATENCY_US after it came.

    wire.py LATENCY_US PORT...        in the network namespace that has the ports

For kernels without sch_netem. Rates are not its business: they are queues of the kernel at both ends of
every link, before and behind it. Invariant: all frames wait equally long, so the queue is in order of time
and no frame overtakes another. Prints "ready" once it forwards.
"""

import collections
import select
import socket
import sys
import time

# Of linux/if_ether.h and linux/if_packet.h; the module socket names only some of them.
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

# struct virtio_net_hdr before each frame: it carries what TCP left to the device (checksum, segments).
HEADER = 10
FRAME_MAX = HEADER + 14 + 65536
# As much as the queue of a port may hold: what waits there counts against the sender's buffer.
BUFFER = 128 << 20


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    port.setblocking(False)
    port.bind((name, ETH_P_ALL))
    return port


def forward(latency_s, ports):
    waiting = collections.deque()  # (due, frame, port it came from)
    port_of = {}  # source address -> port
    while True:
        timeout = None
        if waiting:
            timeout = max(0.0, waiting[0][0] - time.monotonic())
        readable, _, _ = select.select(ports, [], [], timeout)
        for port in readable:
            # What came meanwhile, but not for ever: frames that are due come first.
            for _ in range(32):
                try:
                    frame = port.recv(FRAME_MAX)
                except BlockingIOError:
                    break
                port_of[frame[HEADER + 6 : HEADER + 12]] = port
                waiting.append((time.monotonic() + latency_s, frame, port))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, frame, source = waiting.popleft()
            to = port_of.get(frame[HEADER : HEADER + 6])
            # A broadcast, or an address not heard of yet, goes everywhere else.
            for port in [to] if to else [port for port in ports if port is not source]:
                try:
                    port.send(frame)
                except BlockingIOError:
                    print("a frame was lost: the port's buffer is full", file=sys.stderr, flush=True)


def main():
    latency_s = float(sys.argv[1]) * 1e-6
    ports = [open_port(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    forward(latency_s, ports)


if __name__ == "__main__":
    main()
