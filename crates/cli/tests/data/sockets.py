"""What a program sees of sockets, a line for each thing: the same over the kernel's sockets and over light ones.

Run as `sockets.py IP`, in a process that has that address.
"""

import array
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time

IP = sys.argv[1]


def show(*words):
    print(*words, flush=True)


def tried(name, call, *args):
    try:
        show(name, call(*args))
    except TimeoutError:
        show(name, "timeout")
    except OSError as e:
        show(name, errno.errorcode.get(e.errno, e))


def pair():
    listener = socket.create_server((IP, 0))
    a = socket.create_connection(listener.getsockname())
    b, peer = listener.accept()
    assert peer == a.getsockname() and b.getpeername() == peer and a.getpeername() == listener.getsockname()
    listener.close()
    return a, b


def until(poller, what):
    """Waits until events are as wanted; what came last where they never are."""
    for _ in range(500):
        events = poller.poll(0)
        if [e for _, e in events] == what:
            break
        time.sleep(0.01)
    return [e for _, e in events]


# Opening.
closed = socket.create_server((IP, 0))
nobody = closed.getsockname()
tried("bound twice", lambda: socket.create_server(nobody).listen())
closed.close()
tried("refused", socket.create_connection, nobody)
s = socket.socket()
s.setblocking(False)
listener = socket.create_server((IP, 0))
listener.setblocking(False)
tried("nobody to accept", listener.accept)
show("connect at once", s.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS))
show("writable", len(select.select([], [s], [], 5)[1]), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
show("again", s.connect_ex(listener.getsockname()), errno.errorcode[s.connect_ex(listener.getsockname())])
show("to accept", len(select.select([listener], [], [], 5)[0]))
b, _ = listener.accept()
show("blocking after accept", b.getblocking(), listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
tried("nothing yet", s.recv, 1)
tried("accept on a stream", s.accept)
tried("listen on a stream", s.listen)
s.close()
show("end", b.recv(1))
s = socket.socket()
s.setblocking(False)
s.connect_ex(nobody)
poller = select.poll()
poller.register(s, select.POLLOUT)
show("refused later", bool(poller.poll(5000)), errno.errorcode[s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
show("told once", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
show("said again", errno.errorcode[s.connect_ex(nobody)], s.fileno() >= 0)
tried("anew", lambda: errno.errorcode[s.connect_ex(listener.getsockname())])
show("open now", len(select.select([], [s], [], 5)[1]), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
b, _ = listener.accept()
s.send(b"anew")
show("bytes anew", b.recv(10), s.getpeername() == listener.getsockname())
s.close()
show("closed anew", b.recv(1))
s = socket.socket()
s.bind((IP, 0))
copy = s.dup()
tried("refused at once", s.connect, nobody)
tried("refused at once, again", s.connect, nobody)
show("and then", s.connect(listener.getsockname()), s.getblocking())
b, peer = listener.accept()
show("from the same port", s.getsockname() == peer, copy.send(b"by the copy"), b.recv(20))
s = socket.socket()
tried("send unconnected", s.send, b"x")
tried("recv unconnected", s.recv, 1)
tried("peer of none", s.getpeername)

# Without a number left nobody is accepted, and nobody is turned away.
a = socket.create_connection(listener.getsockname())
select.select([listener], [], [], 5)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), limits[1]))
tried("no number left", listener.accept)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
b, _ = listener.accept()
a.sendall(b"patient")
show("accepted after all", b.recv(10))

# Types and options.
a, b = pair()
show("type", a.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM, socket.socket(fileno=os.dup(a.fileno())).family)
a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
show("nodelay", a.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
tried("unknown option", a.setsockopt, socket.SOL_SOCKET, 9999, 1)
tried("unknown option asked", a.getsockopt, socket.SOL_SOCKET, 9999)
a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
tried("receive timeout", a.recv, 1)
a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
a.settimeout(0.05)
tried("python's timeout", a.recv, 1)
a.settimeout(None)

s = socket.socket()
names = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.SOL_SOCKET, socket.SO_REUSEADDR),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_IP, socket.IP_TOS),
]
for (level, name), value in zip(names, (1, 0, 5, 77, 16)):
    s.setsockopt(level, name, value)
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.connect(listener.getsockname())
select.select([listener], [], [], 5)
c, _ = listener.accept()
show("options set before", [s.getsockopt(*name) for name in names])
show("options of the listener", [c.getsockopt(*name) for name in names[:4]])
s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
show("option unset", s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
tried("option too short", s.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, b"x")

# Numbers: those of a program are the smallest, and what it closes beside them is not in use.
before = os.dup(0)
s = socket.create_connection(listener.getsockname())
after = os.dup(0)
show("numbers", s.fileno() - before, after - s.fileno())
os.close(before)
os.close(after)
os.closerange(500, 60_000)
for fd in range(500, 3_000):
    try:
        os.close(fd)
    except OSError:
        pass
select.select([listener], [], [], 5)
c, _ = listener.accept()
s.sendall(b"after all was closed")
show("still there", c.recv(100))

# Bytes.
a.sendall(b"0123456789")
show("peek", b.recv(4, socket.MSG_PEEK), b.recv(4))
number = array.array("i", [0])
fcntl.ioctl(b, termios.FIONREAD, number)
show("readable", number[0])
show("rest", b.recv_into(bytearray(100)))
tried("dontwait", b.recv, 1, socket.MSG_DONTWAIT)
threading.Timer(0.05, lambda: (a.send(b"ab"), time.sleep(0.05), a.send(b"cd"))).start()
show("waitall", b.recv(4, socket.MSG_WAITALL))
show("pieces", a.sendmsg([b"one", b"", b"two"]), b.recvmsg(100)[0])
os.write(a.fileno(), b"written")
show("read", os.read(b.fileno(), 100))
show("vectors", os.writev(a.fileno(), [b"x", b"yz"]), os.readv(b.fileno(), [bytearray(2), bytearray(5)]))
with open(__file__, "rb") as file:
    text = file.read()
    file.seek(0)
    show("sendfile", os.sendfile(a.fileno(), file.fileno(), 100, 500), b.recv(500, socket.MSG_WAITALL) == text[100:600])
    show("sendfile on", os.sendfile(a.fileno(), file.fileno(), None, 10), file.seek(0, 1), b.recv(10))

# Waiting.
poller = select.poll()
poller.register(b, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
show("writable alone", until(poller, [select.POLLOUT]))
a.send(b"x")
show("both", until(poller, [select.POLLIN | select.POLLOUT]))
epoll = select.epoll()
epoll.register(b, select.EPOLLIN)
show("level", len(epoll.poll(5)), len(epoll.poll(0)))
epoll.modify(b, select.EPOLLIN | select.EPOLLET)
show("edge", len(epoll.poll(5)), len(epoll.poll(0)))
a.send(b"y")
show("edge again", len(epoll.poll(5)), len(epoll.poll(0)))
b.recv(1)
show("half read", len(epoll.poll(0)))
b.recv(10)
show("all read", len(epoll.poll(0)))
a.send(b"z")
show("edge anew", len(epoll.poll(5)), b.recv(10))
epoll.close()
# Put there before they are anything.
epoll = select.epoll()
s, late = socket.socket(), socket.socket()
epoll.register(s, select.EPOLLIN)
epoll.register(late, 0)
epoll.modify(late, select.EPOLLIN | select.EPOLLET)
late.bind((IP, 0))
late.listen()
s.connect(late.getsockname())
c, _ = until(epoll, [select.EPOLLIN]) and late.accept()
show("bound later", until(epoll, []))
c.send(b"x")
show("connected later", until(epoll, [select.EPOLLIN]), s.recv(10))
epoll.unregister(s)
c.send(b"y")
show("no more", len(epoll.poll(0.1)), s.recv(10))
s = socket.socket()
s.setblocking(False)
epoll.register(s, select.EPOLLIN)
s.connect_ex(nobody)
until(epoll, [select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP])
s.connect_ex(nobody)
s.setblocking(True)
s.connect(late.getsockname())
c, _ = late.accept()
c.send(b"z")
show("connected anew", until(epoll, [select.EPOLLIN]), s.recv(10))
epoll.close()
b.setblocking(False)
sent = 0
block = bytes(65536)
full = select.poll()
full.register(b, select.POLLOUT)
while True:
    try:
        sent += b.send(block)
    except BlockingIOError:
        if not full.poll(200):
            break
show("full", sent > 100_000, until(poller, []))
got = 0
while got < sent:
    got += len(a.recv(1 << 20))
show("taken", got == sent, until(poller, [select.POLLOUT]))
a.shutdown(socket.SHUT_WR)
show("half closed", until(poller, [select.POLLIN | select.POLLOUT | select.POLLRDHUP]), b.recv(1))
tried("shut", a.send, b"x")
b.setblocking(True)
b.sendall(b"still")
show("other way", a.recv(100))
b.close()
show("closed", a.recv(100))

# A signal gets through.
a, b = pair()
signal.signal(signal.SIGALRM, lambda *_: a.send(b"from a handler"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
show("interrupted", b.recv(100))

# Resets.
a.send(b"unread")
select.select([b], [], [], 5)
b.close()
tried("reset", a.recv, 1)
a, b = pair()
b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
b.close()
tried("lingered", a.recv, 1)

# Copies.
a, b = pair()
copy = os.dup(a.fileno())
a.close()
os.write(copy, b"by the copy")
show("copy", b.recv(100))
os.dup2(0, copy)
os.close(copy)
show("last copy closed", b.recv(100))
fd = os.dup2(b.fileno(), 300)
show("number", fd, os.fstat(300).st_mode & 0o170000 == 0o140000)
os.close(300)

# FILE *
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
for function in libc.fclose, libc.fflush, libc.fileno:
    function.argtypes = [ctypes.c_void_p]
libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
libc.fgets.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
a, b = pair()
fd = a.detach()
file = libc.fdopen(fd, b"r+")
show("file", libc.fputs(b"a line\n", file) >= 0, libc.fflush(file), b.recv(100))
b.sendall(b"one\ntwo\n")
line = ctypes.create_string_buffer(100)
show("its number", libc.fileno(file) == fd)
show("lines", [libc.fgets(line, 100, file) and line.value for _ in range(2)])
show("closed as a file", libc.fclose(file), b.recv(100))
tried("its number is free", os.fstat, fd)
a, b = pair()
file = libc.fdopen(a.fileno(), b"r")
libc.fdopen.argtypes = [ctypes.c_int, ctypes.c_char_p]
tried("no mode", lambda: libc.fdopen(b.fileno(), b"?"))
# A thread that is cancelled while it waits for a byte of one.
thread, came = ctypes.c_ulong(), ctypes.c_void_p()
libc.pthread_cancel.argtypes = [ctypes.c_ulong]
libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
assert libc.pthread_create(ctypes.byref(thread), None, libc.fgetc, ctypes.c_void_p(file)) == 0
time.sleep(0.1)
show("cancelled", libc.pthread_cancel(thread), libc.pthread_join(thread, ctypes.byref(came)), came.value == 2**64 - 1)
a.sendall(b"goes on")
show("after that", b.recv(100), b.send(b"!"), a.recv(10))

# Processes: the child accepts, and so does the parent.
listener = socket.create_server((IP, 0))
child = os.fork()
if child == 0:
    s, _ = listener.accept()
    while data := s.recv(1 << 16):
        s.sendall(data.upper())
    s.close()
    os._exit(7)
a = socket.create_connection(listener.getsockname())
a.sendall(b"to the child")
a.shutdown(socket.SHUT_WR)
show("child said", a.recv(100, socket.MSG_WAITALL), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
a = socket.socket()
a.setblocking(False)
a.connect_ex(listener.getsockname())
b, _ = listener.accept()
select.select([], [a], [], 5)
a.send(b"to the parent")
show("parent", b.recv(100))
child = os.fork()
if child == 0:
    # What is written to a file and not flushed goes when the process ends.
    s = socket.create_connection(listener.getsockname())
    file = libc.fdopen(s.detach(), b"w")
    libc.fputs(b"last words", file)
    libc.exit(3)
b, _ = listener.accept()
show("at the end", b.recv(100, socket.MSG_WAITALL), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
show("others", os.popen("echo ran").read().strip(), a.getpeername() == listener.getsockname())

# Datagrams.
x, y = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
x.bind((IP, 0))
y.bind((IP, 0))
show("datagram", x.sendto(b"hello", y.getsockname()), y.recvfrom(100) == (b"hello", x.getsockname()))
x.connect(y.getsockname())
x.send(b"cut off")
show("cut", y.recvmsg(3)[0], len(y.recvmsg(3, 0, socket.MSG_DONTWAIT)[0]) if select.select([y], [], [], 0)[0] else 0)
x.send(b"")
show("empty", y.recvfrom(10)[0])
tried("none", y.recv, 1, socket.MSG_DONTWAIT)
tried("nobody named", y.send, b"x")
y.close()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as z:
    z.bind(x.getpeername())
    show("bound again", z.getsockname() == x.getpeername())

# What is not light is the kernel's.
inside = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(inside.getsockname())
b, _ = inside.accept()
a.sendall(b"kernel")
show("kernel's", b.recv(100))
show("pipe", os.read((lambda p: (os.write(p[1], b"p"), p[0]))(os.pipe())[1], 1))
