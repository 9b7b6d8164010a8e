"""The other ends of a core's links for the steady state, by hand: frames as bytes (`native/bytes/steady_frame.c`)."""

import struct

from tests.support.bench_world import current_world
from tests.support.plane_bench import records_of
from tpc_broker.raft.steady import NONE

TERM = 3
INCARNATION, OWN = 7, 5
APPEND, ACK, BEAT = 1, 2, 3
MACHINES = struct.Struct("<II")
HEADER, ENTRY, BYTES = struct.Struct("<BBHI"), struct.Struct("<16siiQQqq"), struct.Struct("<II")
TOPIC_ID = b"t".ljust(16, b"!")


def entry(offset, commit=NONE, batches=None, term=TERM, source=INCARNATION, target=OWN):
    """An ACK, or with batches (perhaps empty) an APPEND."""
    made = ENTRY.pack(TOPIC_ID, 0, term, source, target, offset, commit)
    return made if batches is None else made + BYTES.pack(len(batches), 0) + batches


def frame(kind, *entries, version=1, count=None):
    body = HEADER.pack(version, kind, 0, len(entries) if count is None else count) + b"".join(entries)
    return len(body).to_bytes(4) + body


def sent(base_offset, count=1, epoch=TERM, value=b"value"):
    """A batch as a leader sends it."""
    return records_of(count, base_offset=base_offset, leader_epoch=epoch, value=value)


class Frames:
    """Frames out of the bytes of a link, as they come or leave."""

    def __init__(self):
        self._data = bytearray()

    def bodies(self, data):
        """Of the frames that are whole with these bytes behind those before."""
        self._data += data
        while len(self._data) >= 4 and len(self._data) - 4 >= (length := int.from_bytes(self._data[:4])):
            body, self._data = bytes(self._data[4 : 4 + length]), self._data[4 + length :]
            yield body

    def acknowledged(self, data):
        """(topic_id, partition, term, source, target, offset, commit) of each entry of the ACKs among them."""
        for body in self.bodies(data):
            _version, kind, _nothing, count = HEADER.unpack_from(body)
            if kind == ACK:
                assert len(body) == HEADER.size + count * ENTRY.size
                yield from ENTRY.iter_unpack(body[HEADER.size :])


class Peer:
    """The other end of a link, by hand."""

    def __init__(self, steady, node):
        self.steady, self.node = steady, node
        self.socket, theirs = current_world().socketpair()
        self.socket.setblocking(False)
        self.link = steady.steady_adopt(theirs.detach(), node)
        self._frames = Frames()
        self.beats = []
        """The machines of each heartbeat that has come, as bits."""

    def say(self, data):
        self.socket.setblocking(True)
        self.socket.sendall(data)
        self.socket.setblocking(False)

    def heard(self):
        """(kind, offset, commit, batches) of each entry that has come."""
        found, come = [], bytearray()
        try:
            while data := self.socket.recv(1 << 20):
                come += data
        except BlockingIOError:
            pass
        for body in self._frames.bodies(come):
            version, kind, nothing, count = HEADER.unpack_from(body)
            assert (version, nothing) == (1, 0)
            at = HEADER.size
            if kind == BEAT:
                self.beats.append(MACHINES.unpack_from(body, at)[0])
                assert (count, len(body)) == (1, at + MACHINES.size)
                continue
            for _ in range(count):
                *who, offset, commit = ENTRY.unpack_from(body, at)
                assert who == [TOPIC_ID, 0, TERM, OWN, INCARNATION]
                at += ENTRY.size
                batches = b""
                if kind == APPEND:
                    size, nothing = BYTES.unpack_from(body, at)
                    batches = body[at + BYTES.size : at + BYTES.size + size]
                    at += BYTES.size + size
                found.append((kind, offset, commit, batches))
            assert at == len(body)
        return found
