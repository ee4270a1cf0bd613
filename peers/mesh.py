"""Places of the ranks of one training run, and the layers that are cut over tensor ranks.

Written for these tests from the definition of each cut, so that files with tensor parallelism come
from a model that really trains that way. Rank order is DeepSpeed's: pipe, data, model.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Mesh:
    """One rank's coordinates and process groups. Also the `mpu` that deepspeed.initialize takes."""

    def __init__(self, rank, topology):
        self.topology = topology
        tensor, data = topology.tensor, topology.data
        self.tensor_rank = rank % tensor
        self.data_rank = rank // tensor % data
        self.stage = rank // (tensor * data)
        self.tensor_group = self.data_group = None
        # Every rank must take part in making every group, in the same order.
        for stage in range(topology.pipeline):
            first = stage * data * tensor
            for data_rank in range(data):
                ranks = [first + data_rank * tensor + t for t in range(tensor)]
                self._join("tensor_group", ranks, rank)
            for tensor_rank in range(tensor):
                ranks = [first + d * tensor + tensor_rank for d in range(data)]
                self._join("data_group", ranks, rank)

    def _join(self, name, ranks, rank):
        group = dist.new_group(ranks)
        if rank in ranks:
            setattr(self, name, group)

    def get_model_parallel_rank(self):
        return self.tensor_rank

    def get_model_parallel_world_size(self):
        return self.topology.tensor

    def get_model_parallel_group(self):
        return self.tensor_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group

    def get_data_parallel_rank(self):
        return self.data_rank

    def get_data_parallel_world_size(self):
        return self.topology.data

    def get_data_parallel_group(self):
        return self.data_group


class _SumBackward(torch.autograd.Function):
    """Identity forward, sum over tensor ranks backward: what enters a column-parallel layer."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumForward(torch.autograd.Function):
    """Sum over tensor ranks forward, identity backward: what leaves a row-parallel layer."""

    @staticmethod
    def forward(ctx, x, group):
        del ctx
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Gather(torch.autograd.Function):
    """Joins the last dimension over tensor ranks; backward keeps this rank's part."""

    @staticmethod
    def forward(ctx, x, mesh):
        ctx.mesh, ctx.width = mesh, x.shape[-1]
        parts = [torch.empty_like(x) for _ in range(mesh.topology.tensor)]
        dist.all_gather(parts, x.contiguous(), group=mesh.tensor_group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        first = ctx.mesh.tensor_rank * ctx.width
        return gradient.narrow(-1, first, ctx.width).contiguous(), None


def enter(x, mesh):
    return _SumBackward.apply(x, mesh.tensor_group) if mesh.topology.tensor > 1 else x


def leave(x, mesh):
    return _SumForward.apply(x, mesh.tensor_group) if mesh.topology.tensor > 1 else x


def gather(x, mesh):
    return _Gather.apply(x, mesh) if mesh.topology.tensor > 1 else x


def cut_parameter(mesh, shape, dimension):
    """A parameter of `shape`, of which this rank holds its part along `dimension` (None: all)."""
    shape = list(shape)
    if dimension is not None:
        if shape[dimension] % mesh.topology.tensor:
            raise ValueError(f"{shape} does not divide over {mesh.topology.tensor} tensor ranks")
        shape[dimension] //= mesh.topology.tensor
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.cut_dimension = dimension
    # The name by which DeepSpeed knows what must not be counted once a tensor rank in a norm.
    parameter.tensor_model_parallel = dimension is not None
    return parameter


class ColumnLinear(nn.Module):
    """y = x W^T + b; outputs, so rows of W and elements of b, are cut."""

    def __init__(self, mesh, inputs, outputs):
        super().__init__()
        self.mesh = mesh
        self.weight = cut_parameter(mesh, (outputs, inputs), 0)
        self.bias = cut_parameter(mesh, (outputs,), 0)

    def forward(self, x):
        return F.linear(enter(x, self.mesh), self.weight, self.bias)


class RowLinear(nn.Module):
    """y = sum over ranks of (x W^T) + b; inputs, so columns of W, are cut; b is replicated."""

    def __init__(self, mesh, inputs, outputs):
        super().__init__()
        self.mesh = mesh
        self.weight = cut_parameter(mesh, (outputs, inputs), 1)
        self.bias = cut_parameter(mesh, (outputs,), None)

    def forward(self, x):
        return leave(F.linear(x, self.weight), self.mesh) + self.bias


class VocabularyEmbedding(nn.Module):
    """Rows of the table are cut; also serves as the tied output layer."""

    def __init__(self, mesh, rows, width):
        super().__init__()
        self.mesh = mesh
        self.weight = cut_parameter(mesh, (rows, width), 0)

    def forward(self, ids):
        here = self.weight.shape[0]
        local = ids - self.mesh.tensor_rank * here
        outside = (local < 0) | (local >= here)
        x = F.embedding(local.masked_fill(outside, 0), self.weight)
        return leave(x.masked_fill(outside.unsqueeze(-1), 0), self.mesh)

    def logits(self, x):
        return gather(F.linear(enter(x, self.mesh), self.weight), self.mesh)
