"""What DeepSpeed does not load, shown on files of its own as well: its limits, not the target's.

A row fails when DeepSpeed begins to do it: then a case belongs into cases.py in its place.
"""

import json
import re

import judge
import training
from cases import change
from training import Run
from workshop import STEPS_BEFORE

PIPELINE = Run(model="pipeline", pipeline=2, data=2)
PLAIN = Run(data=2)
ELASTIC = Run(data=2, elastic=True)


def _last_line(error):
    return re.sub(r"\d+", "N", str(error).strip().splitlines()[-1])[:120]  # which rank, is chance


def _attempt(shop, run, folder):
    """The last line of DeepSpeed's error, or None where it loads and trains on."""
    try:
        shop.resume(run, folder)
    except training.Failure as failure:
        return _last_line(failure)
    return None


def _refused_alike(shop, source_run, target_run, flags=()):
    source = shop.source(source_run)
    target = shop.place("target")
    shop.shardproof.reshape(source.folder, target, target_run, source_run=source_run, extra=flags)
    ours = _attempt(shop, target_run, target)
    own = _attempt(shop, target_run, shop.source(target_run).folder)
    print(f"{source_run} -> {target_run}\n  our target: {ours}\n  DeepSpeed's own files: {own}")
    return ours is not None and ours == own


def bf16_pipeline_without_zero(shop):
    """Without ZeRO the engine hands BF16_Optimizer one dict where it wants a list of ranks."""
    return _refused_alike(shop, PIPELINE, change(PIPELINE, stage=0))


def elastic(shop):
    """DeepSpeed's elastic loader looks for a step where its own save has none."""
    return _refused_alike(shop, ELASTIC, change(ELASTIC, data=3), flags=("--elastic",))


def elastic_first_rate(shop):
    """Elastic files of FusedAdam load, but the next step has the rate of a new optimizer."""
    run = change(ELASTIC, fused=True)
    source = shop.source(run)
    target = shop.place("target")
    other = change(run, stage=2)
    shop.shardproof.reshape(source.folder, target, other, source_run=run, extra=["--elastic"])
    ours, own = shop.resume(other, target), shop.resume(run, source.folder)
    lines = [judge.compare(source.report, resumed, STEPS_BEFORE).loaded for resumed in (ours, own)]
    print(f"{run} -> {other}\n  our target: {lines[0]}\n  DeepSpeed's own files: {lines[1]}\n"
          f"  losses after: ours {ours.losses}, own {own.losses}")
    is_rate_alone = len(lines[0]) == 1 and lines[0][0].startswith("learning_rate")
    return is_rate_alone and lines[0] == lines[1] and ours.losses == own.losses


def elastic_made_rigid(shop):
    """The way out: a rigid target, with the hyper-parameters declared that elastic files lack."""
    source = shop.source(ELASTIC)
    common = {"lr": source.report.learning_rate, "betas": list(training.BETAS),
              "eps": training.EPSILON, "amsgrad": False, "maximize": False, "foreach": None,
              "capturable": False, "differentiable": False, "fused": None,
              "decoupled_weight_decay": True}
    declared = shop.folder / "param_groups.json"
    declared.write_text(json.dumps([{"weight_decay": decay, **common} for decay in (0.1, 0.0)]),
                        encoding="utf-8")
    target = shop.place("target")
    shop.shardproof.reshape(source.folder, target, PLAIN, source_run=ELASTIC,
                            extra=["--param-groups", declared])
    found = judge.compare(source.report, shop.resume(PLAIN, target), STEPS_BEFORE)
    print(f"{ELASTIC} -> {PLAIN}\n  loaded: {found.loaded or 'bits equal'}; drift "
          f"{found.drift:.2e}")
    return not found.loaded and found.is_exact


def scalar_parameter(shop):
    """deepspeed.initialize views each parameter as bytes, which a 0-d tensor does not allow."""
    run = change(PLAIN, scalar=True)
    try:
        shop.source(run)
    except training.Failure as failure:
        print(f"{run}\n  deepspeed.initialize: {_last_line(failure)}")
        return True
    return False


def universal_without_frozen(shop):
    """The universal loader reads no module: frozen parameters and buffers stay as initialised."""
    source = shop.source(PLAIN)
    target = shop.place("target")
    shop.shardproof.reshape(source.folder, target, PLAIN, source_run=PLAIN,
                            extra=["--format", "universal"])
    resumed = shop.resume(PLAIN, target, universal=True)
    lines = judge.compare(source.report, resumed, STEPS_BEFORE).loaded
    print(f"{PLAIN} -> universal\n  not loaded: {'; '.join(lines)}")
    return bool(lines) and all(line.startswith(("frozen.", "buffer ")) for line in lines)


LIMITS = (bf16_pipeline_without_zero, elastic, elastic_first_rate, elastic_made_rigid,
          scalar_parameter, universal_without_frozen)


def run_suite(shop, options):
    del options
    failed = 0
    for limit in LIMITS:
        is_there = limit(shop)
        failed += not is_there
        print(f"  {'known limit' if is_there else 'NOT AS DOCUMENTED'}: {limit.__doc__}",
              flush=True)
    print(f"{len(LIMITS)} limits, {failed} not as documented")
    return 1 if failed else 0
