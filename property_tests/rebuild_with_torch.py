"""Rebuilds every logical tensor of a Megatron-DeepSpeed or DeepSpeed checkpoint with torch.load alone and compares the bytes with
truth.json, which was taken from the memory of the process that wrote the source.

Usage: rebuild_with_torch.py STEP_FOLDER TRUTH.json
Prints how many states were compared; exits 1 on the first difference or when nothing was compared.

This script shares nothing with the C++ code: it is the voice of the framework's own loader in the tests. How a tensor was split
is read from truth.json; where its parts lie follows docs/format.
"""
import glob
import hashlib
import json
import os
import re
import sys
import types

import torch


class Stub:
    """Stands for any class of the framework, so that the framework need not be installed."""

    def __init__(self, *arguments, **keywords):
        self.arguments = arguments

    def __setstate__(self, state):
        self.__dict__.update(state)


class StubModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub


class StubFinder:
    """Serves empty modules for the frameworks' packages."""

    def find_spec(self, name, path=None, target=None):
        import importlib.machinery
        if name.split(".")[0] in ("deepspeed", "megatron"):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def flatten(tree, prefix=""):
    """Nested module dictionaries to dotted names."""
    for key, entry in tree.items():
        if isinstance(entry, dict):
            yield from flatten(entry, prefix + key + ".")
        elif torch.is_tensor(entry):
            yield prefix + key, entry


def natural(path):
    return [int(number) for number in re.findall(r"\d+", os.path.basename(path))]


def canonical(name, first_layer, layers):
    """Canonical Megatron name of a pipeline or plain name; other names stay."""
    name = name.removeprefix("language_model.").removeprefix("encoder.")
    name = name.removeprefix("tied_modules.embed.") if name.startswith("tied_modules.embed.") else name
    match = re.fullmatch(r"(\d+)\.(.+)", name)
    if match and layers:
        number, rest = int(match[1]), match[2]
        if first_layer <= number < first_layer + layers:
            return f"layers.{number - first_layer}.{rest}"
        if number < first_layer:
            return "embedding." + rest
        return "output_layer.weight" if rest == "lm_head.weight" else "final_layernorm." + rest
    if name.startswith(("word_embeddings", "position_embeddings")):
        return "embedding." + name
    return name


