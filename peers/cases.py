"""Which reshapes are shown to DeepSpeed: source, target, and what must come out.

EXACT    the arithmetic after the reshape is that of the run which was never stopped: same data
         parallel size and tensor parallel size; losses and masters are equal to the last bit
BOUND    sums are made in another order: within the bound that judge.bound gives before the run
"""

import dataclasses

from training import Run

EXACT, BOUND = "exact", "bound"


@dataclasses.dataclass(frozen=True)
class Case:
    source: Run
    target: Run
    expectation: str
    universal: bool = False  # target is a universal folder, loaded with load_universal
    through_universal: bool = False  # native to universal to native, both by shardproof
    flags: tuple = ()
    quick: bool = False


def change(run, **values):
    return dataclasses.replace(run, **values)


def _plain():
    bf16, fp16, fp32 = (Run(data=2, dtype=dtype) for dtype in ("bf16", "fp16", "fp32"))
    wide = Run(data=2, gradients_fp32=True)
    bare = change(bf16, frozen=False)
    return [
        Case(bf16, change(bf16, stage=2), EXACT, quick=True),
        Case(change(fp16, stage=2), fp16, EXACT, quick=True),
        Case(fp32, change(fp32, stage=2), EXACT),
        Case(change(fp32, stage=2), change(fp32, stage=0), EXACT),
        Case(change(fp32, stage=0), fp32, EXACT, quick=True),
        Case(change(bf16, stage=0), bf16, EXACT),
        Case(change(bf16, stage=2), change(bf16, stage=0), EXACT),
        Case(wide, wide, EXACT),
        Case(bare, bare, EXACT, universal=True, quick=True),
        Case(change(bare, stage=0), change(bare, stage=2), EXACT, universal=True),
        Case(bf16, change(bf16, stage=2), EXACT, through_universal=True),
        # The slice maps in the source are wrong, and the target must not be (optimizer.md).
        Case(change(bf16, round_robin=True), change(bf16, round_robin=True, stage=2), EXACT),
        Case(change(bf16, round_robin=True, data=3), change(bf16, round_robin=True), BOUND),
        Case(bf16, change(bf16, data=3), BOUND, quick=True),
        Case(change(bf16, data=4, stage=2), change(bf16, data=1), BOUND),
        Case(change(fp16, data=3), change(fp16, data=2, stage=2), BOUND),
        Case(fp16, change(fp16, data=4), BOUND),
        Case(fp32, change(fp32, data=4, stage=2), BOUND),
        Case(change(fp32, stage=0, data=1), change(fp32, data=3), BOUND),
        Case(change(bf16, stage=0), change(bf16, data=4, stage=2), BOUND),
        Case(wide, change(wide, data=3), BOUND),
        Case(change(bf16, clip=1.0), change(bf16, clip=1.0, data=3, stage=2), BOUND),
        Case(bare, change(bare, data=3), BOUND, universal=True),
    ]


def _pipeline():
    bf16 = Run(model="pipeline", pipeline=2, data=2)
    fp16, fp32 = change(bf16, dtype="fp16"), change(bf16, dtype="fp32")
    return [
        Case(bf16, change(bf16, pipeline=1), EXACT, quick=True),
        Case(change(bf16, pipeline=1), bf16, EXACT),
        Case(fp16, change(fp16, pipeline=1), EXACT),
        Case(change(fp16, data=1), change(fp16, pipeline=3, data=1), EXACT),
        # Without ZeRO and with one stage no file says which layers are tied: no such target.
        Case(change(fp16, stage=0), change(fp16, stage=0, pipeline=3), EXACT, quick=True),
        Case(change(fp32, stage=0), change(fp32, pipeline=1), EXACT),
        Case(change(fp32, data=1), change(fp32, data=1, stage=0, pipeline=3), EXACT),
        Case(bf16, change(bf16, pipeline=1), EXACT, universal=True),
        Case(bf16, change(bf16, pipeline=3, data=1), BOUND),
        Case(change(bf16, pipeline=3, data=1), bf16, BOUND, through_universal=True),
    ]


def _tensor():
    plain = Run(model="tensor", tensor=2, data=2)
    megatron = Run(model="megatron", tensor=2, pipeline=2)
    fp16 = change(megatron, dtype="fp16")
    return [
        Case(plain, change(plain, stage=2), EXACT, quick=True),
        Case(plain, change(plain, tensor=1), BOUND, quick=True),
        Case(change(plain, tensor=1, dtype="fp16"), change(plain, dtype="fp16"), BOUND),
        Case(change(plain, tensor=1, stage=2), change(plain, tensor=4, data=1), BOUND),
        Case(change(plain, dtype="fp32", stage=0), change(plain, dtype="fp32", tensor=1), BOUND),
        Case(change(plain, padded=False), change(plain, tensor=1, padded=False), BOUND,
             universal=True),
        Case(megatron, change(megatron, pipeline=1), EXACT),
        Case(fp16, change(fp16, pipeline=4, stage=1, tensor=1), BOUND),
        Case(megatron, change(megatron, tensor=1, data=2), BOUND, quick=True),
        Case(change(megatron, tensor=1), megatron, BOUND),
        Case(change(megatron, tensor=4, pipeline=1), change(megatron, data=2, tensor=1), BOUND),
        Case(change(megatron, padded=False), change(megatron, tensor=1, padded=False), BOUND,
             universal=True),
        Case(change(megatron, dtype="fp32"), change(megatron, dtype="fp32", tensor=1, data=2),
             BOUND),
    ]


SUITES = {"plain": _plain, "pipeline": _pipeline, "tensor": _tensor}
