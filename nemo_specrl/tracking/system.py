"""CPU, memory, disk, network and GPU of a node, sampled into a spool of its own: `system/<node>.jsonl`.

One process per node starts it: the tracker's own on its node, `sample_node` on the others. The run's follower sends all
nodes' spools, so a node needs no connection to MLflow.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nemo_specrl.tracking.spool import Spool, read_events

LOG = logging.getLogger("nemo_specrl.tracking")


class SystemMetrics:
    """A thread that samples until `stop`. Steps are seconds since the run's first sample on this node."""

    def __init__(self, output_dir: Path, every_s: float) -> None:
        """Starts sampling; every_s = 0 starts nothing. Raises OSError where the folder cannot be written."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if every_s <= 0:
            return
        self._node = node_name()
        self._every_s = every_s
        path = output_dir / "system" / f"{self._node}.jsonl"
        first = next(iter(read_events(path)), None)
        self._start = float(first["time"]) - first["step"] if first else time.time()
        self._spool = Spool(path)
        self._folder = output_dir
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(10)
            self._thread = None

    def _run(self) -> None:
        last, sampler = -1, None
        while True:
            try:
                sampler = sampler or Sampler(self._folder)
                ended = self._stop.wait(self._every_s)
                step = int(time.time() - self._start)
                values = {f"system/{self._node}/{key}": value for key, value in sampler.sample().items()}
                if step > last:
                    self._spool.append("system", node=self._node, step=step, values=values)
                    last = step
            except Exception as error:  # a sample is never worth a run
                LOG.warning("no more system metrics on %s: %s", self._node, error)
                return
            if ended:
                self._spool.close()
                return


def node_name() -> str:
    """Slurm's name of this node, else the host's: two containers or daemons of one host are two nodes."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


@contextmanager
def sample_node(output_dir: Path, every_s: float) -> Iterator[None]:
    """Sample a node that has no tracker. A folder that this node cannot write is said and costs nothing else."""
    try:
        system = SystemMetrics(output_dir, every_s)
    except OSError as error:
        LOG.warning("no system metrics of %s: %s", node_name(), error)
        yield
        return
    try:
        yield
    finally:
        system.stop()


class Sampler:
    """Reads counters; rates are since the sample before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moment = time.monotonic()
        self._busy, self._ticks = _cpu_ticks()
        self._network = _network_bytes()
        self._gpus = _gpu_reader()

    def sample(self) -> dict[str, float]:
        """Percentages in [0, 100], sizes in GiB, rates in MiB/s."""
        moment, (busy, ticks), network = time.monotonic(), _cpu_ticks(), _network_bytes()
        seconds = max(moment - self._moment, 1e-3)
        memory = _memory_kib()
        disk = shutil.disk_usage(self._folder)
        values = {
            "cpu_percent": 100 * (busy - self._busy) / max(ticks - self._ticks, 1),
            "load_1min": os.getloadavg()[0],
            "memory_used_gib": (memory["MemTotal"] - memory["MemAvailable"]) / 2**20,
            "memory_percent": 100 * (1 - memory["MemAvailable"] / memory["MemTotal"]),
            "disk_free_gib": disk.free / 2**30,
            "network_received_mib_s": (network[0] - self._network[0]) / seconds / 2**20,
            "network_sent_mib_s": (network[1] - self._network[1]) / seconds / 2**20,
        }
        self._moment, self._busy, self._ticks, self._network = moment, busy, ticks, network
        if self._gpus is not None:
            values |= self._gpus()
        return {key: float(f"{value:.6g}") for key, value in values.items()}


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all clock ticks of all cores since boot."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _memory_kib() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) for fields in lines if len(fields) > 1}


def _network_bytes() -> tuple[int, int]:
    """Received and sent, over all interfaces but the loopback."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, counters = line.split(":", 1)
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _gpu_reader() -> Callable[[], dict[str, float]] | None:
    """Reads NVIDIA GPUs through nvidia-ml-py; None without the package, a driver or a GPU."""
    try:
        import pynvml as nvml  # type: ignore[import-not-found,unused-ignore]

        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except Exception as error:
        LOG.debug("no GPU metrics: %s", error)
        return None
    return partial(_read_gpus, nvml, handles) if handles else None


def _read_gpus(nvml: Any, handles: list[Any]) -> dict[str, float]:
    readings: dict[str, Callable[[Any], float]] = {
        "percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used_gib": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30,
        "memory_percent": lambda handle: 100 * (m := nvml.nvmlDeviceGetMemoryInfo(handle)).used / m.total,
        "power_w": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
    values: dict[str, float] = {}
    for index, handle in enumerate(handles):
        for key, read in readings.items():
            try:
                values[f"gpu_{index}_{key}"] = float(read(handle))
            except nvml.NVMLError:  # a MIG slice gives no utilisation: what it gives is still recorded
                continue
    return values
