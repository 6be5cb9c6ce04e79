"""Starting a thread ends, also with hardly any memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

SWEEP: Final = """
import resource, threading
from atomr_accel.wire.threads import start

def size():
    return resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])

stack = 1 << 20
threading.stack_size(stack)
begun, refused = [], 0
for free in range(stack - (64 << 10), stack + (16 << 20), 4 << 10):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size() + free, hard))
    try:
        start(threading.Thread(target=begun.append, args=(free,), daemon=True))
    except OSError as error:
        refused += 1
    else:
        break
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
threads = threading.enumerate()[1:]
for thread in threads:
    thread.join()
print(refused > 16, len(begun))
"""


def test_a_thread_begins_or_is_refused_however_little_memory_there_is() -> None:
    command = [sys.executable, "-c", SWEEP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True 1\n", "")
