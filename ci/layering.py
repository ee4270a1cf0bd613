#!/usr/bin/env python3
"""The layering check: which room may use which, over four kinds of evidence.

  includes   every #include line of every source file
  links      the DEPENDS of every ck_room() in CMakeLists.txt
  depfiles   every header that the compiler really opened (ninja's dependency log): no detours
  symbols    every name that a compiled room mentions: no declarations written by hand

Independence is what makes the oracle's word worth something, so this is a test (label quick), and
ci/layering_test.py tests it with violations that it must report.
Usage: layering.py [--root FOLDER] --build FOLDER
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ALL = {"checkpoint", "reshape", "oracle", "certify", "fixtures", "cli"}

# room -> rooms it may use, itself included. The picture of docs/ARCHITECTURE.md as data.
MAY_USE = {
    "checkpoint": {"checkpoint"},
    "reshape": {"checkpoint", "reshape"},
    "oracle": {"checkpoint", "oracle"},
    "fixtures": {"checkpoint", "fixtures"},
    "certify": {"checkpoint", "oracle", "certify"},
    "cli": ALL,
    "fuzz": {"checkpoint", "fuzz"},
    "gate": {"checkpoint", "oracle", "certify", "fixtures", "gate"},
    "parity": {"checkpoint", "oracle", "certify", "parity"},
    "property_tests": ALL | {"gate", "parity", "property_tests"},
    "gpu_tests": ALL | {"gate", "parity", "gpu_tests"},
    "bench": ALL | {"gate", "parity", "bench"},
}

# Tests of a room may use these besides: a judge is tested on what the fixture writer wrote.
TESTS_MAY_ALSO_USE = {"certify": {"fixtures"}}

# Rooms that may see libtorch. property_tests and the like see it through oracle/oracle.h.
LIBTORCH = {"oracle", "certify", "parity", "property_tests", "gpu_tests", "bench"}
LIBTORCH_INCLUDE = re.compile(r"^(ATen|c10|torch|caffe2)/")
LIBTORCH_HEADER = re.compile(r"/torch/include/(ATen|c10|torch|caffe2)/")
# Not behind '::': at::_ops::reshape::call is ATen's own operation, not our room.
LIBTORCH_SYMBOL = re.compile(r"(?<![\w:])(at|c10|torch|caffe2)::")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LINK_TARGETS = set(MAY_USE) | {"aten"}


def is_test_file(name):
    """x_test.cc and headers that only tests include: x_test.h, x_testing.h, test_x.h."""
    return bool(re.search(r"(_test|_testing)\.(h|cc)$|^test_\w+\.(h|cc)$", name))


def allowed_rooms(room, for_tests):
    return MAY_USE[room] | (TESTS_MAY_ALSO_USE.get(room, set()) if for_tests else set())


def source_files(root):
    for room in sorted(MAY_USE):
        folder = root / room
        for path in sorted(folder.glob("**/*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh") and "corpus" not in path.parts:
                yield room, path


def check_includes(root, report):
    """Returns the number of include lines looked at."""
    looked_at = 0
    for room, path in source_files(root):
        where = path.relative_to(root)
        for_tests = is_test_file(path.name)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            if not match:
                continue
            looked_at += 1
            quoted, target = match.group(1) == '"', match.group(2)
            first = target.split("/")[0]
            if LIBTORCH_INCLUDE.match(target) and room not in LIBTORCH:
                report(f"{where}:{number}: {room}/ includes libtorch ({target})")
            elif quoted and (first not in MAY_USE or ".." in target.split("/")):
                report(f"{where}:{number}: \"{target}\" does not start with a room")
            elif first in MAY_USE and first not in allowed_rooms(room, for_tests):
                report(f"{where}:{number}: {room}/ may not use {first}/ ({target})")
            elif quoted and is_test_file(Path(target).name) and not for_tests:
                report(f"{where}:{number}: code that ships includes {target}, which is for tests")
    return looked_at


def check_links(root, report):
    """The ck_room lines may allow less than the table here, never more."""
    text = re.sub(r"#.*", "", (root / "CMakeLists.txt").read_text(encoding="utf-8"))
    looked_at = 0
    for match in re.finditer(r"^ck_room\(([^)]*)\)", text, re.MULTILINE):
        words = match.group(1).split()
        room, list_name = words[0], ""
        if room not in MAY_USE:
            report(f"CMakeLists.txt: {room}/ is in no table of ci/layering.py")
            continue
        for word in words[1:]:
            if word in ("DEPENDS", "TEST_DEPENDS"):
                list_name = word
                continue
            looked_at += 1
            if word not in LINK_TARGETS:
                continue
            if word == "aten":
                if room not in LIBTORCH:
                    report(f"CMakeLists.txt: {room}/ links libtorch")
            elif word not in allowed_rooms(room, list_name == "TEST_DEPENDS"):
                report(f"CMakeLists.txt: {room}/ links {word}/ ({list_name})")
    return looked_at


def owner_of_object(object_path):
    """CMakeFiles/oracle_test.dir/oracle/x_test.cc.o -> (oracle, True)."""
    match = re.search(r"CMakeFiles/(\w+)\.dir/", object_path)
    target = match.group(1) if match else ""
    if target == "shardproof":
        return "cli", False
    if target == "shardproof_judge":
        return "certify", False
    room = target.removesuffix("_test")
    return (room, target != room) if room in MAY_USE else (None, False)


def current_objects(build):
    """Objects that the build of today makes: ninja's log also remembers those of deleted files."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    objects = set()
    for command in commands:
        output = command.get("output")
        if output is None:
            output = re.search(r"\s-o\s+(\S+)", command["command"]).group(1)
        objects.add(str(output))
    return objects


