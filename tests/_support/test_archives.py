"""Archives of arrays that were made to harm: refused in a sentence, before memory is allocated."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from holdfast._support.archives import ArchiveError, read_array, read_arrays


def packed(method=zipfile.ZIP_DEFLATED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def array_bytes(array=None, **changes):
    """Return a .npy file, with another shape or type in its header if they are given."""
    array = np.zeros(3) if array is None else array
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **changes}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def read(content):
    return read_arrays(content, lambda name: name == "a")


def test_only_known_names_are_read():
    content = packed(a=array_bytes(), b=b"no array at all")
    np.testing.assert_array_equal(read(content)["a"], np.zeros(3))
    assert list(read(content)) == ["a"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["float64", "int32", "bool", "<U5"])
def test_what_numpy_writes_is_read(kind, order, tmp_path):
    array = np.asarray(np.arange(6).reshape(2, 3).astype(kind), order=order)
    file = io.BytesIO()
    np.savez_compressed(file, a=array)
    found = read(file.getvalue())["a"]
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an archive"),
        (b"text", "not an archive"),
        (packed(a=b""), "damaged"),
        (packed(a=array_bytes(shape=(10**15,))), "an array of 8,000,000,000,000,000 bytes in 24"),
        (packed(a=array_bytes(shape=(2**63, 2**63))), "an array of"),
        (packed(a=array_bytes(shape=(-3,))), "an array of -24 bytes"),
        (packed(a=array_bytes(descr="|O")), "expected numbers"),
        (packed(a=array_bytes(descr="<U0")), "expected numbers"),
        (packed(zipfile.ZIP_LZMA, a=array_bytes()), "in a way that NumPy does not write"),
        (packed(zipfile.ZIP_BZIP2, a=array_bytes()), "in a way that NumPy does not write"),
    ],
)
def test_what_is_no_array_is_refused(content, words):
    with pytest.raises(ArchiveError, match=words):
        read(content)


def test_a_false_size_is_refused_before_memory_is_allocated():
    content = bytearray(packed(a=array_bytes()))
    # The declared size is at byte 24 of the entry in the directory.
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", 2**32 - 2)
    with pytest.raises(ArchiveError, match="declares 4,294,967,294 bytes in"):
        read(bytes(content))


def test_an_archive_is_no_npy_file(tmp_path):
    (tmp_path / "a.npy").write_bytes(packed(a=array_bytes()))
    with pytest.raises(ArchiveError, match=r"damaged, or not a \.npy file"):
        read_array(tmp_path / "a.npy")
