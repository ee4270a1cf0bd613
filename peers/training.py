"""One training run with the real DeepSpeed, on forked ranks over gloo.

The parent imports DeepSpeed once; ranks are forked from it, so that each run has processes of its
own (DeepSpeed keeps its process groups in globals) and none pays for the import again.
"""

import dataclasses
import multiprocessing
import os
import socket
import sys
import time
import traceback

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import deepspeed  # noqa: E402  (the environment must be set before)
import deepspeed.pipe  # noqa: E402
# Each rank would import these two anew, for seconds, when it makes its optimizer.
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402

import models  # noqa: E402
import states  # noqa: E402
from mesh import Mesh  # noqa: E402

LEARNING_RATE, BETAS, EPSILON = 3e-3, (0.9, 0.95), 1e-8
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LOSS_SCALE_POWER = 8


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run is: model, topology, ZeRO stage, type and the settings that files depend on."""

    model: str = "plain"
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    stage: int = 1
    dtype: str = "bf16"
    fused: bool = False  # DeepSpeed's FusedAdam in place of torch's
    gradients_fp32: bool = False  # bf16 stage 1 with it: BF16_Optimizer
    frozen: bool = True  # `plain` has a frozen layer and buffers
    padded: bool = True  # the table of `tensor` and `megatron` has rows beyond the vocabulary
    clip: float = 0.0
    elastic: bool = False
    round_robin: bool = False
    scalar: bool = False  # `plain` has a parameter without dimensions

    @property
    def world(self):
        return self.tensor * self.pipeline * self.data

    @property
    def is_partitioned(self):
        """Whether there are optimizer files: bf16 pipelines have them without ZeRO too."""
        is_pipeline = self.model in ("pipeline", "megatron")
        return self.stage > 0 or (self.dtype == "bf16" and is_pipeline)

    def __str__(self):
        extra = "".join(word for word, on in (
            (" fused", self.fused), (" fp32 gradients", self.gradients_fp32),
            (" no padding", self.model in ("tensor", "megatron") and not self.padded),
            (f" clip {self.clip}", self.clip), (" elastic", self.elastic),
            (" round robin", self.round_robin),
            (" 0-d parameter", self.scalar),
            (" nothing frozen", self.model == "plain" and not self.frozen)) if on)
        return (f"{self.model} TP{self.tensor} PP{self.pipeline} DP{self.data} "
                f"ZeRO-{self.stage} {self.dtype}{extra}")


@dataclasses.dataclass(frozen=True)
class Order:
    """What the ranks are to do: load, train, save, report, train on."""

    seed: int
    load: str = ""
    universal: bool = False
    before: int = 0  # steps before the states are reported and saved
    save: str = ""
    after: int = 0  # steps after it
    first_batch: int = 0


@dataclasses.dataclass
class Report:
    losses: list  # one a step: mean over data ranks
    at_save: dict  # whole tensors when `before` steps were done
    buffers: dict
    at_end: dict  # whole tensors after all steps
    learning_rate: float
    loss_scale: float
    global_steps: int
    seconds: float


def config(run):
    """DeepSpeed's configuration of a run."""
    micro = models.GLOBAL_BATCH // run.data
    optimizer = {"lr": LEARNING_RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": 0.1}
    if not run.fused:
        optimizer["torch_adam"] = True
    found = {
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": optimizer},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_min_lr": 0, "warmup_max_lr": LEARNING_RATE, "warmup_num_steps": 5}},
        "gradient_clipping": run.clip, "steps_per_print": 10**9,
        "zero_optimization": {"stage": run.stage, "reduce_bucket_size": 5000,
                              "allgather_bucket_size": 5000},
    }
    if run.elastic:
        found["zero_optimization"]["elastic_checkpoint"] = True
    if run.round_robin:
        found["zero_optimization"]["round_robin_gradients"] = True
    if run.dtype == "bf16":
        found["bf16"] = {"enabled": True}
        if run.gradients_fp32:
            found["data_types"] = {"grad_accum_dtype": "fp32"}
    if run.dtype == "fp16":
        found["fp16"] = {"enabled": True, "initial_scale_power": LOSS_SCALE_POWER, "hysteresis": 1}
    return found


def client_state(run, steps):
    """What Megatron-DeepSpeed adds to each model file, as far as a reshape needs it."""
    if run.model not in ("megatron", "tensor"):
        return {"iteration": steps}
    info = {"universal_checkpoint_version": 0.2, "original_vocab_size": models.vocabulary(run),
            "padded_vocab_size": models.padded_rows(run.tensor), **models.PATTERNS[run.model]}
    extra = {"args": arguments(run)} if run.model == "megatron" else {}
    return {"iteration": steps, "universal_checkpoint_info": info, **extra}


def arguments(run):
    import argparse
    return argparse.Namespace(
        tensor_model_parallel_size=run.tensor, pipeline_model_parallel_size=run.pipeline,
        data_parallel_size=run.data, world_size=run.world, num_layers=models.TENSOR_LAYERS,
        hidden_size=models.TENSOR_HIDDEN, ffn_hidden_size=models.TENSOR_INNER,
        num_attention_heads=models.TENSOR_HEADS, padded_vocab_size=models.padded_rows(run.tensor),
        make_vocab_size_divisible_by=models.VOCABULARY_DIVISOR, swiglu=False,
        consumed_train_samples=0)


