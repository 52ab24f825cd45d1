"""Frames at the device eth0 of a namespace, past its kernel.

`raw_frames.py send` sends frames that standard input lists in hexadecimal, one a line. `raw_frames.py hear WORD...` prints the
first of these words in each frame that arrives, a line for each frame.
"""

import socket
import sys

ALL_TYPES = 3
OUTGOING = 4


def send(device):
    for line in sys.stdin:
        device.send(bytes.fromhex(line.strip()))


def hear(device, words):
    print("ready", flush=True)
    while True:
        frame, sender = device.recvfrom(65535)
        found = [word for word in words if word.encode() in frame and sender[2] != OUTGOING]
        if found:
            print(found[0], flush=True)


device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_TYPES))
device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
device.bind(("eth0", ALL_TYPES))
if sys.argv[1] == "send":
    send(device)
else:
    hear(device, sys.argv[2:])
