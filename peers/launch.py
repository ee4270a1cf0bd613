#!/usr/bin/env python3
"""Starts main.py in the environment that has the frameworks. ctest calls this.

  SHARDPROOF_PEERS           that environment (default: .deps/peers, made by ci/peers.sh)
  SHARDPROOF_PEERS_REQUIRED  1: its absence is a failure; else the test is skipped, with the reason
  SHARDPROOF_PEERS_QUICK     1: some cases of each kind only

Ends with 77 where it is skipped, which ctest counts and names as such.
"""

import os
import sys
from pathlib import Path

SKIPPED = 77


def main():
    root = Path(__file__).resolve().parent.parent
    place = Path(os.environ.get("SHARDPROOF_PEERS") or root / ".deps/peers")
    python = place / "bin/python"
    if not python.exists():
        is_required = os.environ.get("SHARDPROOF_PEERS_REQUIRED") == "1"
        print(f"{'missing' if is_required else 'skipped'}: no environment with DeepSpeed in "
              f"{place}; run ci/peers.sh, or set SHARDPROOF_PEERS")
        return 1 if is_required else SKIPPED
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Where DeepSpeed keeps its compiled optimizer; ci/peers.sh has compiled it there.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(place / "torch_extensions"))
    os.environ["PATH"] = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    arguments = sys.argv[1:]
    if os.environ.get("SHARDPROOF_PEERS_QUICK") == "1":
        arguments.append("--quick")
    sys.stdout.flush()
    os.execv(python, [str(python), str(root / "peers/main.py"), *arguments])


if __name__ == "__main__":
    sys.exit(main())
