"""RecordIO: the framing in which Pipe mode sends one object after another, so that a reader can tell them apart.

A record is the magic number, a word of three bits of kind and 29 bits of length, the data, and zero bytes up to a
multiple of four. Where the data itself has the magic number at such a multiple, the record is cut there and goes on as
another part; a reader puts the number back between the parts.
"""

import struct

_MAGIC = struct.pack("<I", 0xCED7230A)
_LONGEST = (1 << 29) - 1  # bytes of one part
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


def record(data: bytes) -> bytes:
    """Return one record.

    Raises:
        ValueError: the data is longer than the format can say.
    """
    if len(data) > _LONGEST:
        raise ValueError(f"{len(data)} bytes do not fit into a RecordIO record of at most {_LONGEST}")
    parts = _parts(data)
    kinds = [_WHOLE] if len(parts) == 1 else [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST]
    return b"".join(
        _MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4)
        for kind, part in zip(kinds, parts, strict=True)
    )


def _parts(data: bytes) -> list[bytes]:
    parts, begin, at = [], 0, data.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            parts.append(data[begin:at])
            begin = at + 4
        at = data.find(_MAGIC, at + (4 if at % 4 == 0 else 1))
    return [*parts, data[begin:]]
