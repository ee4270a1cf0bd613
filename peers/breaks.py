"""Reshapes after which training must go on differently, each with its reason, measured.

fp16 without ZeRO: this version of the framework does not scale the loss there but divides the
gradients by the scale all the same. So the moments in such files are smaller by the scale than a
ZeRO run's. Carried as they are, they weigh next to nothing beside the first new gradients, as if
they had been zeroed; the other way round, new gradients weigh next to nothing beside them. With
`--moments rescale` training goes on.

Padding of the vocabulary: a universal folder has no padding rows (that is its format); they are
trained, so the target has other ones, and only these differ.
"""

import shutil

import torch

import judge
import models
from cases import change
from controls import zero_moments
from training import LOSS_SCALE_POWER, Run
from workshop import STEPS_BEFORE

WITHOUT = Run(data=2, stage=0, dtype="fp16")
WITH = change(WITHOUT, stage=1)
# Gradients that fp16 without scaling flushes to zero or rounds as subnormals are other ones; and
# Adam's epsilon weighs more beside moments that are smaller by the scale.
RESCALED_DRIFT_MAX = 0.05


class _Rows:
    def __init__(self, shop, table):
        self.shop, self.table = shop, table

    def measure(self, source_run, target_run, label, flags=(), damage=None, universal=False):
        source = self.shop.source(source_run)
        target = self.shop.place("target")
        extra = [*flags, *(("--format", "universal") if universal else ())]
        self.shop.shardproof.reshape(source.folder, target, target_run, source_run=source_run,
                                     extra=extra)
        if damage:
            shutil.copytree(target, damaged := self.shop.place("damaged"))
            damage(damaged)
            target = damaged
        resumed = self.shop.resume(target_run, target, universal=universal)
        found = judge.compare(source.report, resumed, STEPS_BEFORE, with_frozen=not universal)
        print(f"{source_run} -> {target_run}, {label}")
        return source, resumed, found

    def add(self, source_run, target_run, label, found, is_good, reason):
        verdict = reason if is_good else f"FAILED: not {reason}"
        self.table.add(str(source_run), f"{target_run}, {label}", found, None, verdict,
                       not is_good)


def _moment_ratio(source, resumed):
    """exp_avg that DeepSpeed holds over what was saved, summed over all parameters."""
    ours = sum(float(states["exp_avg"].abs().sum()) for states in resumed.at_save.values()
               if "exp_avg" in states)
    theirs = sum(float(states["exp_avg"].abs().sum()) for states in source.at_save.values()
                 if "exp_avg" in states)
    return ours / theirs


def _fp16_to_zero(rows):
    source, _, as_is = rows.measure(WITHOUT, WITH, "moments as is")
    rows.add(WITHOUT, WITH, "moments as is", as_is, not as_is.loaded and as_is.drift > 0.1,
             "loaded bit for bit, then a break")
    _, _, zeroed = rows.measure(WITHOUT, WITH, "moments zeroed", damage=zero_moments)
    alike = abs(as_is.drift - zeroed.drift) < 0.05 * zeroed.drift
    rows.add(WITHOUT, WITH, "moments zeroed", zeroed, alike, "the same break within 5 %: as-is "
             "moments weigh nothing")
    _, resumed, scaled = rows.measure(WITHOUT, WITH, "moments rescaled",
                                      flags=("--moments", "rescale"))
    ratio = _moment_ratio(source.report, resumed)
    print(f"  exp_avg in the target is {ratio:.6g} x the source's; the scale is "
          f"{2**LOSS_SCALE_POWER}")
    is_good = abs(ratio / 2**LOSS_SCALE_POWER - 1) < 1e-6 and scaled.drift < RESCALED_DRIFT_MAX
    rows.add(WITHOUT, WITH, "moments rescaled", scaled, is_good,
             f"moments times the scale, drift under {RESCALED_DRIFT_MAX}")


def _fp16_from_zero(rows):
    _, _, as_is = rows.measure(WITH, WITHOUT, "moments as is")
    rows.add(WITH, WITHOUT, "moments as is", as_is, not as_is.loaded and as_is.drift > 0.1,
             "loaded bit for bit, then a break")
    _, _, scaled = rows.measure(WITH, WITHOUT, "moments rescaled", flags=("--moments", "rescale"))
    rows.add(WITH, WITHOUT, "moments rescaled", scaled, scaled.drift < RESCALED_DRIFT_MAX,
             f"drift under {RESCALED_DRIFT_MAX}")


def _universal_padding(rows):
    source_run = Run(model="megatron", tensor=2, pipeline=2)
    target_run = change(source_run, tensor=1)
    source, resumed, found = rows.measure(source_run, target_run, "universal", universal=True)
    table = "tied_modules.embed.word_embeddings.weight"
    is_good = bool(found.loaded) and all(table in line for line in found.loaded)
    for state in ("weight", "fp32_master", "exp_avg", "exp_avg_sq"):
        theirs, ours = source.report.at_save[table][state], resumed.at_save[table][state]
        rows_used = models.VOCABULARY
        is_good &= torch.equal(theirs[:rows_used], ours[:rows_used])
        is_good &= not torch.equal(theirs[rows_used:], ours[rows_used:])
    rows.add(source_run, target_run, "universal", found, is_good,
             f"only padding rows {models.VOCABULARY} to {models.padded_rows(1) - 1} differ")


def run_suite(shop, options):
    del options
    table = judge.Table()
    rows = _Rows(shop, table)
    for part in (_fp16_to_zero, _fp16_from_zero, _universal_padding):
        part(rows)
    table.show(shop.folder)
    print(f"{len(table.rows)} breaks, {table.failures} not as explained")
    return 1 if table.failures else 0
