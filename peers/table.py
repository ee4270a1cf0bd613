#!/usr/bin/env python3
"""Prints the rows of all suites that ran in this build as one table: table.py FOLDER.

Suites leave FOLDER/<suite>/table.json. Ends with 77 (skipped) where none did.
"""

import json
import sys
from pathlib import Path


def show(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")


def main():
    tables = [json.loads(path.read_text(encoding="utf-8"))
              for path in sorted(Path(sys.argv[1]).glob("*/table.json"))]
    if not tables:
        print("skipped: no suite of label peers ran in this build")
        return 77
    rows = [row for table in tables for row in table["rows"]]
    show(tables[0]["head"], rows)
    print(f"{len(rows)} rows of {len(tables)} suites")
    return 0


if __name__ == "__main__":
    sys.exit(main())
