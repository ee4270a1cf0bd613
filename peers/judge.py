"""Compares a resumed run with the run that was never stopped, and prints the table.

Three comparisons, from strict to loose: what DeepSpeed holds after loading the target (bit for bit,
always); losses and masters after three more steps (bit for bit where the arithmetic is the same);
the same within a bound, printed before the run, where sums are made in another order.
"""

import dataclasses
import json
import math

import torch

import models
import table

# Unit roundoff of the type in which gradients are made and summed.
ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
STEPS_AFTER = 3

# Where only the data parallel size changes, every sample's forward and backward pass stays as it
# was. What differs: each rank's partial gradient is rounded once to its type, and sums of fp32 are
# made in another order (about the square root of the number of tokens, in roundoffs of fp32; twice,
# because Adam divides by the root of exp_avg_sq, which has the same error).
# Where the tensor parallel size changes, the activations themselves are summed in another order and
# rounded to their type on the way, once in each of these layers, so gradients differ by more.
TENSOR_SUMS = 4


@dataclasses.dataclass(frozen=True)
class Bound:
    """`drift`: distance of the masters over the distance that training moved them meanwhile."""

    drift: float
    loss: float


def bound(source, target):
    """The bound for a resume at another topology; depends on types and counts only."""
    roundoff = max(ROUNDOFF[source.dtype], ROUNDOFF[target.dtype])
    tokens = math.sqrt(models.GLOBAL_BATCH * models.POSITIONS)
    sums = TENSOR_SUMS if source.tensor != target.tensor else 1
    step = sums * roundoff + 2 * tokens * ROUNDOFF["fp32"]
    return Bound(drift=STEPS_AFTER * step, loss=step)


@dataclasses.dataclass
class Comparison:
    """Differences between the run that was never stopped and the resumed one."""

    loaded: list  # states that DeepSpeed does not hold as they were saved; empty: all bits equal
    compared: int  # elements compared after loading
    first_loss: float
    first_loss_difference: float
    loss_difference: float
    master_difference: float
    master_worst: str
    drift: float
    is_exact: bool  # losses and masters equal to the last bit

    def within(self, limit):
        return self.drift <= limit.drift and self.loss_difference <= limit.loss


def masters_of(tensors):
    return {name: states["fp32_master"] for name, states in tensors.items()
            if "fp32_master" in states}


def compare(reference, resumed, before, with_frozen=True):
    """`reference` trained `before` steps, reported, trained on; `resumed` loaded and trained on."""
    loaded, compared = _compare_loaded(reference, resumed, with_frozen)
    expected = reference.losses[before:]
    if len(expected) != len(resumed.losses):
        raise ValueError(f"{len(expected)} losses against {len(resumed.losses)}")
    losses = [abs(a - b) for a, b in zip(expected, resumed.losses)]
    ours, theirs = masters_of(resumed.at_end), masters_of(reference.at_end)
    begun = masters_of(reference.at_save)
    worst, worst_name, distance, travelled = 0.0, "-", 0.0, 0.0
    for name in sorted(theirs):
        difference = (ours[name].double() - theirs[name].double()).abs()
        if not difference.max() <= worst:  # a NaN is the worst of all
            worst, worst_name = float(difference.max()), name
        distance += float((difference**2).sum())
        travelled += float(((theirs[name].double() - begun[name].double()) ** 2).sum())
    is_exact = resumed.losses == expected and all(
        torch.equal(ours[name], theirs[name]) for name in theirs)
    return Comparison(loaded, compared, resumed.losses[0], losses[0], max(losses), worst,
                      worst_name, math.sqrt(distance / travelled), is_exact)


def _compare_loaded(reference, resumed, with_frozen):
    """With `with_frozen` false, frozen parameters and buffers are not looked at."""
    wrong, compared = [], 0
    if sorted(reference.at_save) != sorted(resumed.at_save):
        return [f"names: {sorted(set(reference.at_save) ^ set(resumed.at_save))}"], 0
    for name, states in sorted(reference.at_save.items()):
        if not with_frozen and "fp32_master" not in states:
            continue
        theirs = resumed.at_save[name]
        for state, value in states.items():
            if state == "step":
                if theirs.get("step") != value:
                    wrong.append(f"{name} step: {theirs.get('step')} is not {value}")
            elif state not in theirs or not torch.equal(theirs[state], value):
                wrong.append(f"{name} {state}: {_amount(theirs.get(state), value)}")
            else:
                compared += value.numel()
    for name, value in sorted(reference.buffers.items() if with_frozen else ()):
        if not torch.equal(resumed.buffers.get(name, torch.empty(0)), value):
            wrong.append(f"buffer {name}")
        else:
            compared += value.numel()
    for field in ("global_steps", "learning_rate"):
        a, b = getattr(reference, field), getattr(resumed, field)
        if a != b:
            wrong.append(f"{field}: {b} is not {a}")
    return wrong, compared


def _amount(found, expected):
    if found is None or found.shape != expected.shape:
        return "other shape" if found is not None else "missing"
    differing = int((found != expected).sum())
    return (f"{differing} of {expected.numel()} elements, "
            f"by up to {float((found - expected).abs().max()):.3g}")


class Table:
    """One row a reshape, printed as it is known; at the end the table of the suite."""

    HEAD = ("source", "target", "loaded", "first loss", "d(first)", "d(losses)", "d(masters)",
            "drift", "bound", "verdict")

    def __init__(self):
        self.rows = []
        self.failures = 0

    def add(self, source, target, comparison, limit, verdict, is_failure):
        if comparison is None:
            row = (source, target, "-", "-", "-", "-", "-", "-", "-", verdict)
        else:
            c = comparison
            row = (source, target, "bits equal" if not c.loaded else f"{len(c.loaded)} differ",
                   f"{c.first_loss:.6f}", f"{c.first_loss_difference:.2e}",
                   f"{c.loss_difference:.2e}", f"{c.master_difference:.2e}", f"{c.drift:.2e}",
                   "-" if limit is None else f"{limit.drift:.2g}", verdict)
        self.rows.append(row)
        self.failures += is_failure
        print("  " + "; ".join(f"{head} {cell}" for head, cell in zip(self.HEAD[2:], row[2:])),
              flush=True)

    def show(self, folder):
        """Prints the table, and leaves its rows in `folder` for table.py."""
        print()
        table.show(self.HEAD, self.rows)
        content = {"head": self.HEAD, "rows": self.rows}
        (folder / "table.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
