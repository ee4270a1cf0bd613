#!/usr/bin/env python3
"""Tests of tidy.py: a sound house has no findings, and each rule reports what it must reject."""

import tempfile
import unittest
from pathlib import Path

import tidy

SOUND = {
    "CMakeLists.txt": "add_executable(shardproof cli/main.cc)\n",
    "checkpoint/files.cmake": "set(CHECKPOINT_SOURCES\n  status.cc\n)\n"
                              "set(CHECKPOINT_TESTS\n  status_test.cc\n)\n",
    "checkpoint/status.h": "// Errors as values.\n#pragma once\n"
                           "enum class ErrorCode { kUsage,  // flags\n  kIo };\n",
    "checkpoint/status.cc": '#include "checkpoint/status.h"\n'
                            "namespace checkpoint {\n"
                            "int64_t Area(int64_t rows, int64_t width) { return rows * width; }\n"
                            "}  // namespace checkpoint\n",
    "checkpoint/status_test.cc": "TEST(StatusTest, HasCodes) {\n"
                                 "  EXPECT_NE(ErrorCode::kUsage, ErrorCode::kIo);\n}\n",
    "cli/files.cmake": "set(CLI_SOURCES\n)\nset(CLI_TESTS\n)\n",
    "cli/main.cc": "int main() { return 0; }\n",
}


