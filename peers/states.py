"""Whole logical tensors out of the memory of DeepSpeed's running ranks, never out of files.

Each rank reports the elements it holds; the parent joins them: partitions over data ranks, each
element exactly once; shards over tensor ranks; of tied copies on two stages the first stage's.
"""

import torch
import torch.distributed as dist

STATES = ("fp32_master", "exp_avg", "exp_avg_sq")


def collect(engine, mesh):
    """What this rank holds: coordinates, weights, buffers, pieces of optimizer states."""
    module = engine.module
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    weights = {name: {"cut": getattr(parameter, "cut_dimension", None),
                      "value": parameter.detach().float().clone()}
               for name, parameter in module.named_parameters()}
    pieces = [dict(piece, name=names[id(parameter)])
              for parameter, piece in _pieces(engine.optimizer) if piece["fp32_master"].numel()]
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}
    return {"stage": mesh.stage, "data_rank": mesh.data_rank, "tensor_rank": mesh.tensor_rank,
            "weights": weights, "pieces": pieces, "buffers": buffers,
            "global_steps": engine.global_steps, "learning_rate": engine.get_lr()[0],
            "loss_scale": float(getattr(engine.optimizer, "cur_scale", 0) or 0)}


def _pieces(optimizer):
    kind = type(optimizer).__name__
    if kind in ("DeepSpeedZeroOptimizer", "BF16_Optimizer"):
        return _partitions(optimizer, is_bf16=kind == "BF16_Optimizer")
    if kind == "FP16_Optimizer":
        return _flat_groups(optimizer)
    if kind == "FP16_UnfusedOptimizer":
        return [(parameter, _piece(optimizer.optimizer.state.get(master, {}), master, 0, None))
                for group, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups)
                for parameter, master in zip(group, masters)]
    return [(parameter, _piece(optimizer.state.get(parameter, {}), parameter, 0, None))
            for group in optimizer.param_groups for parameter in group["params"]]


def _piece(state, master, start, span):
    """`span` cuts the flat tensors of a group; None takes all of a parameter's own tensors."""
    def cut(tensor):
        flat = tensor.detach().reshape(-1)
        return (flat if span is None else flat[span[0]:span[1]]).float().clone()
    piece = {"start": start, "fp32_master": cut(master), "step": float(state.get("step", -1))}
    for name in ("exp_avg", "exp_avg_sq"):
        piece[name] = cut(state.get(name, torch.zeros_like(master)))
    return piece


def _flat_groups(optimizer):
    found = []
    for parameters, flat in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat):
        begin = 0
        for parameter in parameters:
            span = (begin, begin + parameter.numel())
            found.append((parameter, _piece(optimizer.optimizer.state[flat], flat, 0, span)))
            begin = span[1]
    return found


def _partitions(optimizer, is_bf16):
    """This rank's part of each flat group; order and starts as the optimizer has them live."""
    found = []
    for index, group in enumerate(optimizer.real_dp_process_group):
        if is_bf16:
            master = optimizer.fp32_groups_flat_partition[index]
            parameters = optimizer.bf16_groups[index]
        else:
            master = optimizer.single_partition_of_fp32_groups[index]
            parameters = optimizer.round_robin_bit16_groups[index]
        lowest = dist.get_rank(group) * master.numel()
        begin = 0
        for parameter in parameters:
            low = max(begin, lowest)
            high = min(begin + parameter.numel(), lowest + master.numel())
            if low < high:
                span = (low - lowest, high - lowest)
                state = optimizer.optimizer.state.get(master, {})
                found.append((parameter, _piece(state, master, low - begin, span)))
            begin += parameter.numel()
    return found


def join(ranks):
    """Whole tensors: name -> {"weight", "fp32_master", "exp_avg", "exp_avg_sq", "step"}."""
    tensors = {}
    for stage in sorted({rank["stage"] for rank in ranks}):
        shards = {}
        for rank in ranks:
            if rank["stage"] == stage:
                shards.setdefault(rank["tensor_rank"], []).append(rank)
        joined = [_join_data(shards[tensor_rank]) for tensor_rank in sorted(shards)]
        for name, (cut, first) in joined[0].items():
            if name not in tensors:
                tensors[name] = {
                    key: _join_tensor(cut, [shard[name][1][key] for shard in joined])
                    if torch.is_tensor(value) else value for key, value in first.items()}
    buffers = {}
    for rank in ranks:
        for name, value in rank["buffers"].items():
            buffers.setdefault(name, value)
    return tensors, buffers


def _join_tensor(cut, shards):
    if cut is None:
        for shard in shards[1:]:
            if not torch.equal(shard, shards[0]):
                raise ValueError("the copies of a replicated parameter differ over tensor ranks")
        return shards[0]
    return torch.cat(shards, dim=cut)


def _join_data(ranks):
    ranks = sorted(ranks, key=lambda rank: rank["data_rank"])
    found = {}
    for name, weight in ranks[0]["weights"].items():
        pieces = [piece for rank in ranks for piece in rank["pieces"] if piece["name"] == name]
        found[name] = (weight["cut"], _join_pieces(name, weight["value"], pieces))
    return found


def _join_pieces(name, weight, pieces):
    whole = {"weight": weight}
    if not pieces:
        return whole  # frozen
    numel = weight.numel()
    if all(piece["fp32_master"].numel() == numel for piece in pieces):
        pieces = pieces[:1]  # without ZeRO every data rank holds all of it
    pieces = sorted(pieces, key=lambda piece: piece["start"])
    end = 0
    for piece in pieces:
        if piece["start"] != end:
            raise ValueError(f"{name}: elements {end} to {piece['start']} are held twice or never")
        end += piece["fp32_master"].numel()
    if end != numel:
        raise ValueError(f"{name}: {end} of {numel} elements are held")
    if len({piece["step"] for piece in pieces}) != 1:
        raise ValueError(f"{name}: ranks disagree on the step")
    for state in STATES:
        whole[state] = torch.cat([piece[state] for piece in pieces]).reshape(weight.shape)
    whole["step"] = pieces[0]["step"]
    return whole
