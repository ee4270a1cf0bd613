#!/usr/bin/env python3
"""Tests of layering.py: a sound house passes, each planted violation is reported by its check."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "layering.py"

# A sound house of one file a room. libtorch is played by a header of the same path.
SOUND = {
    "CMakeLists.txt": "ck_room(checkpoint DEPENDS fmt::fmt)\n"
                      "ck_room(reshape DEPENDS checkpoint)\n"
                      "ck_room(oracle DEPENDS checkpoint aten)\n"
                      "ck_room(certify DEPENDS oracle TEST_DEPENDS fixtures)\n"
                      "ck_room(fixtures DEPENDS checkpoint)\n",
    "wheel/torch/include/ATen/core/Tensor.h": "#pragma once\nnamespace at { int NewTensor(); }\n",
    "checkpoint/file.h": "#pragma once\nnamespace checkpoint { int Open(); }\n",
    "checkpoint/file.cc": '#include "checkpoint/file.h"\n'
                          "int checkpoint::Open() { return 1; }\n",
    "reshape/plan.h": "#pragma once\nnamespace reshape { int Plan(); }\n",
    "reshape/plan.cc": '#include "checkpoint/file.h"\n#include "reshape/plan.h"\n'
                       "int reshape::Plan() { return checkpoint::Open(); }\n",
    "oracle/oracle.h": "#pragma once\n#include <ATen/core/Tensor.h>\n"
                       "namespace oracle { int Read(); }\n",
    # The oracle may call ATen's own operation named reshape.
    "oracle/oracle.cc": '#include "checkpoint/file.h"\n#include "oracle/oracle.h"\n'
                        "namespace at::_ops { struct reshape { static int call(); }; }\n"
                        "int oracle::Read() {\n"
                        "  return at::NewTensor() + at::_ops::reshape::call();\n"
                        "}\n",
    "certify/laws.cc": '#include "oracle/oracle.h"\n'
                       "namespace certify { int Judge() { return oracle::Read(); } }\n",
    "fixtures/fixture.h": "#pragma once\nnamespace fixtures { int Write(); }\n",
    "fixtures/fixture.cc": '#include "fixtures/fixture.h"\n'
                           "int fixtures::Write() { return 2; }\n",
    "certify/laws_test.cc": '#include "fixtures/fixture.h"\n'
                            "int main() { return fixtures::Write(); }\n",
}

NINJA_RULE = """includes = -I{root} -isystem {root}/wheel/torch/include
rule cxx
  command = g++ -std=c++20 $includes -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
