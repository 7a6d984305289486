"""Arenas of the C library: how many the threads of a process have."""

import subprocess
import sys

import pytest

from lapse.runtime import arenas

ARENAS_OF_THREADS = """
import ctypes, re, sys, tempfile, threading
from lapse.runtime import arenas

library = ctypes.CDLL(None)
if len(sys.argv) > 1 and not arenas.keep_to(int(sys.argv[1])):
    sys.exit("unknown")
library.malloc.restype, library.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
at_once = threading.Barrier(8)


def allocate() -> None:
    at_once.wait()
    library.malloc(1 << 14)
    at_once.wait()


threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.NamedTemporaryFile("r") as report:
    file = ctypes.c_void_p(library.fopen(report.name.encode(), b"w"))
    library.malloc_info(0, file)
    library.fclose(file)
    print(len(re.findall("<heap ", report.read())))
"""


def arenas_of(*most: str) -> int:
    done = subprocess.run([sys.executable, "-c", ARENAS_OF_THREADS, *most], capture_output=True, text=True, check=False)
    if done.stderr.strip() == "unknown":  # musl and macOS have no mallopt; then a worker goes on without it
        pytest.skip("this C library has no arenas to count")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_threads_share_as_many_arenas_as_are_allowed() -> None:
    assert arenas_of("2") <= 2 < arenas_of()


def test_huge_pages_are_asked_for_beside_other_tunables_and_unless_the_user_says_otherwise() -> None:
    asked = "glibc.malloc.hugetlb=1"
    assert arenas.with_huge_pages({"A": "b"}) == {"A": "b", "GLIBC_TUNABLES": asked}
    others = arenas.with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert others == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=2:{asked}"}
    declined = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert arenas.with_huge_pages(declined) == declined