def _patch_for_cpu():
    """Says that the CPU can do fp16 (it can), and spares a compiler run for a shared-memory kernel
    that only speeds up collectives. Loading, saving and stepping stay as they are."""
    accelerator = type(get_accelerator())
    accelerator.is_fp16_supported = lambda self: True
    accelerator.supported_dtypes = lambda self: list(TYPES.values())
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def _engine(run, mesh, order):
    model = models.build(run, mesh, order.seed)
    settings = config(run)
    if order.universal:
        settings["checkpoint"] = {"load_universal": True}
    extra = {"mpu": mesh} if run.model == "tensor" else {}
    engine, *_ = deepspeed.initialize(model=model, config=settings,
                                      model_parameters=models.parameter_groups(model), **extra)
    return engine


def _train_step(engine, run, mesh, step):
    ids, targets = models.batch(step)
    micro = models.GLOBAL_BATCH // run.data
    part = slice(mesh.data_rank * micro, (mesh.data_rank + 1) * micro)
    ids, targets = ids[part], targets[part]
    if run.model in ("pipeline", "megatron"):
        return float(engine.train_batch(data_iter=iter([(ids, targets)])))
    loss = engine(ids, targets)
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def _rank(rank, run, order, port, sender):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(run.world),
                      LOCAL_SIZE=str(run.world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    _patch_for_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    mesh = Mesh(rank, run)
    engine = _engine(run, mesh, order)
    if order.load:
        path, _ = engine.load_checkpoint(order.load)
        if path is None:
            raise RuntimeError(f"DeepSpeed found no checkpoint in {order.load}")
    first = order.first_batch
    losses = [_train_step(engine, run, mesh, first + i) for i in range(order.before)]
    at_save = states.collect(engine, mesh)
    if order.save:
        engine.save_checkpoint(order.save, client_state=client_state(run, engine.global_steps))
    first += order.before
    losses += [_train_step(engine, run, mesh, first + i) for i in range(order.after)]
    # Pickled by value: tensors in shared memory would die with this process.
    sender.send_bytes(_pack({"losses": losses, "at_save": at_save,
                             "at_end": states.collect(engine, mesh)}))


def _pack(value):
    import io
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(raw):
    import io
    return torch.load(io.BytesIO(raw), weights_only=False)


def _child(rank, run, order, port, sender, log):
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 1
    try:
        _rank(rank, run, order, port, sender)
        code = 0
    except BaseException:  # the parent prints it; a rank must not die in silence
        sender.send_bytes(_pack({"error": traceback.format_exc()}))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sender.close()
        os._exit(code)  # no destructors of process groups that others may have left


class Failure(Exception):
    """DeepSpeed did not do it; the text is the traceback of the first rank that failed."""


def load_fused_optimizer():
    """DeepSpeed's FusedAdam is compiled on first use; forked ranks then find it loaded, and none
    waits for another one's compiler."""
    from deepspeed.ops.op_builder.cpu import FusedAdamBuilder
    FusedAdamBuilder().load(verbose=False)


def perform(run, order, log, seconds_max=120):
    """Starts the ranks of a run, has them do `order`, returns a Report. Raises Failure."""
    if run.fused:
        load_fused_optimizer()
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    port = _free_port()
    processes, receivers = [], []
    for rank in range(run.world):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(rank, run, order, port, sender, log))
        process.start()
        sender.close()
        processes.append(process)
        receivers.append(receiver)
    answers = _answers(receivers, began + seconds_max)
    for process in processes:
        process.join(timeout=1 if any("error" in a for a in answers) else 20)
        if process.is_alive():
            process.kill()
            process.join()
    errors = [answer["error"] for answer in answers if "error" in answer]
    if errors:
        raise Failure(max(errors, key=lambda text: "Error" in text.splitlines()[-1]))
    at_save, buffers = states.join([answer["at_save"] for answer in answers])
    at_end, _ = states.join([answer["at_end"] for answer in answers])
    steps = len(answers[0]["losses"])
    losses = [sum(answer["losses"][i] for answer in answers) / run.world for i in range(steps)]
    first = answers[0]["at_save"]
    return Report(losses, at_save, buffers, at_end, first["learning_rate"], first["loss_scale"],
                  first["global_steps"], time.monotonic() - began)


def _answers(receivers, deadline):
    """One answer a rank. After the first error the others get seconds: they wait for it in vain."""
    from multiprocessing.connection import wait
    answers = [{"error": "no answer in time"} for _ in receivers]
    waiting = dict(zip(receivers, range(len(receivers))))
    while waiting and time.monotonic() < deadline:
        for receiver in wait(list(waiting), timeout=0.2):
            index = waiting.pop(receiver)
            try:
                answers[index] = _unpack(receiver.recv_bytes())
            except EOFError:
                answers[index] = {"error": f"rank {index} died without a word"}
            if "error" in answers[index]:
                deadline = min(deadline, time.monotonic() + 3)
    return answers


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
