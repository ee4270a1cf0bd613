"""The first story with the real framework: TP=4 PP=4 fp16 without ZeRO goes on with ZeRO-1.

Directly: the reshaped target is loaded, bit for bit, and trained on. By the other known way: one
step is trained with ZeRO-1 from our target, DeepSpeed saves it, those ZeRO files are reshaped again
and certified. That one step is accounted for twice, without DeepSpeed: a plain unsharded model
computes the same gradient within a bound printed before, and an unsharded Adam step with the
gradient that DeepSpeed's first moments hold gives DeepSpeed's second moments and masters.
"""

import dataclasses
import math

import torch

import judge
import models
from cases import change
from training import BETAS, EPSILON, LOSS_SCALE_POWER, Run
from workshop import STEPS_BEFORE

SOURCE = Run(model="megatron", tensor=4, pipeline=4, stage=0, dtype="fp16", fused=True)
TARGET = change(SOURCE, tensor=2, pipeline=2, data=2, stage=1)
AGAIN = change(TARGET, tensor=1, data=3)
QUICK_SOURCE = change(SOURCE, tensor=2, pipeline=2)

# Rounding of an fp32 Adam step: about ten operations on each element.
STEP_BOUND = 16 * 2.0**-24
# Rounding of the fp16 gradient through this model, relative to the whole gradient; both round.
GRADIENT_BOUND = 2 * judge.TENSOR_SUMS * judge.ROUNDOFF["fp16"]


@dataclasses.dataclass(frozen=True)
class _OneRank:
    """A mesh without process groups: the layers then cut nothing and sum nothing."""

    topology: Run = Run(model="megatron")
    tensor_rank: int = 0


def _unsharded_gradients(tensors):
    """Gradients of the batch after the save, in plain torch; the loss is scaled as fp16 needs."""
    model = models.Unsharded(_OneRank())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name]["weight"])
    model.half()
    scale = float(2**LOSS_SCALE_POWER)
    loss = model(*models.batch(STEPS_BEFORE))
    (loss * scale).backward()
    return float(loss.detach()), {name: parameter.grad.float() / scale
                                  for name, parameter in model.named_parameters()}


def _relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _adam(before, gradient, learning_rate, decay):
    """One step of AdamW on a whole tensor, in double: (fp32_master, exp_avg_sq)."""
    step = before["step"] + 1
    first = before["exp_avg"].double() * BETAS[0] + (1 - BETAS[0]) * gradient
    second = before["exp_avg_sq"].double() * BETAS[1] + (1 - BETAS[1]) * gradient**2
    denominator = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
    master = before["fp32_master"].double() * (1 - learning_rate * decay)
    return master - learning_rate * first / (1 - BETAS[0] ** step) / denominator, second


def _decay_of(name, shape):
    return 0.0 if len(shape) < 2 or name.endswith(".bias") else 0.1


def account_for_step(before, after, learning_rate):
    """Prints and judges the one step from `before` to `after` (whole tensors). True if it holds."""
    loss, gradients = _unsharded_gradients(before)
    print(f"one step, by an unsharded Adam step in plain torch (loss {loss:.6f}):\n"
          f"  bound: gradient {GRADIENT_BOUND:.2e} of its norm, second moments and masters "
          f"{STEP_BOUND:.2e} of theirs")
    worst = {"exp_avg_sq": 0.0, "fp32_master": 0.0}
    distance, norm = 0.0, 0.0
    for name, states in sorted(before.items()):
        found = after[name]
        if found["step"] != states["step"] + 1:
            print(f"  {name}: step {states['step']} became {found['step']}")
            return False
        gradient = (found["exp_avg"].double() - BETAS[0] * states["exp_avg"].double()) / (
            1 - BETAS[0])
        distance += float(((gradient - gradients[name].double()) ** 2).sum())
        norm += float((gradients[name].double() ** 2).sum())
        decay = _decay_of(name, states["weight"].shape)
        master, second = _adam(states, gradient, learning_rate, decay)
        worst["fp32_master"] = max(worst["fp32_master"], _relative(found["fp32_master"], master))
        worst["exp_avg_sq"] = max(worst["exp_avg_sq"], _relative(found["exp_avg_sq"], second))
    gradient_error = math.sqrt(distance / norm)
    print(f"  gradient {gradient_error:.2e}, second moments {worst['exp_avg_sq']:.2e}, masters "
          f"{worst['fp32_master']:.2e}; {len(before)} parameters")
    return gradient_error <= GRADIENT_BOUND and max(worst.values()) <= STEP_BOUND


def _direct(shop, source, table):
    """Our target, loaded and trained on; the moments as they are, then rescaled."""
    folders = {}
    for moments in ("as-is", "rescale"):
        folders[moments] = shop.place(f"target-{moments}")
        shop.shardproof.reshape(source.folder, folders[moments], TARGET, source_run=source.run,
                                extra=["--moments", moments])
        resumed = shop.resume(TARGET, folders[moments])
        found = judge.compare(source.report, resumed, STEPS_BEFORE)
        if moments == "as-is":
            is_good = not found.loaded
            verdict = "loaded bit for bit (break: docs/PEERS.md)"
        else:
            # Only the moments may differ from what was saved: they were scaled on purpose.
            is_good = found.drift < 0.05 and all("exp_avg" in line for line in found.loaded)
            verdict = "training goes on, drift under 0.05"
        table.add(str(source.run), f"{TARGET}, moments {moments}", found, None,
                  verdict if is_good else "FAILED", not is_good)
    return folders["as-is"]


def _by_one_step(shop, source, target, table):
    """One step with ZeRO-1 from our target, saved by DeepSpeed, reshaped again, certified."""
    saved = shop.place("one-step")
    loaded = shop.resume(TARGET, target, before=0, after=0)
    report = shop.resume(TARGET, target, before=1, after=judge.STEPS_AFTER - 1, save=saved)
    is_accounted = account_for_step(loaded.at_save, report.at_save, loaded.learning_rate)
    again = shop.place("again")
    limit = judge.bound(TARGET, AGAIN)
    print(f"  bound: drift {limit.drift:.2e}, losses {limit.loss:.2e}")
    shop.shardproof.reshape(saved, again, AGAIN, source_run=TARGET)
    certificate = shop.shardproof.certify(saved, again,
                                          *shop.shardproof.declarations(TARGET, AGAIN))
    order = dataclasses.replace(shop.order_of_resume(again, after=judge.STEPS_AFTER - 1),
                                first_batch=STEPS_BEFORE + 1)
    found = judge.compare(report, shop.perform(AGAIN, order), 1)
    is_good = (is_accounted and not found.loaded and found.within(limit)
               and certificate["verdict"] == "certified")
    for line in found.loaded:
        print(f"  not as saved: {line}")
    table.add(f"{TARGET}, one step later", str(AGAIN), found, limit,
              "step accounted for, certified, within the bound" if is_good else "FAILED",
              not is_good)


def run_suite(shop, options):
    source = shop.source(QUICK_SOURCE if options.quick else SOURCE)
    table = judge.Table()
    target = _direct(shop, source, table)
    _by_one_step(shop, source, target, table)
    table.show(shop.folder)
    print(f"{len(table.rows)} routes, {table.failures} failed")
    return 1 if table.failures else 0
