"""The four tiny models that DeepSpeed trains here. Sizes are awkward on purpose.

  plain     one module: tied head, 3-D convolution, frozen layer, buffers; two groups
  pipeline  PipelineModule with a tied embedding on the first and the last stage
  tensor    one module, column, row and vocabulary parallel; names of its own, so a rules file
  megatron  PipelineModule with a tensor axis and Megatron-DeepSpeed's names: the built-in rules
"""

import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F

from mesh import ColumnLinear, RowLinear, VocabularyEmbedding, cut_parameter

VOCABULARY = 37
POSITIONS = 5
GLOBAL_BATCH = 12  # divides by 1, 2, 3, 4 data ranks

TENSOR_HEADS, TENSOR_HIDDEN, TENSOR_INNER, TENSOR_LAYERS = 4, 16, 24, 4
VOCABULARY_DIVISOR = 10  # 37 rows become 40 at one and at two and at four tensor ranks


def batch(step):
    """The global batch of a step: the same on every topology."""
    generator = torch.Generator().manual_seed(7000 + step)
    ids = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, POSITIONS), generator=generator)
    targets = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, POSITIONS), generator=generator)
    return ids, targets


def token_loss(logits, targets):
    return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1))


def vocabulary(run):
    """What the checkpoint calls the vocabulary; all rows of the table without padding."""
    return VOCABULARY if run.padded else padded_rows(run.tensor)


def padded_rows(tensor):
    """Rows of a vocabulary tensor (docs/format/megatron.md, section 5)."""
    multiple = VOCABULARY_DIVISOR * tensor
    return -(-VOCABULARY // multiple) * multiple


class Plain(nn.Module):
    def __init__(self, with_frozen, with_scalar):
        super().__init__()
        width = 13
        self.embed = nn.Embedding(VOCABULARY, width)
        self.scale = nn.Parameter(torch.ones(() if with_scalar else 1))
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 211)
        self.down = nn.Linear(211, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = None
        if with_frozen:
            self.frozen = nn.Linear(width, width)
            self.frozen.requires_grad_(False)
            self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
            self.register_buffer("shift", torch.linspace(-0.1, 0.3, width))

    def forward(self, ids, targets):
        x = self.embed(ids) * self.scale
        if self.frozen is not None:
            self.seen += 1
            x = x + torch.tanh(self.frozen(x)) + self.shift.to(x.dtype)
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return token_loss(self.head(x), targets)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(VOCABULARY, 13))

    def forward(self, ids):
        return F.embedding(ids, self.weight)


def table_head(table, x):
    return F.linear(x, table.weight)


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm = nn.LayerNorm(13)
        self.up = nn.Linear(13, inner)
        self.down = nn.Linear(inner, 13)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Rows of query_key_value are per head: its query, its key, its value (per-head-group).

    Sigmoid in place of softmax: a softmax does not see the bias of the keys, so its gradient would
    be rounding noise alone, and Adam would make whole steps of it: no two runs could be compared.
    """

    def __init__(self, mesh):
        super().__init__()
        self.query_key_value = ColumnLinear(mesh, TENSOR_HIDDEN, 3 * TENSOR_HIDDEN)
        self.dense = RowLinear(mesh, TENSOR_HIDDEN, TENSOR_HIDDEN)
        self.heads = TENSOR_HEADS // mesh.topology.tensor

    def forward(self, x):
        rows = self.query_key_value(x)
        rows = rows.view(*rows.shape[:2], self.heads, 3, TENSOR_HIDDEN // TENSOR_HEADS)
        query, key, value = (rows[:, :, :, i].transpose(1, 2) for i in range(3))
        scores = query @ key.transpose(2, 3) / (TENSOR_HIDDEN // TENSOR_HEADS) ** 0.5
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = torch.sigmoid(scores).masked_fill(hidden, 0) @ value
        return self.dense(y.transpose(1, 2).reshape(*x.shape[:2], -1))


class Inner(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.dense_h_to_4h = ColumnLinear(mesh, TENSOR_HIDDEN, TENSOR_INNER)
        self.dense_4h_to_h = RowLinear(mesh, TENSOR_INNER, TENSOR_HIDDEN)

    def forward(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))


class TransformerLayer(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(TENSOR_HIDDEN)
        self.self_attention = Attention(mesh)
        self.post_attention_layernorm = nn.LayerNorm(TENSOR_HIDDEN)
        self.mlp = Inner(mesh)

    def forward(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class MegatronEmbedding(nn.Module):
    """Its second copy, on the last stage, has position embeddings that are never used."""

    def __init__(self, mesh):
        super().__init__()
        self.word_embeddings = VocabularyEmbedding(
            mesh, padded_rows(mesh.topology.tensor), TENSOR_HIDDEN)
        self.position_embeddings = nn.Embedding(POSITIONS, TENSOR_HIDDEN)

    def forward(self, ids):
        return self.word_embeddings(ids) + self.position_embeddings.weight[: ids.shape[1]]


def megatron_head(embedding, x):
    return embedding.word_embeddings.logits(x)


def cast(x):
    """Stands where Megatron's list of layers has its casts: a layer without a file."""
    return x


