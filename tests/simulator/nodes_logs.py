"""What a core of a simulated node has of a partition, as it stands: from C's memory, and behind that from its files."""

from __future__ import annotations

from dataclasses import dataclass

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.batch import decode_header, walk_headers

READ_BYTES = 1 << 24


@dataclass(frozen=True)
class SeenLog:
    """`bounds` and `batches` are None, or end early, when it is withdrawn this moment."""

    life: object
    handle: int
    files: object

    @property
    def key(self):
        return self.files.key

    def bounds(self):
        try:
            return self.life.plane.bounds(self.handle)
        except PartitionOfflineError:
            return None

    def batches(self, offset=0, upto=1 << 62):
        """As bytes: those that end behind `offset` and begin before `upto`."""
        found = []
        if offset < self.files.written_end_offset:
            found = [one for one in self._in_files(offset) if decode_header(one).next_offset > offset]
        place = decode_header(found[-1]).next_offset if found else max(offset, self.files.written_end_offset)
        found += self._in_memory(place, upto)
        return [one for one in found if decode_header(one).base_offset < upto]

    def _in_files(self, offset):
        files, disk = self.files, self.life.disk.whole
        segments = files.segments
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if following is not None and following.base_offset <= offset:
                continue
            data = bytes(disk.names[files.folder.path / segment.log_name].content[: segment.size_bytes])
            for header, place in walk_headers(data):
                if header.base_offset < files.written_end_offset:
                    yield data[place : place + header.size_bytes]

    def _in_memory(self, offset, upto):
        while True:
            try:
                read = self.life.plane.read(self.handle, offset, upto, READ_BYTES, at_least_one=True)
            except PartitionOfflineError:
                return
            if not read or not read[1]:
                return
            data = b"".join(map(bytes, read[0]))
            for header, place in walk_headers(data):
                yield data[place : place + header.size_bytes]
                offset = header.next_offset


def logs_of(life):
    """Of all replicas that are in the data plane."""
    return [SeenLog(life, handle, led.files) for handle, led in life.storage._partitions.led.items()]


def log_of(life, partition):
    """Of a partition of the broker."""
    return SeenLog(life, partition.handle, partition.files)