def findings(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in (SOUND | changes).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return tidy.Tidy(root).check_all()


def in_status_cc(text):
    body = f"namespace checkpoint {{\n{text}\n}}  // namespace checkpoint\n"
    return {"checkpoint/status.cc": body}


class TidyTest(unittest.TestCase):
    def assert_one(self, expected, changes):
        found = findings(changes)
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], expected)

    def assert_none(self, changes):
        self.assertEqual(findings(changes), [])

    def test_sound_house_has_no_findings(self):
        self.assert_none({})

    def test_source_that_no_list_names(self):
        self.assert_one(r"checkpoint/lost.cc: no files.cmake names it",
                        {"checkpoint/lost.cc": "int x = 1;\n"})

    def test_test_that_no_list_names(self):
        self.assert_one(r"checkpoint/lost_test.cc: no files.cmake names it",
                        {"checkpoint/lost_test.cc": "TEST(Lost, IsLost) {}\n"})

    def test_list_that_names_no_file(self):
        lists = SOUND["checkpoint/files.cmake"].replace("status.cc", "status.cc gone.cc")
        self.assert_one(r"gone.cc is listed and does not exist", {"checkpoint/files.cmake": lists})

    def test_test_among_the_sources(self):
        lists = "set(CHECKPOINT_SOURCES\n  status.cc status_test.cc\n)\nset(CHECKPOINT_TESTS\n)\n"
        self.assert_one(r"test status_test.cc is among the sources",
                        {"checkpoint/files.cmake": lists})

    def test_file_listed_twice(self):
        lists = SOUND["checkpoint/files.cmake"].replace("status.cc", "status.cc status.cc")
        self.assert_one(r"status.cc is listed twice", {"checkpoint/files.cmake": lists})

    def test_python_test_that_nothing_runs(self):
        self.assert_one(r"cli/cli_test.py: nothing runs this test", {"cli/cli_test.py": "pass\n"})
        build = SOUND["CMakeLists.txt"] + "add_test(cli/cli_test.py)\n"
        self.assert_none({"cli/cli_test.py": "pass\n", "CMakeLists.txt": build})

    def test_line_of_101_columns(self):
        self.assert_none(in_status_cc("// " + "x" * 97))
        self.assert_one(r"status.cc:2: 101 columns, at most 100", in_status_cc("// " + "x" * 98))

    def test_file_of_401_code_lines(self):
        self.assert_none(in_status_cc("int x;\n// comment\n\n" * 398))
        self.assert_one(r"401 code lines, at most 400", in_status_cc("int x;\n" * 399))

    def test_function_of_61_code_lines(self):
        body = "  Call();\n"
        self.assert_none(in_status_cc("void F() {\n" + body * 58 + "  // comment\n\n}"))
        self.assert_one(r"status.cc:2: F has 61 code lines",
                        in_status_cc("void F() {\n" + body * 59 + "}"))
        self.assert_one(r"status.cc:3: Class::F has 61 code lines",
                        in_status_cc("\nint Class::F(int a,\n  int b) const {\n" + body * 58 + "}"))

    def test_class_and_table_are_no_functions(self):
        self.assert_none(in_status_cc("class A {\n" + "  int x = f();\n" * 70 + "};"))
        self.assert_none(in_status_cc("const Table kTable = {\n" + "  {Of(1), 2},\n" * 70 + "};"))

    def test_brace_in_literal_or_comment_does_not_count(self):
        line = "void F() { Call(\"{\"); /* { */ Call('{', R\"(}})\"); }  // {"
        self.assert_none(in_status_cc(line + "\n" + "int x;\n" * 70))

    def test_banned_name_of_a_variable_field_parameter_or_binding(self):
        for line in ("int64_t size = 3;", "struct A { int32_t tp; };", "void F(int a, int len) {}",
                     "void F(const Bytes& chunk);", "void F() { for (auto tmp : list) G(tmp); }",
                     "std::vector<int> helper{1};", "void F() { auto [name, size] = G(); }"):
            with self.subTest(line):
                self.assert_one(r"alone says too little", in_status_cc(line))

    def test_use_of_a_banned_word_is_no_declaration(self):
        for line in ("int F() { return size; }", "auto n = list.size();", "int F(int tp_size);",
                     "// int size = 3;", 'Log("int size;");', "auto n = a.rows * size;",
                     "if (a && size) G(a, size);", "size_t size() const;"):
            with self.subTest(line):
                self.assert_none(in_status_cc(line))

    def test_todo_without_issue(self):
        self.assert_one(r"status.cc:2: a TODO needs an issue number",
                        in_status_cc("// TODO: later"))
        self.assert_none(in_status_cc("// TODO(#12): later"))

    def test_path_of_a_machine(self):
        self.assert_one(r"a path of one machine", in_status_cc('auto x = "/home/me/x";'))
        self.assert_none(in_status_cc("// docs/home/page, a/root/b"))

    def test_error_code_that_no_test_mentions(self):
        header = SOUND["checkpoint/status.h"].replace("kIo", "kIo, kLost")
        self.assert_one(r"no test mentions ErrorCode::kLost", {"checkpoint/status.h": header})

    def test_check_in_a_test(self):
        text = SOUND["checkpoint/status_test.cc"]
        lists = SOUND["checkpoint/files.cmake"]
        lists = lists.replace("status_test.cc", "status_test.cc a_test.cc")
        self.assert_one(r"a_test.cc:1: CHECK aborts all tests",
                        {"checkpoint/a_test.cc": "TEST(A, B) { CHECK(1 == 1); }\n" + text,
                         "checkpoint/files.cmake": lists})

    def test_assert(self):
        self.assert_one(r"assert\(\) is gone in some builds",
                        in_status_cc("void F() { assert(x); }"))
        self.assert_none(in_status_cc("static_assert(sizeof(int) == 4);"))

    def test_disabled_test_and_skip_without_reason(self):
        text = SOUND["checkpoint/status_test.cc"]
        self.assert_one(r"must say why", {
            "checkpoint/status_test.cc": text + "TEST(A, DISABLED_B) {}\n"})
        self.assert_one(r"must say why", {
            "checkpoint/status_test.cc": text + "TEST(A, B) { GTEST_SKIP(); }\n"})
        self.assert_none({
            "checkpoint/status_test.cc": text + 'TEST(A, B) { GTEST_SKIP() << "no device"; }\n'})

    def test_expect_in_a_property(self):
        lists = "set(PROPERTY_TESTS_SOURCES\n)\nset(PROPERTY_TESTS_TESTS\n  law_test.cc\n)\n"
        property_text = "RC_GTEST_PROP(Law, Holds, ()) {\n  EXPECT_EQ(1, 1);\n}\n"
        self.assert_one(r"law_test.cc:2: in a property only RC_ASSERT", {
            "property_tests/files.cmake": lists, "property_tests/law_test.cc": property_text})
        property_text = property_text.replace("EXPECT_EQ(1, 1)", "RC_ASSERT(1 == 1)")
        self.assert_none({
            "property_tests/files.cmake": lists, "property_tests/law_test.cc": property_text})

    def test_reference_to_a_document_that_does_not_exist(self):
        self.assert_one(r"status.cc:2: no such document: docs/LOST.md",
                        in_status_cc("// docs/LOST.md says why."))
        for text in ("See [the other](format/there.md).\n", "there.md section 2 says why.\n"):
            with self.subTest(text):
                page = {"docs/HERE.md": text}
                self.assert_one(r"docs/HERE.md:1: no such document: (format/)?there.md", page)
                self.assert_none(page | {"docs/format/there.md": "There.\n"})

    def test_header_rules(self):
        header = SOUND["checkpoint/status.h"]
        self.assert_one(r"lacks #pragma once", {
            "checkpoint/status.h": header.replace("#pragma once\n", "")})
        self.assert_one(r"no comment that says what it is for", {
            "checkpoint/status.h": header.replace("// Errors as values.\n", "")})
        self.assert_one(r"using namespace in a header", {
            "checkpoint/status.h": header + "using namespace std;\n"})


if __name__ == "__main__":
    unittest.main()
