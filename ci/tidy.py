#!/usr/bin/env python3
"""House rules that a machine can check (docs/STYLE.md). A rule is here or it is no rule.

  lists        files.cmake names exactly the files of its folder; no test is forgotten
  length       at most 400 code lines a file, 60 a function, 100 columns a line
  names        no variable, field or parameter called only by one of BANNED_NAMES
  leftovers    no TODO without an issue number, no disabled test, no skip without a reason, no path
               of somebody's machine
  errors       every ErrorCode is mentioned by a test
  checks       tests use GoogleTest's macros and properties use RC_ASSERT; nobody uses assert()
  headers      `#pragma once`, and a comment at the top that says what the file is for
  documents    every document that a file refers to exists

Tested by tidy_test.py. Usage: tidy.py [--root FOLDER]
"""

import argparse
import re
import sys
from pathlib import Path

ROOMS = ("checkpoint", "reshape", "oracle", "certify", "parity", "fixtures", "gate",
         "property_tests", "gpu_tests", "bench", "cli", "fuzz", "peers")
BANNED_NAMES = ("pp", "mp", "tp", "dp", "size", "len", "chunk", "tmp", "data2", "helper", "utils",
                "manager")
FILE_CODE_LINES_MAX = 400
FUNCTION_CODE_LINES_MAX = 60
COLUMNS_MAX = 100

# Exceptions, each with its reason: (rule, path) or (rule, path:function) -> reason.
EXCEPTIONS = {
    ("checks", "checkpoint/status_test.cc"): "tests CHECK itself",
    ("length", "fixtures/faults.cc:Entries"): "a table: one row a planted fault",
}

# `int64_t size;`, `const Thing& tmp = `, `(int tp, int pp)`, `for (auto chunk : `; a use does not
# match, because a type must stand before the name.
NO_TYPE = "return|case|goto|else|new|delete|throw|co_return|co_yield|typename|operator|not|and|or"
DECLARATION = re.compile(
    rf"\b(?!(?:{NO_TYPE})\b)[A-Za-z_][\w:]*(?:<[^;{{}}()]*>)?[&*]*"  # type
    rf"\s+(?P<name>{'|'.join(BANNED_NAMES)})\s*(?:[=;,){{\[]|:(?!:))")
BINDING = re.compile(r"\bauto&{0,2}\s*\[([^\]]*)\]")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")


def blank_out(text):
    """C++ text with blanks for comments and the insides of literals; lines stay where they are."""
    pattern = re.compile(
        r'R"(?P<tag>[^\s()\\]{0,16})\((?:.|\n)*?\)(?P=tag)"'   # raw string
        r'|"(?:\\.|[^"\\\n])*"'                                # string
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"                # character; 1'000 is none
        r"|//[^\n]*|/\*(?:.|\n)*?\*/")

    def blank(match):
        found = match.group(0)
        if found.startswith("/"):
            return re.sub(r"[^\n]", " ", found)
        quote = found[-1]
        return quote + re.sub(r"[^\n]", " ", found[1:-1]) + quote
    return pattern.sub(blank, text)


def code_lines(lines):
    return sum(1 for line in lines if line.strip())


class Function:
    """Name, first and last line (from 1) and code lines of a function, test or property body."""

    def __init__(self, head, first, last, lines):
        names = re.findall(r"([A-Za-z_~][\w:~]*)\s*\(", head)
        self.name = names[0] if names else "?"
        arguments = re.search(r"\(([^()]*)\)", head)
        self.is_macro = self.name.isupper() and "_" in self.name or self.name in ("TEST",)
        if self.is_macro and arguments:
            self.name += f"({' '.join(arguments.group(1).split())})"
        self.first, self.last = first, last
        self.code_lines = code_lines(lines[first - 1:last])


def begins_function(head):
    """Whether the text before a brace, from the last ; { or } on, is that of a function."""
    ends_parameters = re.search(r"\)\s*(const|noexcept|override|final|\s)*$", head)
    if re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head) and not ends_parameters:
        return False
    is_initializer = re.search(r"(?<![=!<>])=(?!=)[^()]*$", head.split("(")[0])
    return "(" in head and not is_initializer


