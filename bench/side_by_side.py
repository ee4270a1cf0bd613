#!/usr/bin/env python3
"""Side by side: shardproof, cp, xxhsum and the peer's converter on the same checkpoints, one run.

Absolute times mean nothing on a shared machine, so every figure is a ratio to something measured in
the same run, and repetitions of the commands alternate. Prints one table a checkpoint (docs/
PERFORMANCE.md explains each row) and leaves all figures as JSON.

  bench/side_by_side.py                                 # about 2 GB a checkpoint, five repetitions
  bench/side_by_side.py --bytes 500000000 --repeat 3 --only tp2pp2dp2-z1-bf16
  bench/side_by_side.py --peer /path/to/python          # a Python that has deepspeed
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

# name -> (flags of `fixture`, flags of `reshape`, the share of --bytes that it gets)
CASES = {
    # The story of running on: ZeRO-1 to another TP, PP and DP.
    "tp2pp2dp2-z1-bf16": (
        "--tp 2 --pp 2 --dp 2 --zero 1 --dtype bf16 --wrapper zero",
        "--tp 4 --pp 1 --dp 2 --zero 1 --qkv-layout per-head-group",
        1.0,
    ),
    # The first story: nameless flat groups without ZeRO to ZeRO-1.
    "tp4pp4-z0-fp16": (
        "--tp 4 --pp 4 --dp 1 --zero 0 --dtype fp16",
        "--tp 2 --pp 2 --dp 2 --zero 1 --qkv-layout per-head-group",
        1.0,
    ),
    # Rows cut into runs of 16 elements: many short copies for each byte.
    "short-rows": (
        "--tp 16 --pp 1 --dp 1 --zero 0 --dtype fp16 --hidden 256 --heads 16 --ffn 1024"
        " --layers 240 --vocab 1024",
        "--tp 8 --pp 1 --dp 1 --zero 0 --qkv-layout per-head-group",
        None,
    ),
    # 12,000 tensors of some hundred elements, in a thousand layer files.
    "small-tensors": (
        "--tp 1 --pp 2 --dp 2 --zero 1 --dtype bf16 --hidden 32 --heads 4 --ffn 128"
        " --layers 1000 --vocab 512",
        "--tp 1 --pp 4 --dp 1 --zero 1",
        None,
    ),
    # Groups with fewer elements than there are ranks: most partitions are padding.
    "tiny-groups": (
        "--arch plain --layout plain --tp 1 --pp 1 --dp 64 --zero 1 --dtype bf16 --wrapper zero",
        "--dp 48 --zero 1",
        None,
    ),
}


def words(text):
    return text.split()


def median_of(costs):
    return statistics.median(cost.seconds for cost in costs)


class Bench:
    """One checkpoint, and the commands that are compared on it."""

    def __init__(self, name, options):
        fixture, reshape, share = CASES[name]
        self.name, self.options = name, options
        self.folder = Path(options.work) / name
        measure.remove(self.folder)
        self.folder.mkdir(parents=True)
        self.source = self.folder / "source"
        self.target = self.folder / "target"  # made once, for certify and the hash pass
        self.reshape_flags = words(reshape)
        size = ["--bytes", str(int(options.bytes * share))] if share else []
        self.shardproof("fixture", self.source, *words(fixture), *size)
        self.shardproof("reshape", self.source, self.target, *self.reshape_flags, "--no-certify")

    def shardproof(self, *arguments):
        command = [str(self.options.binary), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            output = result.stdout + result.stderr
            sys.exit(f"{' '.join(command)}\nexit {result.returncode}\n{output}")

    def commands(self):
        """name -> command; {out} is a folder that does not exist. Alternated, repetition by
        repetition."""
        binary, source, target = str(self.options.binary), str(self.source), str(self.target)
        reshape = [binary, "reshape", source, "{out}", *self.reshape_flags, "--no-certify"]
        is_declared = "--qkv-layout" in self.reshape_flags
        qkv = ["--qkv-layout", "per-head-group"] if is_declared else []
        listed = "find %s -type f -print0 | xargs -0 xxhsum -H2" % source
        both = "find %s %s -type f -print0 | xargs -0 xxhsum -H2" % (source, target)
        result = {
            "cp -r": ["cp", "-r", source, "{out}"],
            "reshape --no-flush": [*reshape, "--no-flush"],
            "cp -r, sync": f"cp -r {source} {{out}} && sync -f {{out}}",
            "reshape": reshape,
            "xxhsum of source": listed,
            "digest": [binary, "digest", source, *qkv],
            "check": [binary, "check", source, *qkv],
            "xxhsum of both": both,
            "certify": [binary, "certify", source, target, *qkv],
            "inspect": [binary, "inspect", source],
        }
        if self.options.peer and self.name.startswith("tp2pp2dp2"):
            converter = [self.options.peer, str(Path(__file__).parent / "peer_converter.py"),
                         "--input_folder", str(next(self.source.glob("global_step*"))),
                         "--output_folder", "{out}"]
            for workers in (1, 2):
                result[f"ds_to_universal, {workers} worker{'s' if workers > 1 else ''}"] = [
                    *converter, "--num_extract_workers", str(workers),
                    "--num_merge_workers", str(workers)]
            result["reshape --format universal --no-flush"] = [
                binary, "reshape", source, "{out}", "--format", "universal", "--no-certify",
                "--no-flush"]
        return result

    def run_once(self, name, command, cold=False):
        out = self.folder / "out"
        measure.remove(out)
        if isinstance(command, str):
            command = command.replace("{out}", str(out))
        else:
            command = [word.replace("{out}", str(out)) for word in command]
        if cold and not measure.drop_page_cache():
            return None
        if not cold:
            measure.warm(self.source)
        environment = dict(os.environ, DS_ACCELERATOR="cpu")
        log = self.folder / "log"
        cost = measure.run(command, environment, log=log)
        measure.remove(out)
        if cost.exit_code != 0:
            sys.exit(f"{self.name}: {name}: exit {cost.exit_code}\n{log.read_text()[-2000:]}")
        return cost

    def run(self):
        commands = self.commands()
        warm, cold = {name: [] for name in commands}, {}
        for _ in range(self.options.repeat):
            for name, command in commands.items():
                warm[name].append(self.run_once(name, command))
        if self.options.cold:
            for name in ("cp -r", "reshape --no-flush", "xxhsum of both", "certify"):
                cost = self.run_once(name, commands[name], cold=True)
                if cost:
                    cold[name] = cost
        return warm, cold


# row -> (what it is measured against, bound of the ratio of times, is it from above)
AGAINST = {
    "reshape --no-flush": ("cp -r", 1 / 0.8),
    "reshape": ("cp -r, sync", 1 / 0.8),
    "digest": ("xxhsum of source", None),
    "check": ("xxhsum of source", None),
    "certify": ("xxhsum of both", 1.5),
    "reshape --format universal --no-flush": ("ds_to_universal", 1 / 8),
}


def base_of(name, medians):
    base, bound = AGAINST.get(name, (None, None))
    if base == "ds_to_universal":  # at its best setting
        settings = [n for n in medians if n.startswith(base)]
        base = min(settings, key=medians.get) if settings else None
    return base, bound


def print_table(name, sizes, warm, cold):
    medians = {row: median_of(costs) for row, costs in warm.items()}
    print(f"\n{name}: source {sizes['source'] / 1e6:.0f} MB in {sizes['source_files']} files,"
          f" target {sizes['target'] / 1e6:.0f} MB in {sizes['target_files']} files\n")
    print(f"| {'command':37} | median s |  min .. max  | ratio | against{' ' * 18} | bound |"
          " anon MiB | VmHWM MiB | written MB | cold s |")
    print("|" + "|".join("-" * n for n in (39, 10, 14, 7, 27, 7, 10, 11, 12, 8)) + "|")
    for row, costs in warm.items():
        base, bound = base_of(row, medians)
        ratio = f"{medians[row] / medians[base]:.2f}" if base else ""
        span = f"{min(c.seconds for c in costs):.2f} .. {max(c.seconds for c in costs):.2f}"
        anonymous = max(c.anonymous_peak for c in costs) / 2**20
        resident = max(c.resident_peak for c in costs) / 2**20
        written = max(c.bytes_written for c in costs) / 1e6
        chilled = f"{cold[row].seconds:.2f}" if row in cold else ""
        print(f"| {row:37} | {medians[row]:8.2f} | {span:>12} | {ratio:>5} | {base or '':25} |"
              f" {f'{bound:.2f}' if bound else '':>5} | {anonymous:8.0f} | {resident:9.0f} |"
              f" {written:10.0f} | {chilled:>6} |")
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "shardproof")
    parser.add_argument("--work", default=ROOT / "build" / "bench", help="folder for checkpoints")
    parser.add_argument("--bytes", type=float, default=2e9, help="of each large checkpoint")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", action="append", choices=sorted(CASES), help="these cases")
    parser.add_argument("--peer", help="a Python that has deepspeed: ds_to_universal joins")
    parser.add_argument("--cold", action="store_true", help="also once each with a cold page cache")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    for tool in ("xxhsum", "cp"):
        if not shutil.which(tool):
            sys.exit(f"side_by_side: {tool} is not there: run ci/setup.sh")
    figures = {}
    for name in options.only or CASES:
        bench = Bench(name, options)
        warm, cold = bench.run()
        sizes = {}
        for side in ("source", "target"):
            folder = getattr(bench, side)
            sizes[side] = measure.folder_bytes(folder)
            sizes[side + "_files"] = sum(path.is_file() for path in folder.rglob("*"))
        print_table(name, sizes, warm, cold)
        sys.stdout.flush()
        figures[name] = {
            "sizes": sizes,
            "warm": {row: [vars(cost) for cost in costs] for row, costs in warm.items()},
            "cold": {row: vars(cost) for row, cost in cold.items()},
        }
        measure.remove(bench.folder)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