class Tensor(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.table = VocabularyEmbedding(mesh, padded_rows(mesh.topology.tensor), TENSOR_HIDDEN)
        self.blocks = nn.ModuleList(TensorBlock(mesh) for _ in range(2))
        self.norm = nn.LayerNorm(TENSOR_HIDDEN)

    def forward(self, ids, targets):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return token_loss(self.table.logits(self.norm(x)), targets)


class TensorBlock(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.norm = nn.LayerNorm(TENSOR_HIDDEN)
        self.gain = cut_parameter(mesh, (TENSOR_HIDDEN,), None)
        self.up = ColumnLinear(mesh, TENSOR_HIDDEN, TENSOR_INNER)
        self.down = RowLinear(mesh, TENSOR_INNER, TENSOR_HIDDEN)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x) * self.gain)))


# Rules for `tensor` (docs/format/rules.md): its names are known to nobody.
TENSOR_RULES = {
    "name": "peers-tensor",
    "parameters": [
        {"canonical": "table\\.weight", "parallel": "vocabulary"},
        {"canonical": "blocks\\.\\d+\\.up\\.(weight|bias)", "parallel": "column"},
        {"canonical": "blocks\\.\\d+\\.down\\.weight", "parallel": "row"},
        {"canonical": "(blocks\\.\\d+\\.)?(norm\\.(weight|bias)|gain|down\\.bias)",
         "parallel": "replicated"},
    ],
}


# The same for DeepSpeed's converter and loader (docs/format/universal.md, section 3).
PATTERNS = {
    "tensor": {
        "vocabulary_parameter_patterns": [r"table.weight"],
        "tp_replicated_parameter_patterns": [
            r"(blocks.\d+.)?norm.(weight|bias)$", r"blocks.\d+.gain$",
            r"blocks.\d+.down.bias$"],
        "parameter_with_row_parallelism_patterns": [r"blocks.\d+.down.weight$"],
    },
    "megatron": {
        "vocabulary_parameter_patterns": [r"tied_modules.embed.word_embeddings.weight"],
        "pipeline_replicated_parameter_patterns": [
            r"tied_modules.embed.word_embeddings.weight",
            r"tied_modules.embed.position_embeddings.weight"],
        "tp_replicated_parameter_patterns": [
            r"tied_modules.embed.position_embeddings.weight", r"\d+.input_layernorm.(weight|bias)",
            r"\d+.post_attention_layernorm.(weight|bias)", r"\d+.self_attention.dense.bias",
            r"\d+.mlp.dense_4h_to_h.bias", r"\d+.(weight|bias)$"],
        "parameter_with_row_parallelism_patterns": [
            r"\d+.mlp.dense_4h_to_h.weight", r"\d+.self_attention.dense.weight"],
        "parameter_with_2_sub_params_cat_dim_0": [],
    },
}

