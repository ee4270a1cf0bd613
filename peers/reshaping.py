"""Runs shardproof's commands on checkpoints, as a user does: by its binary, on files."""

import dataclasses
import json
import subprocess
from pathlib import Path

import models


class Refused(Exception):
    """shardproof ended with something else than 0; the text is what it printed."""


@dataclasses.dataclass
class Shardproof:
    binary: Path
    folder: Path  # for rule files

    def call(self, *arguments, expected=(0,)):
        process = subprocess.run([str(self.binary), *map(str, arguments)], capture_output=True,
                                 text=True, check=False, timeout=300)
        if process.returncode not in expected:
            raise Refused(f"shardproof {' '.join(map(str, arguments))}\n"
                          f"exit code {process.returncode}\n{process.stdout}{process.stderr}")
        return process.stdout

    def reshape(self, source, target, run, *, source_run, extra=()):
        """Writes `target` for `run` from `source`; certified, or Refused."""
        return self.call("reshape", source, target, *self.topology_flags(run),
                         *self.declarations(source_run, run), *extra)

    def certify(self, source, target, *extra):
        return json.loads(self.call("certify", source, target, "--json", *extra))

    def digest(self, checkpoint, *extra):
        """name -> {state: sha256} of the logical tensors, by the oracle."""
        text = self.call("digest", checkpoint, "--algorithm", "sha256", "--json", *extra)
        return json.loads(text)["tensors"]

    def topology_flags(self, run):
        flags = ["--tp", run.tensor, "--pp", run.pipeline, "--dp", run.data,
                 "--zero", run.stage, "--dtype", run.dtype]
        if run.stage == 0 and run.dtype != "fp32" and not run.is_partitioned:
            flags += ["--wrapper", "fused" if run.fused else "unfused"]
        elif run.dtype == "bf16":
            flags += ["--wrapper", "bf16" if run.gradients_fp32 or run.stage == 0 else "zero"]
        if run.model == "pipeline":
            entries = 6  # DeepSpeed's "uniform" method over the six layers
            cuts = [entries * i // run.pipeline for i in range(run.pipeline + 1)]
            flags += ["--cuts", ",".join(map(str, cuts))]
        return flags

    def declarations(self, source_run, run):
        """What the files do not say: rules for names that nobody knows, the order of QKV rows."""
        rules = {"tensor": models.TENSOR_RULES, "pipeline": models.PIPELINE_RULES}.get(run.model)
        if rules:
            path = self.folder / f"{run.model}_rules.json"
            path.write_text(json.dumps(rules), encoding="utf-8")
            return ["--rules", path]
        if run.model == "megatron" and source_run.tensor != run.tensor:
            return ["--qkv-layout", "per-head-group"]
        return []
