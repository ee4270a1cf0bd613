"""torch.load as the judge of the containers: run by container_torch_test.cc, one command a call.

  write FOLDER       torch.save files of several kinds, to be read
  same FOLDER        each FOLDER/torch/X.pt and FOLDER/ours/X.pt load to the same objects
  meant FILE         FILE holds exactly the tensors that the C++ test describes
  big FILE           FILE, mapped, has its tensors behind 4 GiB, at the offsets of torch.save

Exit 0: as expected. Exit 77: torch cannot be imported.
"""

import argparse
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"torch cannot be imported: {error}")
    sys.exit(77)

GIB = 1 << 30


def byte_at(seed, index):
    """The byte that the C++ test puts at `index` of storage number `seed`."""
    return (seed * 31 + index * 7 + 1) % 251


def raw(tensor):
    """The whole storage behind a tensor."""
    storage = tensor.untyped_storage()
    return bytes(torch.tensor([], dtype=torch.uint8).set_(storage).numpy().tobytes())


def require(condition, text):
    if not condition:
        print(f"not so: {text}")
        sys.exit(1)


def same(left, right, path, pairs):
    """Equal in type, value and, for tensors, in bits, layout and which of them share a storage."""
    require(type(left) is type(right), f"{path}: one type")
    if isinstance(left, torch.Tensor):
        require(left.dtype == right.dtype and left.shape == right.shape, f"{path}: dtype, shape")
        require(left.stride() == right.stride(), f"{path}: strides")
        require(left.storage_offset() == right.storage_offset(), f"{path}: offset")
        require(left.requires_grad == right.requires_grad, f"{path}: requires_grad")
        require(raw(left) == raw(right), f"{path}: bytes")
        key, other = left.untyped_storage()._cdata, right.untyped_storage()._cdata
        require(pairs.setdefault(key, other) == other, f"{path}: shares what it shared")
    elif isinstance(left, dict):
        require(list(left) == list(right), f"{path}: keys in order")
        for key in left:
            same(left[key], right[key], f"{path}.{key}", pairs)
    elif isinstance(left, (list, tuple)):
        require(len(left) == len(right), f"{path}: length")
        for index, (a, b) in enumerate(zip(left, right)):
            same(a, b, f"{path}[{index}]", pairs)
    elif hasattr(left, "__dict__") and not isinstance(left, type):
        same(vars(left), vars(right), path, pairs)
    else:
        require(left == right or (left != left and right != right), f"{path}: {left} is {right}")


def sample():
    flat = torch.arange(100, dtype=torch.float32)
    shared = {"a": flat[10:20].view(2, 5), "b": flat[20:], "tied": flat[20:]}
    return OrderedDict(
        step=3, rate=0.1, none=None, big=1 << 70, text="\u00e9\u4e2d", flags=(True, False),
        shared=shared, turned=torch.arange(6.0).view(2, 3).t(), scalar=torch.tensor(2.5),
        empty=torch.zeros(0), hollow=torch.zeros(3, 0, 2), shape=torch.Size([2, 3]),
        parameter=torch.nn.Parameter(torch.ones(3)), half=torch.tensor([1.5, float("nan")]).half(),
        brain=torch.tensor([1.5]).bfloat16(), long=torch.arange(3), flag=torch.tensor([True]),
        types=[torch.float16, torch.bfloat16], many=[torch.full((i,), i) for i in range(40)])


def write(folder):
    folder = Path(folder)
    torch.save(sample(), folder / "plain.pt")
    torch.save(sample(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(sample(), folder / "nosums.pt")
    torch.serialization.set_crc32_options(True)
    torch.save([i for i in range(3000)], folder / "numbers.pt")
    torch.save({str(i): torch.full((i % 5,), i) for i in range(1500)}, folder / "records.pt")


def check_same(folder):
    folder = Path(folder)
    count = 0
    for path in sorted((folder / "torch").glob("*.pt")):
        ours = folder / "ours" / path.name
        theirs = torch.load(path, weights_only=False)
        same(theirs, torch.load(ours, weights_only=False), path.name, {})
        same(theirs, torch.load(ours, weights_only=False, mmap=True), path.name, {})
        require(zipfile.ZipFile(ours).testzip() is None, f"{ours}: sums")
        count += 1
    print(f"{count} files the same")
    require(count > 0, "files compared")


DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8",
          "bool"]


def expected_storage(seed, name, numel):
    dtype = getattr(torch, name)
    count = numel * torch.empty(0, dtype=dtype).element_size()
    values = [byte_at(seed, i) % 2 if name == "bool" else byte_at(seed, i) for i in range(count)]
    flat = torch.tensor(values, dtype=torch.uint8)
    return flat.view(dtype) if count else torch.empty(0, dtype=dtype)


def check_meant(path):
    for mmap in (False, True):
        root = torch.load(path, weights_only=False, mmap=mmap)
        expected = OrderedDict()
        for seed, name in enumerate(DTYPES):
            flat = expected_storage(seed, name, 24)
            expected[name] = [
                flat[:24].view(2, 3, 4), torch.as_strided(flat, (), (), 5),
                torch.as_strided(flat, (3, 4), (1, 3), 6), torch.as_strided(flat, (0,), (1,), 24),
                torch.as_strided(flat, (3, 0, 2), (2, 2, 1), 0),
                torch.as_strided(flat, (4, 2), (0, 1), 1)]
        expected["nothing"] = torch.empty(0, dtype=torch.float32)
        same(expected, root, "root", {})
        for name in DTYPES:
            addresses = {t.untyped_storage()._cdata for t in root[name]}
            require(len(addresses) == 1, f"{name}: one storage")
    safe = torch.load(path, weights_only=True)
    require(list(safe) == DTYPES + ["nothing"], "weights_only reads it too")
    require(zipfile.ZipFile(path).testzip() is None, "sums")


def places(path):
    """(name, size, offset of the header, offset of the payload) of each record."""
    out = []
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name_bytes, extra_bytes = (int.from_bytes(file.read(2), "little") for _ in range(2))
            payload = info.header_offset + 30 + name_bytes + extra_bytes
            name = info.filename.split("/", 1)[1]
            out.append((name, info.file_size, info.header_offset, payload))
    return out


def check_big(path):
    root = torch.load(path, weights_only=False, mmap=True)
    require(root["first"].numel() == 5 * GIB, "5 GiB in front")
    require(root["behind"].tolist() == [[1, 2, 3], [4, 5, 6]], "the tensor behind 4 GiB")
    require(int(root["first"][-1]) == 0 and int(root["last"][0]) == 77, "first and last bytes")
    # torch's own layout of the same object, with holes for the tensors.
    other = Path(path).parent / "torch" / Path(path).name
    other.parent.mkdir()
    with torch.serialization.skip_data():
        torch.save(root, other)
    ours, theirs = places(path), places(other)
    require(len(ours) == len(theirs) and len(ours) == 9, "records")
    for left, right in zip(ours, theirs):
        require(left == right, f"{left} is {right}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["write", "same", "meant", "big"])
    parser.add_argument("path")
    options = parser.parse_args()
    {"write": write, "same": check_same, "meant": check_meant, "big": check_big}[options.command](
        options.path)
