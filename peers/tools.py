"""DeepSpeed's own converters read what shardproof wrote: zero_to_fp32 and ds_to_universal.

What they make of a target must be the logical tensors that the oracle says (`shardproof digest`).
Where they are wrong or refuse, they must do the same to files that DeepSpeed itself wrote at the
target's topology: then it is their limit, not the target's. Such cases are in docs/PEERS.md.
"""

import argparse
import dataclasses
import hashlib
import multiprocessing
import os
import traceback
from pathlib import Path

import torch

import training
from cases import change
from training import Run
from workshop import step_folder

PLAIN = Run(data=2)
BARE = change(PLAIN, frozen=False)
PIPELINE = Run(model="pipeline", pipeline=2, data=2)
TENSOR = Run(model="tensor", tensor=2, data=2)
MEGATRON = Run(model="megatron", tensor=2, pipeline=2)


@dataclasses.dataclass(frozen=True)
class Case:
    tool: str
    source: Run
    target: Run
    expected: str  # "equal", "wrong" or "refuses"
    quick: bool = False


CASES = (
    Case("zero_to_fp32", BARE, change(BARE, data=3), "equal", quick=True),
    Case("zero_to_fp32", change(PLAIN, data=3), change(PLAIN, stage=2), "equal"),
    Case("zero_to_fp32", change(BARE, dtype="fp16", stage=2), change(BARE, dtype="fp16", data=4),
         "equal"),
    Case("zero_to_fp32", change(BARE, dtype="fp32", stage=0), change(BARE, dtype="fp32"), "equal"),
    Case("zero_to_fp32", PLAIN, change(PLAIN, data=3), "wrong"),
    Case("zero_to_fp32", change(BARE, gradients_fp32=True),
         change(BARE, gradients_fp32=True, data=3), "refuses"),
    Case("zero_to_fp32", BARE, change(BARE, stage=0), "refuses"),
    Case("zero_to_fp32", PIPELINE, change(PIPELINE, pipeline=1), "refuses"),
    Case("zero_to_fp32", change(TENSOR, tensor=1), TENSOR, "refuses"),
    Case("ds_to_universal", change(TENSOR, tensor=1), TENSOR, "equal", quick=True),
    Case("ds_to_universal", MEGATRON, change(MEGATRON, tensor=1, data=2), "equal", quick=True),
    Case("ds_to_universal", change(MEGATRON, tensor=1, dtype="fp16"),
         change(MEGATRON, dtype="fp16"), "equal"),
    Case("ds_to_universal", PIPELINE, change(PIPELINE, pipeline=3, data=1), "equal"),
    Case("ds_to_universal", BARE, change(BARE, data=3), "wrong"),
    Case("ds_to_universal", change(PLAIN, stage=2), change(PLAIN, data=3), "wrong"),
    Case("ds_to_universal", BARE, change(BARE, stage=0), "refuses"),
)


def zero_to_fp32(folder, scratch):
    del scratch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    found = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    return {name: {"fp32": value} for name, value in found.items()}


def ds_to_universal(folder, scratch):
    """The state that the converter asks for and plain DeepSpeed does not save is put in its way."""
    from deepspeed.checkpoint import ds_to_universal as converter
    has_info = any(b"universal_checkpoint_info" in path.read_bytes()
                   for path in step_folder(folder).glob("mp_rank_*"))
    converter.main(argparse.Namespace(
        input_folder=str(step_folder(folder)), output_folder=str(scratch), num_extract_workers=1,
        num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=not has_info))
    found = {}
    for path in sorted((Path(scratch) / "zero").glob("*/*.pt")):
        if path.stem in ("fp32", "exp_avg", "exp_avg_sq"):
            value = torch.load(path, weights_only=False)["param"]
            found.setdefault(path.parent.name, {})[path.stem] = value
    return found


def _hash(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _work(tool, folder, scratch, dtype, log, sender):
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    try:
        found = {"zero_to_fp32": zero_to_fp32, "ds_to_universal": ds_to_universal}[tool](
            folder, scratch)
        answer = {name: {state: {_hash(value), _hash(value.to(training.TYPES[dtype]))}
                         for state, value in states.items()} for name, states in found.items()}
    except BaseException:  # whatever a peer throws is its answer
        answer = traceback.format_exc().strip().splitlines()[-1]
    sender.send(answer)
    sender.close()


def _run_tool(shop, tool, folder, dtype):
    """name -> {state: hashes}, or the line of the error that the tool ended with."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(tool, folder, shop.place("converted"), dtype,
                                                  shop.log, sender))
    process.start()
    sender.close()
    answer = receiver.recv() if receiver.poll(120) else "no answer in time"
    process.join(timeout=10)
    if process.is_alive():
        process.kill()
    return answer


def _differences(found, digest):
    """Names whose tensors are not what the oracle says, with the reason; how many are equal."""
    wrong, equal = [], 0
    for name, states in sorted(digest.items()):
        theirs = found.get(name, {})
        if not theirs:
            wrong.append(f"{name} is missing")
            continue
        # A frozen parameter, a buffer: the tensor itself is all there is.
        master = states.get("fp32_master", states["weight"])
        expected = {"fp32": master, "exp_avg": states.get("exp_avg"),
                    "exp_avg_sq": states.get("exp_avg_sq")}
        bad = [state for state, hashes in theirs.items() if expected[state] not in hashes]
        if len(theirs) > 1 or "fp32_master" not in states:
            bad += [f"no {state}" for state, value in expected.items()
                    if value and state not in theirs]
        if bad:
            wrong.append(f"{name}: {', '.join(bad)}")
        else:
            equal += 1
    return wrong, equal


def _outcome(shop, case, folder):
    """("equal" | "wrong" | "refuses", lines that say what)."""
    answer = _run_tool(shop, case.tool, folder, case.target.dtype)
    if isinstance(answer, str):
        return "refuses", [answer[:160]]
    flags = shop.shardproof.declarations(case.source, case.target)
    wrong, equal = _differences(answer, shop.shardproof.digest(folder, *flags))
    return ("wrong", wrong) if wrong else ("equal", [f"{equal} tensors"])


def _show(shop, case):
    """Runs the tool on our target and on DeepSpeed's own files; True if it is as expected."""
    print(f"{case.tool}: {case.source} -> {case.target}")
    source = shop.source(case.source)
    target = shop.place("target")
    shop.shardproof.reshape(source.folder, target, case.target, source_run=case.source)
    kind, lines = _outcome(shop, case, target)
    print(f"  our target: {kind}: {'; '.join(lines)}", flush=True)
    if kind == case.expected == "equal":
        return True
    own_kind, own_lines = _outcome(shop, case, shop.source(case.target).folder)
    print(f"  DeepSpeed's own files: {own_kind}: {'; '.join(own_lines)}", flush=True)
    is_same = kind == own_kind and (kind == "refuses" or lines == own_lines)
    return kind == case.expected and is_same


def run_suite(shop, options):
    failed = 0
    chosen = [case for case in CASES if case.quick or not options.quick]
    for case in chosen:
        is_good = _show(shop, case)
        failed += not is_good
        print(f"  {'as expected' if is_good else 'FAILED'}: {case.expected}")
    print(f"{len(chosen)} cases, {failed} failed")
    return 1 if failed else 0