class Checkpoint:
    def __init__(self, folder):
        self.folder = folder
        self.models = [load(path) for path in
                       sorted(glob.glob(folder + "/mp_rank_*_model_states.pt"), key=natural)]
        args = vars(self.models[0]["args"]) if "args" in self.models[0] else {}
        dimensions = self.models[0].get("checkpoint_parallel_dimensions") or {}
        self.tp = args.get("tensor_model_parallel_size", dimensions.get("tp_degree", 1))
        self.layers = args.get("num_layers", 0)
        layer_files = glob.glob(folder + "/layer_*-model_states.pt")
        self.first_layer = 2
        self.weights = {}            # (name, tp) -> list of tensors
        layer_numbers = set()
        for path in sorted(layer_files, key=natural):
            numbers = natural(path)
            layer, rank = numbers[0], numbers[1] if len(numbers) > 1 else 0
            layer_numbers.add(layer)
            for key, tensor in load(path).items():
                self.weights.setdefault((f"{layer}.{key}", rank), []).append(tensor)
        if self.layers and 2 not in layer_numbers and layer_files:
            self.first_layer = 3
        for rank, model in enumerate(self.models):
            if model["module"]:
                for name, tensor in flatten(model["module"]):
                    self.weights.setdefault((name, rank % self.tp), []).append(tensor)
        self.optimizer = {}          # (name, tp, state) -> list of tensors
        for rank, model in enumerate(self.models):
            self.read_optimizer(rank, model)

    def read_optimizer(self, rank, model):
        pattern = f"{self.folder}/*zero_pp_rank_*_mp_rank_{rank:02d}_optim_states.pt"
        partitions = [load(path)["optimizer_state_dict"] for path in
                      sorted(glob.glob(pattern), key=natural)]
        if partitions:
            for group, shapes in enumerate(model["param_shapes"]):
                self.slice_group(rank, shapes, {
                    "fp32": [p["single_partition_of_fp32_groups"][group] for p in partitions],
                    "exp_avg": [p["base_optimizer_state"]["state"][group]["exp_avg"]
                                for p in partitions],
                    "exp_avg_sq": [p["base_optimizer_state"]["state"][group]["exp_avg_sq"]
                                   for p in partitions]})
        elif model["optimizer"] and "fp32_groups_flat" in model["optimizer"]:
            stored = model["optimizer"]
            state = stored["optimizer_state_dict"]["state"]
            for group, shapes in enumerate(self.flat_order(rank, len(stored["fp32_groups_flat"]))):
                self.slice_group(rank, shapes, {
                    "fp32": [stored["fp32_groups_flat"][group]],
                    "exp_avg": [state[group]["exp_avg"]],
                    "exp_avg_sq": [state[group]["exp_avg_sq"]]})

    def flat_order(self, rank, groups):
        """Names and shapes of nameless flat groups: by the framework's order, on the stage of `rank`."""
        stages = len(self.models) // self.tp
        names = [name for name, tensor_rank in self.weights if tensor_rank == rank % self.tp]
        number = lambda name: int(name.split(".")[0])
        last_transformer = self.first_layer + self.layers - 1
        per_stage = self.layers // stages
        assert per_stage * stages == self.layers, "this script knows even stages only"
        stage = rank // self.tp
        begin = self.first_layer + stage * per_stage if stage else 0
        end = self.first_layer + (stage + 1) * per_stage if stage < stages - 1 else 10**6
        tied = [n for n in names if number(n) == 1] if stage in (0, stages - 1) else []
        own = sorted((n for n in names if begin <= number(n) < end and number(n) != 1), key=number)
        decayed, rest = [], []
        for name in tied + own:
            tensor = self.weights[(name, rank % self.tp)][0]
            is_decayed = tensor.dim() > 1 and not name.endswith(".bias")
            (decayed if is_decayed else rest).append((name, tensor.shape))
        assert last_transformer
        if groups == 3:
            half = len(decayed) // 2
            return [dict(decayed[:half]), dict(decayed[half:]), dict(rest)]
        return [dict(decayed), dict(rest)]

    def slice_group(self, rank, shapes, states):
        for state, parts in states.items():
            flat, position = torch.cat([part.flatten() for part in parts]), 0
            for name, shape in shapes.items():
                numel = torch.Size(shape).numel()
                self.optimizer.setdefault((name, rank % self.tp, state), []).append(
                    flat[position:position + numel].view(shape))
                position += numel

    def by_canonical(self, table):
        result = {}
        for (name, rank, *state), tensors in table.items():
            key = (canonical(name, self.first_layer, self.layers), rank, *state)
            result.setdefault(key, []).extend(tensors)
        return result


def merge(shards, parallel):
    if parallel in ("column", "vocab"):
        return torch.cat(shards, 0)
    if parallel == "row":
        return torch.cat(shards, 1)
    if parallel == "column_swiglu":
        halves = [shard.chunk(2, 0) for shard in shards]
        return torch.cat([h[0] for h in halves] + [h[1] for h in halves], 0)
    return shards[0]


def digest(tensor):
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def expected_states(truth):
    """Yields (canonical name, parallel kind, state, sha256, rows or None)."""
    if isinstance(truth["params"], list):
        for parameter in truth["params"]:
            for state, facts in parameter["states"].items():
                rows = facts["unpadded_shape"][0] if "unpadded_shape" in facts else None
                yield (parameter["canonical"], parameter["parallel"], state,
                       facts.get("unpadded_sha256", facts["sha256"]), rows)
    else:
        for name, parameter in truth["params"].items():
            for state, facts in parameter.get("states", {}).items():
                yield name, "replicated", state, facts["sha256"], None


def main(folder, truth_path):
    sys.meta_path.insert(0, StubFinder())
    with open(truth_path) as file:
        truth = json.load(file)
    checkpoint = Checkpoint(folder)
    weights = checkpoint.by_canonical(checkpoint.weights)
    optimizer = checkpoint.by_canonical(checkpoint.optimizer)
    compared = 0
    for name, parallel, state, sha256, rows in expected_states(truth):
        table = weights if state == "weight" else optimizer
        suffix = () if state == "weight" else (state,)
        shards = [table[(name, rank, *suffix)][0] for rank in range(checkpoint.tp)]
        full = merge(shards, parallel)
        if rows is not None:
            full = full[:rows]
        if digest(full) != sha256:
            print(f"{name} {state}: bytes differ from the truth")
            return 1
        compared += 1
    print(f"{compared} states compared, all equal to the truth")
    return 0 if compared else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
