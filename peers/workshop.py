"""What every part needs: a scratch folder, source runs trained once each, and resumed runs."""

import dataclasses
import itertools
import shutil
from pathlib import Path

import judge
import training
from reshaping import Shardproof

SOURCE_SEED = 1
# The resumed engine is built with other random values: what the target does not bring, shows.
RESUMED_SEED = 2
STEPS_BEFORE = 3


@dataclasses.dataclass
class Source:
    run: training.Run
    folder: Path
    report: training.Report


def step_folder(folder):
    """The step that a run folder's `latest` names."""
    return Path(folder) / (Path(folder) / "latest").read_text().strip()


class Workshop:
    def __init__(self, folder, binary):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.shardproof = Shardproof(Path(binary), self.folder)
        self.log = self.folder / "deepspeed.log"
        self._sources = {}
        self._numbers = itertools.count(1)

    def place(self, name):
        return self.folder / f"{next(self._numbers):03d}-{name}"

    def source(self, run):
        """Trains three steps, saves, trains three more: the run that was never stopped."""
        if run not in self._sources:
            folder = self.place("source")
            order = training.Order(seed=SOURCE_SEED, before=STEPS_BEFORE, save=str(folder),
                                   after=judge.STEPS_AFTER)
            self._sources[run] = Source(run, folder, training.perform(run, order, self.log))
        return self._sources[run]

    def order_of_resume(self, folder, *, universal=False, before=0, after=judge.STEPS_AFTER,
                        save=""):
        """Loads `folder` and goes on with the batches that come after the source's."""
        return training.Order(seed=RESUMED_SEED, load=str(folder), universal=universal,
                              before=before, after=after, save=str(save),
                              first_batch=STEPS_BEFORE)

    def resume(self, run, folder, **options):
        return self.perform(run, self.order_of_resume(folder, **options))

    def perform(self, run, order):
        return training.perform(run, order, self.log)
