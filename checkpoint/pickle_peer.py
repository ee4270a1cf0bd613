"""The other side of pickle_torch_test.cc: Python's own pickler and unpickler.

    pickle_peer.py dump FOLDER     writes NAME.p2 (protocol 2) and NAME.p4 for each case
    pickle_peer.py compare FOLDER  loads NAME.content and NAME.identity, compares with the case
"""

import argparse
import collections
import enum
import math
import pathlib
import pickle
import random
import sys


class Plain:
    def __init__(self, **entries):
        self.__dict__.update(entries)

    def __eq__(self, other):
        return type(self) is type(other) and same(self.__dict__, other.__dict__)


class Slots:
    __slots__ = ("first", "second")

    def __eq__(self, other):
        return (self.first, self.second) == (other.first, other.second)


class Items(list):
    pass


class Mapping(dict):
    pass


class Pair(collections.namedtuple("Pair", "left right")):
    pass


class Stage(enum.IntEnum):
    ZERO = 0
    TWO = 2


def integers():
    edges = [0, 1, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32,
             2**39 - 1, 2**39, 2**47, 2**55, 2**63 - 1, 2**63, 2**64, 2**71 - 1, 2**71, 2**2000,
             2**2039 - 1, 2**2040, 2**3000]
    numbers = []
    for edge in edges:
        numbers += [edge, -edge, edge - 1, -edge - 1, -edge + 1]
    return numbers + [-(2**k) for k in range(0, 130)] + [2**k for k in range(0, 130)]


def shared():
    inner = ["inner", 1]
    pair = (inner, "text")
    quad = (inner, pair, pair, ())
    return [inner, inner, pair, pair, quad, quad, {"quad": quad, "inner": inner}, (), ((),), [()]]


def ordered():
    mapping = collections.OrderedDict((str(i), [i]) for i in range(5))
    mapping._metadata = collections.OrderedDict(version=1)
    lone = collections.OrderedDict(only=1)
    return [mapping, collections.OrderedDict(), lone, mapping]


def slots():
    value = Slots()
    value.first, value.second = 1, [2]
    return value


def random_tree(generator, depth):
    kind = generator.randrange(12 if depth else 6)
    if kind == 0:
        return generator.randrange(-2**40, 2**40)
    if kind == 1:
        return generator.uniform(-1e9, 1e9)
    if kind == 2:
        letters = [65, 228, 0x20AC, 0x1F600]
        return "".join(chr(generator.choice(letters)) for _ in range(generator.randrange(6)))
    if kind == 3:
        return generator.choice([None, True, False])
    if kind == 4:
        return bytes(generator.randrange(256) for _ in range(generator.randrange(4)))
    if kind == 5:
        return generator.choice([(), "shared text", Stage.TWO])
    children = [random_tree(generator, depth - 1) for _ in range(generator.randrange(6))]
    children += [generator.choice(children)] * generator.randrange(3) if children else []
    if kind in (6, 7):
        return children
    if kind in (8, 9):
        return tuple(children)
    mapping = {f"key{i}": child for i, child in enumerate(children)}
    return collections.OrderedDict(mapping) if kind == 10 else mapping


def cases():
    plain = Plain(number=1, text="x", nested=Plain(values=[1, 2]))
    result = {
        "integers": integers(),
        "floats": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
        "texts": ["", "ascii", "\u00e4\u20ac\U0001f600", "\ud800 lone", "line\nbreak", "x" * 70000,
                  "\0"],
        "bytes": [b"", b"abc", bytes(range(256)), b""],
        "constants": [None, True, False, (), [], {}],
        "shared": shared(),
        "ordered": ordered(),
        "defaultdict": collections.defaultdict(list, {"a": [1], "b": [2]}),
        "plain": [plain, plain, Plain()],
        "slots": slots(),
        "namedtuple": [Pair(1, "two"), Pair([], ())],
        "enums": [Stage.ZERO, Stage.TWO, Stage.TWO],
        "namespace": argparse.Namespace(lr=0.1, layers=4, name=None),
        "sets": [set(), {1}, {1, 2, 3}, frozenset(), frozenset([1, 2]), set(range(1200))],
        "list_class": [Items(), Items([1]), Items([1, 2]), Items(range(1000)), Items(range(1001))],
        "dict_class": [Mapping(), Mapping(a=1), Mapping({i: i for i in range(1001)})],
        "complex": [1 + 2j, slice(1, 2, None), range(3)],
        "deep": nested(60),
        "memo": [str(i) for i in range(70000)] + ["again"] * 2,
    }
    for count in (2, 3, 4, 255, 256, 257, 999, 1000, 1001, 2000, 2001, 3000):
        result[f"list_{count}"] = list(range(count))
        result[f"dict_{count}"] = {f"k{i}": i for i in range(count)}
        result[f"ordered_{count}"] = collections.OrderedDict((i, str(i)) for i in range(count))
        result[f"tuple_{count}"] = tuple(range(count))
    generator = random.Random(20)
    for number in range(200):
        result[f"random_{number}"] = random_tree(generator, 5)
    return result


def nested(depth):
    value = "bottom"
    for level in range(depth):
        value = [value] if level % 3 == 0 else (value,) if level % 3 == 1 else {"down": value}
    return value


def same(one, other):
    """Equality with types, NaN equal to NaN, -0.0 not equal to 0.0, order of dicts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if one != one or other != other:
            return one != one and other != other
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    if isinstance(one, dict):
        attributes = [getattr(value, "__dict__", None) for value in (one, other)]
        return same(list(one.items()), list(other.items())) and same(*attributes)
    return one == other


def main():
    sys.modules["pickle_peer"] = sys.modules["__main__"]
    for known in (Plain, Slots, Items, Mapping, Pair, Stage):
        known.__module__ = "pickle_peer"
    command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for name, value in cases().items():
        if command == "dump":
            (folder / f"{name}.p2").write_bytes(pickle.dumps(value, 2))
            (folder / f"{name}.p4").write_bytes(pickle.dumps(value, 4))
            continue
        for kind in ("content", "identity"):
            loaded = pickle.loads((folder / f"{name}.{kind}").read_bytes())
            if not same(value, loaded):
                print(f"{name}.{kind} differs: {str(value)[:200]} is now {str(loaded)[:200]}")
                sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
