"""A file's bytes in memory: what is zero takes none, and a copy shares what it has."""

BLOCK_BYTES = 4096
_ZEROS = bytes(BLOCK_BYTES)
_MANY = 16 * BLOCK_BYTES


class SparseBytes:
    """As much of a `bytearray` as files need."""

    __slots__ = ("_blocks", "_length")

    def __init__(self):
        self._blocks: dict[int, bytes] = {}
        self._length = 0

    def __len__(self):
        return self._length

    def __bytes__(self):
        return self[:]

    def __getitem__(self, key):
        begin, end, _step = key.indices(self._length)
        if end <= begin:
            return b""
        first, last, blocks = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES, self._blocks
        if first == last:
            at = first * BLOCK_BYTES
            return blocks.get(first, _ZEROS)[begin - at : end - at]
        whole = b"".join([blocks.get(number, _ZEROS) for number in range(first, last + 1)])
        at = begin - first * BLOCK_BYTES
        return whole[at : at + end - begin]

    def write(self, position, data):
        length, blocks = len(data), self._blocks
        self._length = max(self._length, position + length)
        number, inside = divmod(position, BLOCK_BYTES)
        if length >= _MANY and data == bytes(length) and not any(map(blocks.__contains__, _blocks(position, length))):
            return
        done = 0
        while done < length:
            count = min(BLOCK_BYTES - inside, length - done)
            piece = data[done : done + count]
            if count < BLOCK_BYTES:
                old = blocks.get(number, _ZEROS)
                piece = old[:inside] + piece + old[inside + count :]
            if piece == _ZEROS:
                blocks.pop(number, None)
            else:
                blocks[number] = piece
            done, number, inside = done + count, number + 1, 0

    def resize(self, length):
        if length < self._length:
            whole, rest = divmod(length, BLOCK_BYTES)
            for number in [number for number in self._blocks if number >= whole + (rest > 0)]:
                del self._blocks[number]
            if rest and whole in self._blocks:
                self._blocks[whole] = self._blocks[whole][:rest].ljust(BLOCK_BYTES, b"\0")
        self._length = length

    def copy(self):
        other = SparseBytes()
        other._blocks, other._length = dict(self._blocks), self._length
        return other


def _blocks(position, length):
    return range(position // BLOCK_BYTES, -(-(position + length) // BLOCK_BYTES))
