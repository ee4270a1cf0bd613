"""Negative controls: damaged targets that DeepSpeed loads without a word.

Each must be found, by the comparison of losses and masters alone too, and by `shardproof certify`.
A control that passes fails the suite: the comparison would prove nothing.
"""

import os
import shutil

import torch

import judge
from cases import change
from reshaping import Refused
from training import Run
from workshop import STEPS_BEFORE, step_folder

SOURCE = Run(data=2)
TARGET = change(SOURCE, data=3)
TENSOR_SOURCE = Run(model="megatron", tensor=1, pipeline=2)
TENSOR_TARGET = change(TENSOR_SOURCE, tensor=2)


def optimizer_files(folder):
    return sorted(step_folder(folder).glob("*_optim_states.pt"))


def _edit_states(folder, edit):
    """Applies `edit` to each group's {step, exp_avg, exp_avg_sq} in every optimizer file."""
    for path in optimizer_files(folder):
        content = torch.load(path, map_location="cpu", weights_only=False)
        for state in content["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
            edit(state)
        torch.save(content, path)


def zero_moments(folder):
    def edit(state):
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()
    _edit_states(folder, edit)


def lose_step(folder):
    _edit_states(folder, lambda state: state["step"].zero_())


def shift_moments(folder):
    """One element off: what a wrong padding does."""
    _edit_states(folder, lambda state: state["exp_avg"].copy_(state["exp_avg"].roll(1)))


def _swap_files(first, second):
    middle = first.with_suffix(".swap")
    os.rename(first, middle)
    os.rename(second, first)
    os.rename(middle, second)


def swap_data_ranks(folder):
    first, second, *_ = optimizer_files(folder)
    _swap_files(first, second)


def swap_moments_of_ranks(folder):
    """Only exp_avg of two data ranks: weights and masters stay right, no load can notice."""
    first, second, *_ = optimizer_files(folder)
    contents = [torch.load(path, weights_only=False) for path in (first, second)]
    states = [content["optimizer_state_dict"]["base_optimizer_state"]["state"]
              for content in contents]
    for group in states[0]:
        a, b = states[0][group], states[1][group]
        a["exp_avg"], b["exp_avg"] = b["exp_avg"], a["exp_avg"]
    for path, content in zip((first, second), contents):
        torch.save(content, path)


def swap_tensor_ranks(folder):
    paths = optimizer_files(folder)
    first = next(path for path in paths if "mp_rank_00" in path.name)
    second = next(path for path in paths if "mp_rank_01" in path.name)
    _swap_files(first, second)


CONTROLS = (
    ("moments zeroed", SOURCE, TARGET, zero_moments),
    ("step lost", SOURCE, TARGET, lose_step),
    ("moments one element off", SOURCE, TARGET, shift_moments),
    ("files of two data ranks swapped", SOURCE, TARGET, swap_data_ranks),
    ("first moments of two data ranks swapped", SOURCE, TARGET, swap_moments_of_ranks),
    ("files of two tensor ranks swapped", TENSOR_SOURCE, TENSOR_TARGET, swap_tensor_ranks),
)


def certify_exit_code(shop, source, target, run):
    flags = shop.shardproof.declarations(source.run, run)
    try:
        shop.shardproof.call("certify", source.folder, target, *flags)
    except Refused as refusal:
        return int(str(refusal).split("exit code ")[1].split()[0])
    return 0


def run_suite(shop, options):
    del options
    table = judge.Table()
    for name, source_run, target_run, damage in CONTROLS:
        limit = judge.bound(source_run, target_run)
        print(f"{source_run} -> {target_run}, {name}\n  bound: drift {limit.drift:.2e}, "
              f"losses {limit.loss:.2e}; must be passed")
        source = shop.source(source_run)
        sound = shop.place("sound")
        shop.shardproof.reshape(source.folder, sound, target_run, source_run=source_run)
        target = shop.place("damaged")
        shutil.copytree(sound, target)
        damage(target)
        found = judge.compare(source.report, shop.resume(target_run, target), STEPS_BEFORE)
        code = certify_exit_code(shop, source, target, target_run)
        is_found = bool(found.loaded) and not found.within(limit) and code == 1
        print(f"  {len(found.loaded)} states not as saved, e.g. {(found.loaded or ['none'])[0]}\n"
              f"  drift is {found.drift / limit.drift:.1f} x the bound, losses "
              f"{found.loss_difference / limit.loss:.2f} x; certify ends with {code} (1: refuted)")
        verdict = f"found: {found.drift / limit.drift:.1f} x the bound" if is_found else "NOT FOUND"
        table.add(str(source_run), f"{target_run}, {name}", found, limit, verdict, not is_found)
    table.show(shop.folder)
    print(f"{len(CONTROLS)} controls, {table.failures} not found")
    return 1 if table.failures else 0