def read_depfiles(build):
    """object -> headers, from ninja's dependency log."""
    text = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True,
                          check=True).stdout
    headers, current = {}, None
    for line in text.splitlines():
        if line.startswith("    "):
            headers[current].append(line.strip())
        elif ": #deps" in line:
            current = line.split(": #deps")[0]
            headers[current] = []
    return headers


def room_of_path(path, root, build):
    path = Path(path)
    if not path.is_absolute():
        path = build / path
    try:
        parts = path.resolve().relative_to(root).parts
    except ValueError:
        return None
    return parts[0] if len(parts) > 1 and parts[0] in MAY_USE else None


def check_depfiles(root, build, report):
    """Returns the number of (object, header) pairs looked at."""
    headers = read_depfiles(build)
    looked_at = 0
    for object_path in sorted(current_objects(build)):
        room, for_tests = owner_of_object(object_path)
        if room is None:
            continue
        if object_path not in headers:
            report(f"{object_path}: not built, so its headers are unknown")
            continue
        seen = set()
        for header in headers[object_path]:
            looked_at += 1
            if LIBTORCH_HEADER.search(header) and room not in LIBTORCH and "libtorch" not in seen:
                seen.add("libtorch")
                report(f"{object_path}: compiled with libtorch's headers ({header})")
            used = room_of_path(header, root, build)
            if used and used not in allowed_rooms(room, for_tests) and used not in seen:
                seen.add(used)
                report(f"{object_path}: compiled with a header of {used}/ ({header})")
    return looked_at


def symbols_of(object_path):
    """Demangled names that an object mentions, defined there or not."""
    text = subprocess.run(["nm", "-C", str(object_path)], capture_output=True, text=True,
                          check=True).stdout
    for line in text.splitlines():
        # "0000000000000000 T name" or "                 U name"
        if len(line) > 19 and line[16] == " " and line[18] == " ":
            yield line[19:]


def check_symbols(build, report):
    """Returns the number of symbols looked at."""
    looked_at = 0
    rooms = "|".join(sorted(MAY_USE))
    room_symbol = re.compile(rf"(?<![\w:])({rooms})::")
    for object_path in sorted(current_objects(build)):
        room, for_tests = owner_of_object(object_path)
        if room is None or not (build / object_path).exists():
            continue
        allowed = allowed_rooms(room, for_tests)
        seen = set()
        for symbol in symbols_of(build / object_path):
            looked_at += 1
            if room not in LIBTORCH and LIBTORCH_SYMBOL.search(symbol) and "libtorch" not in seen:
                seen.add("libtorch")
                report(f"{object_path}: mentions libtorch's {symbol}")
            for used in set(room_symbol.findall(symbol)) - allowed - seen:
                seen.add(used)
                report(f"{object_path}: mentions {used}/'s {symbol}")
    return looked_at


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=Path, required=True)
    options = parser.parse_args()
    root, build = options.root.resolve(), options.build.resolve()

    violations = []
    counts = {
        "include lines": check_includes(root, violations.append),
        "links": check_links(root, violations.append),
        "opened headers": check_depfiles(root, build, violations.append),
        "symbols": check_symbols(build, violations.append),
    }
    for what, count in counts.items():
        if count == 0:  # nothing looked at is not a pass
            violations.append(f"no {what} were found to look at")
    for violation in violations:
        print(f"layering: {violation}")
    print("layering: " + ", ".join(f"{count} {what}" for what, count in counts.items()) +
          f" looked at, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
