"""Ranks that are processes of this machine without a launcher: what torchrun
sets is set here."""
import contextlib
import os
import socket
import subprocess
import time

import harness
from harness import Failed


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ended:
    """A rank's end."""

    def __init__(self, code, out, errors, seconds):
        self.code, self.out, self.errors = code, out, errors
        self.seconds = seconds  # since the start of all


def launch(tools, ranks, tool, *arguments, extra=lambda rank: {}):
    """Starts so many ranks, each with its own environment besides, and waits for
    all of them. Returns how they ended; fails if one does not."""
    command = tools.start(tool, *arguments)
    shared = {**os.environ, **tools.extra, "WORLD_SIZE": str(ranks),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    began = time.monotonic()
    processes, ended = [], [None] * ranks
    try:
        for rank in range(ranks):
            files = [open(tools.path(f"{name}-{rank}"), "w+", encoding="utf-8",
                          errors="replace") for name in ("out", "errors")]
            processes.append((files, subprocess.Popen(
                command, stdout=files[0], stderr=files[1],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank),
                     **extra(rank)})))
        while None in ended:
            for rank, (files, process) in enumerate(processes):
                if ended[rank] is None and process.poll() is not None:
                    texts = []
                    for file in files:
                        file.seek(0)
                        texts.append(file.read())
                    ended[rank] = Ended(process.returncode, *texts,
                                        time.monotonic() - began)
            if time.monotonic() > began + tools.timeout:
                raise Failed(f"ranks {missing(ended)} did not end in "
                             f"{tools.timeout} s: {rest(processes)}")
            time.sleep(0.02)
    finally:
        for files, process in processes:
            process.kill()
            process.wait()
            for file in files:
                file.close()
    return ended


def missing(ended):
    return ",".join(str(rank) for rank, end in enumerate(ended) if end is None)


def rest(processes):
    """What was said last, by any rank."""
    texts = []
    for files, _ in processes:
        files[1].seek(0)
        texts.append(files[1].read())
    return " | ".join(filter(None, map(harness.last_lines, texts)))