# A pipeline of one stage does not say in its files which layers share a parameter.
PIPELINE_RULES = {
    "name": "peers-pipeline",
    "parameters": [{"canonical": ".*", "parallel": "replicated"}],
    "tied": [{"canonical": "tied_modules\\.embed\\.weight", "layers": [0, 5]}],
}


def pipeline_layers(mesh):
    from deepspeed.pipe import LayerSpec, TiedLayerSpec
    del mesh
    tied = {"tied_weight_attr": "weight"}
    return [TiedLayerSpec("embed", Table, **tied),
            *(LayerSpec(Block, inner) for inner in (29, 31, 53, 7)),
            TiedLayerSpec("embed", Table, forward_fn=table_head, **tied)]


def megatron_layers(mesh):
    from deepspeed.pipe import LayerSpec, TiedLayerSpec
    tied = {"tied_weight_attr": "word_embeddings.weight"}
    return [cast, TiedLayerSpec("embed", MegatronEmbedding, mesh, **tied),
            *(LayerSpec(TransformerLayer, mesh) for _ in range(TENSOR_LAYERS)),
            LayerSpec(nn.LayerNorm, TENSOR_HIDDEN),
            TiedLayerSpec("embed", MegatronEmbedding, mesh, forward_fn=megatron_head, **tied), cast]


class Unsharded(nn.Module):
    """The megatron model in one process without DeepSpeed; same names, same arithmetic."""

    def __init__(self, mesh):
        super().__init__()
        self.tied_modules = nn.ModuleDict({"embed": MegatronEmbedding(mesh)})
        for i in range(TENSOR_LAYERS):
            self.add_module(str(2 + i), TransformerLayer(mesh))
        self.add_module(str(2 + TENSOR_LAYERS), nn.LayerNorm(TENSOR_HIDDEN))

    def forward(self, ids, targets):
        x = self.tied_modules["embed"](ids)
        for i in range(TENSOR_LAYERS + 1):
            x = getattr(self, str(2 + i))(x)
        return token_loss(megatron_head(self.tied_modules["embed"], x), targets)


def build(run, mesh, seed):
    """The model of a run with random values that depend on the seed, a name and an index only."""
    if run.model == "plain":
        model = Plain(run.frozen, run.scalar)
    elif run.model == "tensor":
        model = Tensor(mesh)
    else:
        model = _pipeline(run, mesh)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fill(parameter, mesh, f"{seed}/{name}")
    return model


def _pipeline(run, mesh):
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    if run.model == "megatron":
        layers, method = megatron_layers(mesh), "type:transformerlayer"
        place = {"topology": PipeModelDataParallelTopology(
            num_pp=run.pipeline, num_mp=run.tensor, num_dp=run.data)}
    else:
        layers, method = pipeline_layers(mesh), "uniform"
        place = {"num_stages": run.pipeline}
    return PipelineModule(layers=layers, loss_fn=token_loss, partition_method=method,
                          activation_checkpoint_interval=0, **place)


def fill(parameter, mesh, key):
    """Fills this rank's part of a whole tensor that is the same on every topology."""
    dimension = getattr(parameter, "cut_dimension", None)
    shape = list(parameter.shape)
    if dimension is not None:
        shape[dimension] *= mesh.topology.tensor
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    values = torch.randn(shape, generator=generator)
    is_gain = key.endswith(("norm.weight", "gain", "scale", f"/{TENSOR_LAYERS + 2}.weight"))
    values = 1 + 0.05 * values if is_gain else 0.15 * values
    if dimension is not None:
        part = parameter.shape[dimension]
        values = values.narrow(dimension, mesh.tensor_rank * part, part)
    parameter.copy_(values)


def parameter_groups(model):
    """Two groups, as Megatron makes them: what has two dimensions or more is decayed."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_other = parameter.ndim < 2 or name.endswith(".bias")
            (others if is_other else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