"""


def build_house(root, files):
    """Writes the files, compiles every .cc as CMake's Ninja generator would, returns the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    build = root / "build"
    build.mkdir()
    rules, commands = NINJA_RULE.format(root=root), []
    for name in sorted(files):
        if not name.endswith(".cc"):
            continue
        target = name.split("/")[0] + ("_test" if name.endswith("_test.cc") else "")
        output = f"CMakeFiles/{target}.dir/{name}.o"
        rules += f"build {output}: cxx {root}/{name}\n"
        commands.append({"directory": str(build), "file": name, "command": f"g++ -o {output}"})
    (build / "build.ninja").write_text(rules, encoding="utf-8")
    (build / "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
    subprocess.run(["ninja", "-C", str(build)], check=True, capture_output=True)
    return build


def run_check(changes, after_build=None):
    """Exit code and output of the check on the sound house with `changes` (file -> text) made."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        build = build_house(root, SOUND | changes)
        if after_build:
            after_build(root, build)
        command = [sys.executable, str(CHECK), "--root", str(root), "--build", str(build)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class LayeringTest(unittest.TestCase):
    def assert_reports(self, expected, changes, after_build=None):
        code, output = run_check(changes, after_build)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, expected)
        return output

    def test_sound_house_passes(self):
        code, output = run_check({})
        self.assertEqual(code, 0, output)
        self.assertIn(" 0 violations", output)
        self.assertNotRegex(output, r"\b0 (include lines|links|opened headers|symbols)")

    def test_oracle_including_reshape_is_reported(self):
        text = '#include "reshape/plan.h"\nnamespace oracle { int Peek() { return 1; } }\n'
        self.assert_reports(r"oracle/peek.cc:1: oracle/ may not use reshape/",
                            {"oracle/peek.cc": text})

    def test_fixtures_including_oracle_is_reported(self):
        text = '#include "oracle/oracle.h"\nnamespace fixtures { int Peek() { return 1; } }\n'
        self.assert_reports(r"fixtures/peek.cc:1: fixtures/ may not use oracle/",
                            {"fixtures/peek.cc": text})

    def test_checkpoint_including_libtorch_is_reported(self):
        text = "#include <ATen/core/Tensor.h>\nnamespace checkpoint { int Peek() { return 1; } }\n"
        self.assert_reports(r"checkpoint/peek.cc:1: checkpoint/ includes libtorch",
                            {"checkpoint/peek.cc": text})

    def test_include_beside_the_rooms_is_reported(self):
        text = '#include "../reshape/plan.h"\nnamespace oracle { int Peek() { return 1; } }\n'
        self.assert_reports(r'oracle/peek.cc:1: "../reshape/plan.h" does not start with a room',
                            {"oracle/peek.cc": text})

    def test_certify_code_using_fixtures_is_reported_though_its_tests_may(self):
        text = '#include "fixtures/fixture.h"\nnamespace certify { int Peek() { return 1; } }\n'
        self.assert_reports(r"certify/peek.cc:1: certify/ may not use fixtures/",
                            {"certify/peek.cc": text})

    def test_shipped_code_including_a_test_header_is_reported(self):
        header = "#pragma once\n"
        text = '#include "oracle/made_testing.h"\nnamespace oracle { int Peek() { return 1; } }\n'
        self.assert_reports(r"oracle/peek.cc:1: code that ships includes oracle/made_testing.h",
                            {"oracle/made_testing.h": header, "oracle/peek.cc": text})

    def test_link_that_the_table_forbids_is_reported(self):
        lines = SOUND["CMakeLists.txt"].replace("ck_room(oracle DEPENDS checkpoint",
                                                "ck_room(oracle DEPENDS reshape")
        self.assert_reports(r"CMakeLists.txt: oracle/ links reshape/ \(DEPENDS\)",
                            {"CMakeLists.txt": lines})

    def test_libtorch_link_of_reshape_is_reported(self):
        lines = SOUND["CMakeLists.txt"].replace("ck_room(reshape DEPENDS",
                                                "ck_room(reshape DEPENDS aten")
        self.assert_reports(r"CMakeLists.txt: reshape/ links libtorch", {"CMakeLists.txt": lines})

    def test_room_without_a_table_is_reported(self):
        lines = SOUND["CMakeLists.txt"] + "ck_room(annex DEPENDS reshape)\n"
        self.assert_reports(r"CMakeLists.txt: annex/ is in no table", {"CMakeLists.txt": lines})

    def test_header_that_comes_by_a_detour_is_reported(self):
        # The include line hides behind a macro, where only the compiler sees it.
        text = ('#define HIDDEN "reshape/plan.h"\n#include HIDDEN\n'
                "namespace oracle { int Peek() { return 1; } }\n")
        output = self.assert_reports(r"oracle/peek.cc.o: compiled with a header of reshape/",
                                     {"oracle/peek.cc": text})
        self.assertNotIn("peek.cc:2:", output)

    def test_libtorch_that_comes_by_a_detour_is_reported(self):
        text = ("#define HIDDEN <ATen/core/Tensor.h>\n#include HIDDEN\n"
                "namespace reshape { int Peek() { return 1; } }\n")
        self.assert_reports(r"reshape/peek.cc.o: compiled with libtorch's headers",
                            {"reshape/peek.cc": text})

    def test_symbol_declared_by_hand_is_reported(self):
        text = ("namespace reshape { int Plan(); }\n"
                "namespace oracle { int Peek() { return reshape::Plan(); } }\n")
        self.assert_reports(r"oracle/peek.cc.o: mentions reshape/'s reshape::Plan\(\)",
                            {"oracle/peek.cc": text})

    def test_libtorch_symbol_declared_by_hand_is_reported(self):
        text = ("namespace at { int NewTensor(); }\n"
                "namespace reshape { int Peek() { return at::NewTensor(); } }\n")
        self.assert_reports(r"reshape/peek.cc.o: mentions libtorch's at::NewTensor\(\)",
                            {"reshape/peek.cc": text})

    def test_object_that_was_not_built_is_reported(self):
        def forget(root, build):
            commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
            commands.append({"command": "g++ -o CMakeFiles/oracle.dir/oracle/late.cc.o"})
            (build / "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
        self.assert_reports(r"oracle/late.cc.o: not built", {}, forget)

    def test_nothing_to_look_at_is_reported(self):
        self.assert_reports(r"no links were found", {"CMakeLists.txt": "project(empty)\n"})


if __name__ == "__main__":
    unittest.main()
