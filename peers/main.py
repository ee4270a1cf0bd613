#!/usr/bin/env python3
"""Peers: DeepSpeed itself trains, saves, loads what shardproof wrote, and trains on.

  main.py SUITE --shardproof BINARY --folder SCRATCH [--quick] [--only TEXT]

Run by ctest (label peers), through launch.py. docs/PEERS.md says what is shown.
"""

import argparse
import functools
import sys
import time

import breaks
import cases
import controls
import judge
import limits
import story
import tools
import training
from reshaping import Refused
from workshop import STEPS_BEFORE, Workshop


def reshape_case(shop, case, source):
    """The target's folder, by shardproof, certified on the way."""
    target = shop.place("target")
    origin, flags = source.folder, list(case.flags)
    if case.through_universal:
        middle = shop.place("universal")
        shop.shardproof.reshape(origin, middle, case.source, source_run=case.source,
                                extra=["--format", "universal"])
        origin, flags = middle, [*flags, "--universal"]
    if case.universal:
        flags += ["--format", "universal"]
    shop.shardproof.reshape(origin, target, case.target, source_run=case.source, extra=flags)
    return target


def describe(case):
    how = " universal" if case.universal else ""
    how += " through universal" if case.through_universal else ""
    return f"{case.target}{how}{''.join(f' {flag}' for flag in case.flags)}"


def show_case(shop, case, table):
    is_exact = case.expectation == cases.EXACT
    limit = judge.Bound(0, 0) if is_exact else judge.bound(case.source, case.target)
    print(f"{case.source} -> {describe(case)}")
    print(f"  bound: drift {limit.drift:.2e}, losses {limit.loss:.2e}")
    try:
        source = shop.source(case.source)
        resumed = shop.resume(case.target, reshape_case(shop, case, source),
                              universal=case.universal)
    except (Refused, training.Failure) as error:
        print(error)
        table.add(str(case.source), describe(case), None, limit, "FAILED", True)
        return
    # A universal folder has no frozen parameters and no buffers: docs/PEERS.md.
    found = judge.compare(source.report, resumed, STEPS_BEFORE, with_frozen=not case.universal)
    for line in found.loaded:
        print(f"  not as saved: {line}")
    is_good = not found.loaded and (found.is_exact if is_exact else found.within(limit))
    good = "equal to the last bit" if found.is_exact else "within the bound"
    table.add(str(case.source), describe(case), found, limit, good if is_good else "FAILED",
              not is_good)


def run_cases(name, shop, options):
    table = judge.Table()
    chosen = [case for case in cases.SUITES[name]()
              if (case.quick or not options.quick)
              and options.only in f"{case.source} -> {describe(case)}"]
    for case in chosen:
        show_case(shop, case, table)
    table.show(shop.folder)
    print(f"{len(chosen)} cases, {table.failures} failed")
    return 1 if table.failures or not chosen else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    suites = {name: functools.partial(run_cases, name) for name in cases.SUITES}
    suites.update(breaks=breaks.run_suite, controls=controls.run_suite, limits=limits.run_suite,
                  story=story.run_suite, tools=tools.run_suite)
    parser.add_argument("suite", choices=sorted(suites))
    parser.add_argument("--shardproof", required=True, help="the binary")
    parser.add_argument("--folder", required=True, help="scratch; made anew")
    parser.add_argument("--quick", action="store_true", help="some cases of each kind only")
    parser.add_argument("--only", default="", help="cases whose line holds this text")
    options = parser.parse_args()
    began = time.monotonic()
    shop = Workshop(options.folder, options.shardproof)
    code = suites[options.suite](shop, options)
    print(f"{options.suite}: {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
