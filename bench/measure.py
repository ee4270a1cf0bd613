"""Runs one command and says what it cost: seconds, memory, bytes read and written."""

import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Cost:
    """What one run of a command took. Bytes of memory and of input and output."""

    seconds: float
    anonymous_peak: int  # largest RssAnon + RssShmem seen, of all its processes together
    resident_peak: int  # largest VmHWM seen of any of its processes (mapped file pages count)
    bytes_written: int  # handed to write calls
    exit_code: int


def _status_of(process):
    """(RssAnon + RssShmem, VmHWM) of a process in bytes; zeros when it has gone."""
    values = {}
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in ("RssAnon", "RssShmem", "VmHWM"):
                values[key] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0, 0
    return values.get("RssAnon", 0) + values.get("RssShmem", 0), values.get("VmHWM", 0)


def _family(root):
    """A process and all its descendants."""
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text()
                waiting.extend(int(child) for child in children.split())
        except OSError:
            continue
    return found


def _written_by(process):
    try:
        for line in Path(f"/proc/{process}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


class _Watch(threading.Thread):
    """Samples the memory of a process tree until told to stop."""

    def __init__(self, root, interval):
        super().__init__(daemon=True)
        self.root, self.interval = root, interval
        self.anonymous, self.resident = 0, 0
        self.written = {}
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(self.interval):
            anonymous = 0
            for process in _family(self.root):
                now, peak = _status_of(process)
                anonymous += now
                self.resident = max(self.resident, peak)
                written = _written_by(process)
                self.written[process] = max(self.written.get(process, 0), written)
            self.anonymous = max(self.anonymous, anonymous)


def run(command, environment=None, interval=0.02, log=None):
    """Cost of `command` (a list of words, or a string for the shell)."""
    output = open(log, "wb") if log else subprocess.DEVNULL
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        stdout=output,
        stderr=subprocess.STDOUT if log else subprocess.DEVNULL,
        env=environment,
    )
    watch = _Watch(process.pid, interval)
    watch.start()
    code = process.wait()
    seconds = time.monotonic() - begin
    watch.stop.set()
    watch.join()
    if log:
        output.close()
    return Cost(seconds, watch.anonymous, watch.resident, sum(watch.written.values()), code)


def drop_page_cache():
    """Makes the next reads cold. False where this user may not: then there are no cold figures."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def warm(folder):
    """Reads every byte below a folder, so that it lies in the page cache if it fits."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def folder_bytes(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