def functions_of(blanked):
    """Bodies at namespace or class level, found by counting braces."""
    lines = blanked.split("\n")
    found, scopes, head, head_line = [], [], "", 1
    in_function = 0
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#") or (number > 1 and lines[number - 2].endswith("\\")):
            continue  # preprocessor, with its continuation lines
        for character in line + "\n":
            if character == "{":
                is_function = not in_function and begins_function(head)
                scopes.append((is_function, head, head_line))
                in_function += is_function
                head = ""
            elif character == "}":
                if scopes:
                    was_function, its_head, its_line = scopes.pop()
                    if was_function:
                        in_function -= 1
                        found.append(Function(its_head, its_line, number, lines))
                head = ""
            elif character == ";":
                head = ""
            else:
                if not head.strip():
                    head, head_line = "", number
                head += character
    return found


def cmake_list(text, name):
    match = re.search(rf"set\({name}\s([^)]*)\)", text)
    return re.sub(r"#.*", "", match.group(1)).split() if match else []


class Tidy:
    def __init__(self, root):
        self.root = root
        self.findings = []
        self.files = 0

    def report(self, rule, where, text):
        place = str(where).split(":", maxsplit=1)[0]
        if (rule, place) not in EXCEPTIONS:
            self.findings.append(f"{where}: {text} [{rule}]")

    def report_function(self, path, function):
        if ("length", f"{path}:{function.name}") not in EXCEPTIONS:
            self.report("length", f"{path}:{function.first}",
                        f"{function.name} has {function.code_lines} code lines, "
                        f"at most {FUNCTION_CODE_LINES_MAX}")

    def sources(self, *suffixes):
        for room in ROOMS + ("ci",):
            for path in sorted((self.root / room).glob("**/*")):
                inside = path.relative_to(self.root).parts
                is_data = inside[:2] == ("fixtures", "corpus")
                if path.suffix in suffixes and path.is_file() and not is_data:
                    yield path, Path(*inside)

    def check_lists(self):
        build = (self.root / "CMakeLists.txt").read_text(encoding="utf-8")
        for extra in sorted((self.root / "ci").glob("*.cmake")):
            build += extra.read_text(encoding="utf-8")
        for room in ROOMS:
            folder = self.root / room
            present = {path.name for path in folder.glob("*.cc")}
            listed = []
            if (folder / "files.cmake").exists():
                text = (folder / "files.cmake").read_text(encoding="utf-8")
                upper = room.upper()
                for name in cmake_list(text, f"{upper}_SOURCES"):
                    listed.append(name)
                    if name.endswith("_test.cc"):
                        self.report("lists", f"{room}/files.cmake",
                                    f"test {name} is among the sources")
                listed += cmake_list(text, f"{upper}_TESTS")
            for name in sorted({name for name in listed if listed.count(name) > 1}):
                self.report("lists", f"{room}/files.cmake", f"{name} is listed twice")
            for name in sorted(set(listed) - present):
                if not (folder / name).exists():
                    self.report("lists", f"{room}/files.cmake",
                                f"{name} is listed and does not exist")
            for name in sorted(present - set(listed)):
                if f"{room}/{name}" not in build:
                    self.report("lists", f"{room}/{name}",
                                "no files.cmake names it, so it is never built")

    def check_python_tests(self):
        """A Python test runs from CMake or from a C++ test that names it."""
        callers = (self.root / "CMakeLists.txt").read_text(encoding="utf-8")
        for path, _ in self.sources(".cc", ".cmake"):
            callers += path.read_text(encoding="utf-8")
        for path, inside in self.sources(".py"):
            if inside.name.endswith("_test.py") and inside.name not in callers:
                self.report("lists", inside, "nothing runs this test")

    def check_columns_and_leftovers(self):
        for path, inside in self.sources(".h", ".cc", ".cu", ".py", ".sh"):
            self.files += 1
            is_tidy = inside.parts[0] == "ci" and inside.name.startswith("tidy")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                where = f"{inside}:{number}"
                if len(line) > COLUMNS_MAX:
                    self.report("length", where, f"{len(line)} columns, at most {COLUMNS_MAX}")
                if is_tidy:
                    continue  # the rules name what they forbid
                if re.search(r"\b(TODO(?!\(#\d+\))|FIXME|XXX)\b", line):
                    self.report("leftovers", where, "a TODO needs an issue number: TODO(#12)")
                if MACHINE_PATH.search(line):
                    self.report("leftovers", where, "a path of one machine")

    def check_cpp(self):
        for path, inside in self.sources(".h", ".cc", ".cu"):
            text = path.read_text(encoding="utf-8")
            blanked = blank_out(text)
            lines = blanked.split("\n")
            if code_lines(lines) > FILE_CODE_LINES_MAX:
                self.report("length", inside,
                            f"{code_lines(lines)} code lines, at most {FILE_CODE_LINES_MAX}")
            functions = functions_of(blanked)
            for function in functions:
                if function.code_lines > FUNCTION_CODE_LINES_MAX:
                    self.report_function(inside, function)
            for number, line in enumerate(lines, start=1):
                self.check_names(f"{inside}:{number}", line)
                self.check_macros(inside, number, line)
            if inside.parts[0] == "property_tests":
                self.check_properties(inside, lines, functions)
            if inside.suffix == ".h":
                self.check_header(inside, text, lines)

    def check_names(self, where, line):
        names = [match.group("name") for match in DECLARATION.finditer(line)]
        for binding in BINDING.finditer(line):
            names += set(re.split(r"[\s,]+", binding.group(1))) & set(BANNED_NAMES)
        for name in names:
            self.report("names", where, f"'{name}' alone says too little: of what, or spell it out")

    def check_macros(self, inside, number, line):
        where = f"{inside}:{number}"
        if re.search(r"(?<![\w.])assert\s*\(", line):
            self.report("checks", where, "assert() is gone in some builds: CHECK, or a Result")
        if inside.name.endswith("_test.cc"):
            if re.search(r"\bCHECK(_SLOW)?\s*\(", line):
                self.report("checks", where, "CHECK aborts all tests: ASSERT_ or EXPECT_")
            if re.search(r"\bDISABLED_|\bGTEST_SKIP\(\)(?!\s*<<)", line):
                self.report("leftovers", where, "a test that does not run must say why")

    def check_properties(self, inside, lines, functions):
        for function in functions:
            if not function.name.startswith("RC_GTEST"):
                continue
            for number in range(function.first, function.last + 1):
                if re.search(r"\b(EXPECT|ASSERT)_\w+\s*\(", lines[number - 1]):
                    self.report("checks", f"{inside}:{number}",
                                "in a property only RC_ASSERT fails the case and lets it shrink")

    def check_header(self, inside, text, lines):
        if not text.startswith("//"):
            self.report("headers", f"{inside}:1", "starts with no comment that says what it is for")
        if "#pragma once" not in text:
            self.report("headers", f"{inside}:1", "lacks #pragma once")
        for number, line in enumerate(lines, start=1):
            if re.search(r"\busing namespace\b", line):
                self.report("headers", f"{inside}:{number}", "using namespace in a header")

    def check_error_codes(self):
        status = self.root / "checkpoint/status.h"
        text = blank_out(status.read_text(encoding="utf-8"))
        match = re.search(r"enum class ErrorCode \{([^}]*)\}", text)
        codes = re.findall(r"\bk\w+", match.group(1)) if match else []
        if not codes:
            self.report("errors", "checkpoint/status.h", "no ErrorCode found")
        tests = "".join(path.read_text(encoding="utf-8") for path, inside in self.sources(".cc")
                        if inside.name.endswith("_test.cc"))
        for code in codes:
            if not re.search(rf"\bErrorCode::{code}\b", tests):
                self.report("errors", "checkpoint/status.h", f"no test mentions ErrorCode::{code}")

    def check_documents(self):
        texts = [(path, inside) for path, inside in self.sources(".h", ".cc", ".cu", ".py", ".sh")
                 if not (inside.parts[0] == "ci" and inside.name.startswith("tidy"))]
        for pattern in ("*.md", "docs/**/*.md", "fixtures/*.md"):
            pages = sorted(self.root.glob(pattern))
            texts += [(path, path.relative_to(self.root)) for path in pages]
        for path, inside in texts:
            places = [self.root]
            if path.suffix == ".md":
                places += [path.parent, self.root / "docs", self.root / "docs/format"]
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                names = set(re.findall(r"\bdocs/[\w/.-]*\w\.(?:md|json)\b", line))
                if path.suffix == ".md":
                    names |= set(re.findall(r"\]\(([^)#:]+)\)", line))
                    names |= set(re.findall(r"(?<![\w/*<])\w[\w-]*\.md\b", line))
                for name in sorted(names):
                    if not any((place / name).exists() for place in places):
                        self.report("documents", f"{inside}:{number}", f"no such document: {name}")

    def check_all(self):
        self.check_lists()
        self.check_python_tests()
        self.check_columns_and_leftovers()
        self.check_cpp()
        self.check_error_codes()
        self.check_documents()
        if self.files == 0:
            self.findings.append("no files were found to look at")
        return self.findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    tidy = Tidy(parser.parse_args().root.resolve())
    findings = tidy.check_all()
    for finding in findings:
        print(f"tidy: {finding}")
    print(f"tidy: {tidy.files} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
