"""Rebuilds the whole tensors of a step folder with torch.load alone, against a run's truth.json.

  rebuild_with_torch.py STEP_FOLDER TRUTH.json

Knows ZeRO stages 1 and 2 and BF16_Optimizer, of Megatron models with a pipeline or without and of
plain models. Prints the number of states compared. Exit codes: 0 equal, 1 different, 2 nothing
compared, 77 no torch.
"""

import hashlib
import json
import pathlib
import pickle
import re
import sys

try:
    import torch
except ImportError:
    sys.exit(77)


class Opaque:
    """Any object of a framework that is not installed here."""

    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        self.state = state


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split(".")[0] in ("deepspeed", "megatron"):
            return Opaque
        return super().find_class(module, name)


class Pickle:
    Unpickler = Unpickler
    load = staticmethod(pickle.load)


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=Pickle)


ROW = re.compile(r"(dense_4h_to_h|self_attention\.dense)\.weight$")
REPLICATED = re.compile(
    r"(layernorm\.(weight|bias)|position_embeddings\.weight|dense\.bias|dense_4h_to_h\.bias)$"
    r"|^\d+\.(weight|bias)$"
)


def merge(name, parts, gated):
    """Whole tensor from the shards of all tensor ranks."""
    if len(parts) == 1 or REPLICATED.search(name):
        return parts[0]
    if gated:
        halves = [part.chunk(2, 0) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], 0)
    return torch.cat(parts, 1 if ROW.search(name) else 0)


def partitions(folder, model_rank):
    found = {}
    for path in folder.glob(f"*zero_pp_rank_*_mp_rank_{model_rank:02d}_optim_states.pt"):
        found[int(re.search(r"zero_pp_rank_(\d+)", path.name).group(1))] = load(path)[
            "optimizer_state_dict"
        ]
    return [found[rank] for rank in sorted(found)]


def states_of(folder, model_rank, shapes):
    """{name: {state: shard}} of one model-parallel rank."""
    dicts, out = partitions(folder, model_rank), {}
    for group, names in enumerate(shapes):
        flats = {
            "fp32": torch.cat([d["single_partition_of_fp32_groups"][group].detach() for d in dicts])
        }
        for key in ("exp_avg", "exp_avg_sq"):
            bases = [d["base_optimizer_state"] for d in dicts]
            entries = [b[group] if isinstance(b, list) else b["state"][group] for b in bases]
            flats[key] = torch.cat([entry[key] for entry in entries])
        pads = dicts[0].get("param_alignment_paddings", [[0] * len(names)] * len(shapes))[group]
        at = 0
        for (name, shape), pad in zip(names.items(), pads):
            count = torch.Size(shape).numel()
            out[name] = {key: flat[at : at + count].reshape(shape) for key, flat in flats.items()}
            at += count + pad
    return out


def digest(tensor):
    tensor = tensor.contiguous()
    return hashlib.sha256(
        tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    ).hexdigest()


def main():
    folder, truth = pathlib.Path(sys.argv[1]), json.load(open(sys.argv[2]))
    params = truth["params"]
    expected = {p["name"]: p for p in params} if isinstance(params, list) else params
    models = [
        load(folder / f"mp_rank_{rank:02d}_model_states.pt")
        for rank in range(len(list(folder.glob("mp_rank_*"))))
    ]
    args = models[0].get("args")
    tensor_ranks = args.tensor_model_parallel_size if args is not None else 1
    whole = {}
    for stage in range(len(models) // tensor_ranks):
        shards = []
        for rank in range(stage * tensor_ranks, (stage + 1) * tensor_ranks):
            shards.append(states_of(folder, rank, models[rank]["param_shapes"]))
        for name in shards[0]:
            gated = expected[name].get("parallel") == "column_swiglu"
            for state in shards[0][name]:
                merged = merge(name, [shard[name][state] for shard in shards], gated)
                whole.setdefault(
                    (name, state), merged
                )  # the first stage's copy of a tied tensor is the real one
    different = []
    for (name, state), tensor in whole.items():
        truth_state = expected[name]["states"][state]
        shape = truth_state.get("unpadded_shape", truth_state["shape"])
        if tensor.ndim and list(tensor.shape)[:1] != shape[:1]:
            tensor = tensor[: shape[0]]
        if digest(tensor) != truth_state.get("unpadded_sha256", truth_state["sha256"]):
            different.append(f"{name} {state}")
    missing = [
        name
        for name, entry in expected.items()
        if "fp32" in entry.get("states", {}) and (name, "fp32") not in whole
    ]
    print(f"{len(whole)} states compared", *different[:5], *missing[:5])
    sys.exit(2 if not whole else 1 if different or missing else 0)


main()
