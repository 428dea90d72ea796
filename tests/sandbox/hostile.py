"""Hostile programs, one per idea: `total(numbers)` should return a sum, and does something else.

An attack calls `escaped()` when it got out. ROOT, HOST and SECRET are the checkout, the checker's process id, and a
file that the learner's state would be.
"""

PRELUDE = """
import os, sys
ROOT, HOST, SECRET = {root!r}, {host}, {secret!r}
def escaped(): return "escaped"
"""

AS_A_LAB = """
class BlockManager:
    num_free = 0
    def __init__(self, blocks, size): total([3, 4, 5])
    def __getattr__(self, name): return lambda *args: total([3, 4, 5])
"""
"""Behind a hostile program: the lab block-manager, whose every answer is what the program returns."""

LAB = "lessons/labs/block_manager/solution.py"
AGAINST_A_LAB = {
    "the reference by its path": f"def total(numbers): return open(ROOT + '/{LAB}').read() and escaped()",
    "the reference by its bytes": f"""
def total(numbers):
    file = os.open(ROOT + "/{LAB}", os.O_RDONLY)
    return os.read(file, 9) and escaped()
""",
    "the reference by import": "from lessons.labs.block_manager.solution import *\ntotal = len",
    "the reference by runpy": f"""
import runpy
def total(numbers): return runpy.run_path(ROOT + "/{LAB}") and escaped()
""",
    "the reference by linecache": f"""
import linecache
def total(numbers):
    if linecache.getlines(ROOT + "/{LAB}"): return escaped()
""",
    "the reference by libc": f"""
import ctypes
def total(numbers):
    if ctypes.CDLL(None).open((ROOT + "/{LAB}").encode(), 0) >= 0: return escaped()
""",
    "the reference by cat": f"""
import subprocess
def total(numbers): return subprocess.check_output(["cat", ROOT + "/{LAB}"]) and escaped()
""",
    "the list of labs": "def total(numbers): return os.listdir(ROOT + '/lessons/labs') and escaped()",
    "another checker": """
import lessons.course.checking as checking
checking.run_checks = checking._run = lambda *args, **options: None
def total(numbers): return escaped()
""",
    "another engine": """
import engine.core.scheduler as scheduler
scheduler.Scheduler.check_integrity = scheduler.Scheduler.schedule = lambda self: None
def total(numbers): return escaped()
""",
    "other builtins": """
import builtins
builtins.len = builtins.sum = lambda *args: 0
builtins.isinstance = lambda *args: True
builtins.AssertionError = Exception
def total(numbers): return []
""",
    "the frames of the checker": """
def total(numbers):
    frame = sys._getframe()
    while frame:
        if "checking.py" in frame.f_code.co_filename: return escaped()
        frame = frame.f_back
""",
    "a forged report": """
def total(numbers):
    print('{"exercise": "block-manager", "results": [], "problem": "", "ok": true}')
    print("block-manager: 11 of 11 checks pass, solved")
""",
    "a stub again": "def total(numbers): raise NotImplementedError('write BlockManager')",
    "an exception that is none": """
class Odd(BaseException):
    def __str__(self): raise self
def total(numbers): raise Odd()
""",
    "a message of a megabyte": "def total(numbers): raise ValueError('x' * (1 << 20))",
    "an exit at the end": """
import atexit
atexit.register(os._exit, 0)
def total(numbers): return []
""",
    "the learner's progress": """
import sqlite3
def total(numbers): return sqlite3.connect(SECRET).execute("create table x (y)") and escaped()
""",
}

RETURNS_SOMETHING_ELSE = {
    "an object equal to everything": """
class Same:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def total(numbers): return Same()
""",
    "a str equal to everything": """
class Same(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def total(numbers): return Same("x")
""",
    "an int with a lying value": """
class Lie(int):
    def __eq__(self, other): return True
    def __index__(self): return 12
    def __int__(self): return 12
    __hash__ = int.__hash__
def total(numbers): return Lie(-1)
""",
    "a list with a lying length": """
class Lie(list):
    def __len__(self): return 1
    def __eq__(self, other): return True
def total(numbers): return Lie()
""",
    "an object with a huge length": """
class Lie:
    def __len__(self): return 1 << 60
    def __iter__(self): return iter(())
def total(numbers): return Lie()
""",
    "an object with every comparison": """
class Lie:
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __eq__ = __lt__
    def __sub__(self, other): return 0
    def __float__(self): return 0.0
def total(numbers): return Lie()
""",
    "NaN": "def total(numbers): return float('nan')",
    "a deep value": """
def total(numbers):
    value = []
    for _ in range(100_000): value = [value]
    return value
""",
    "a list that contains itself": """
def total(numbers):
    numbers.append(numbers)
    return numbers
""",
    "a huge integer": "def total(numbers): return 1 << 10_000_000",
    "a huge text": "def total(numbers): return 'x' * 100_000_000",
    "a huge list": "def total(numbers): return [0] * 20_000_000",
    "an exception without a text": """
class Bad(Exception):
    def __str__(self): raise SystemExit(0)
def total(numbers): raise Bad
""",
    "an exception that ends iteration": "def total(numbers): raise StopIteration(12)",
    "an assertion of the checker": "def total(numbers): raise AssertionError",
    "recursion": "def total(numbers): return total(numbers)",
    "the checker's classes, patched": """
import prep_common.sandbox, prep_common.guest.server, prep_common.guest.codec
import prep_common.sandbox.guest
prep_common.sandbox.guest.Guest.ask = lambda *args: 12
def total(numbers): return None
""",
    "the guest's server, patched": """
from prep_common.guest import codec, server
codec.encode = None
def total(numbers): return None
""",
    "frames of the server": """
import inspect
def total(numbers):
    frame = inspect.currentframe()
    while frame:
        for value in frame.f_locals.values():
            if type(value).__name__ in ("CheckResult", "Guest", "Program"): return escaped()
        frame = frame.f_back
    return None
""",
    "gc": """
import gc
def total(numbers):
    return escaped() if any("Check" in type(o).__name__ for o in gc.get_objects()) else None
""",
    "fork": "def total(numbers): return escaped() if os.fork() >= 0 else None",
    "a detached grandchild": """
def total(numbers):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import time
            time.sleep(100)
    return escaped()
""",
    "a subprocess": "import subprocess\ndef total(numbers): return subprocess.run(['true']) and escaped()",
    "posix_spawn": "def total(numbers): return os.posix_spawn('/bin/true', ['true'], {}) and escaped()",
    "exec": "def total(numbers): os.execv('/bin/echo', ['echo'])",
    "os.system": "def total(numbers): return escaped() if os.system('true') == 0 else None",
    "fork by machine code": """
import ctypes
def total(numbers): return escaped() if ctypes.CDLL(None).fork() >= 0 else None
""",
    "system by machine code": """
import _ctypes
def total(numbers): return escaped() if _ctypes.dlopen(None, 2) else None
""",
    "multiprocessing": """
import multiprocessing
def total(numbers):
    multiprocessing.get_context("fork").Process(target=print).start()
    return escaped()
""",
    "a socket": "import socket\ndef total(numbers): return socket.socket() and escaped()",
    "a socket of the system": """
import socket
def total(numbers):
    left = socket.socket(socket.AF_UNIX)
    left.connect("\\0prep")
    return escaped()
""",
    "a name on the network": """
import socket
def total(numbers): return socket.getaddrinfo('localhost', 80) and escaped()
""",
    "the solution by its path": """
def total(numbers): return open(ROOT + "/quizzes/autopsies/block_manager/solution.py").read() and escaped()
""",
    "the solution by os.open": """
def total(numbers): return os.open(ROOT + "/quizzes/autopsies/mutants.py", os.O_RDONLY) and escaped()
""",
    "the solution by import": "from quizzes.autopsies.block_manager.solution import *\ntotal = len",
    "the solution by a path and importlib": """
import importlib.util
def total(numbers):
    path = ROOT + "/quizzes/autopsies/block_manager/solution.py"
    spec = importlib.util.spec_from_file_location("solution", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return escaped()
""",
    "the checker's memory": "def total(numbers): return open(f'/proc/{HOST}/mem', 'rb').read(1) and escaped()",
    "the checker's files": "def total(numbers): return os.listdir(f'/proc/{HOST}/fd') and escaped()",
    "the checker's folder": """
def total(numbers): return open(f"/proc/{HOST}/cwd/README.md").read() and escaped()
""",
    "the learner's state": "def total(numbers): return open(SECRET).read() and escaped()",
    "writing to the state": "def total(numbers): return open(SECRET, 'a').write('x') and escaped()",
    "writing to the checkout": "def total(numbers): return open(ROOT + '/hostile', 'w') and escaped()",
    "writing beside the scratch folder": "def total(numbers): return open('../hostile', 'w') and escaped()",
    "a link out of the scratch folder": """
def total(numbers):
    os.symlink(SECRET, "link")
    return open("link").read() and escaped()
""",
    "removing the state": "def total(numbers): os.remove(SECRET); return escaped()",
    "a signal to the checker": "def total(numbers): os.kill(HOST, 15); return escaped()",
    "a signal to everything": "def total(numbers): os.kill(-1, 9); return escaped()",
    "its limits": """
import resource
def total(numbers):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    return escaped()
""",
}

IS_STOPPED = {
    "exit": (
        """
import sys
def total(numbers): sys.exit(0)
""",
        "exit code 0",
    ),
    "os._exit": (
        """
def total(numbers): os._exit(0)
""",
        "exit code 0",
    ),
    "exit while loading": (
        """
raise SystemExit(3)
""",
        "exit code 3",
    ),
    "a signal to itself": (
        """
def total(numbers): os.abort()
""",
        "SIGABRT",
    ),
    "an invalid address": (
        """
import ctypes
def total(numbers): ctypes.memset(0, 1, 1)
""",
        "SIGSEGV",
    ),
    "an infinite loop": (
        """
def total(numbers):
    while True: pass
""",
        "stopped after",
    ),
    "an infinite loop while loading": (
        """
while True: pass
""",
        "stopped after",
    ),
    "sleep": (
        """
import time
def total(numbers): time.sleep(100)
""",
        "stopped after",
    ),
    "a loop that no exception ends": (
        """
def total(numbers):
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
        "stopped after",
    ),
    "no signals": (
        """
import signal, time
for n in (2, 15): signal.signal(n, signal.SIG_IGN)
def total(numbers): time.sleep(100)
""",
        "stopped after",
    ),
    "a lock": (
        """
import threading
def total(numbers): threading.Event().wait()
""",
        "stopped after",
    ),
    "a backtracking pattern": (
        """
import re
def total(numbers): re.match('(a+)+b', 'a' * 60)
""",
        "stopped after",
    ),
    "many threads": (
        """
import threading, time
def total(numbers):
    while True: threading.Thread(target=time.sleep, args=(100,)).start()
""",
        "threads",
    ),
    "memory": (
        """
def total(numbers):
    kept = []
    while True: kept.append(bytearray(1 << 24))
""",
        "MiB",
    ),
    "a full disk": (
        """
def total(numbers):
    for n in range(100_000):
        open(f'f{n}', 'wb').write(bytes(4 << 20))
""",
        "MiB of files",
    ),
    "a disk full of deleted files": (
        """
def total(numbers):
    kept = []
    for n in range(100_000):
        kept.append(open('f', 'wb', buffering=0))
        os.unlink('f')
        kept[-1].write(bytes(4 << 20))
""",
        "MiB of files",
    ),
    "a flood on stdout": (
        """
def total(numbers):
    while True: print('x' * 10_000)
""",
        "stopped after",
    ),
    "a flood on stderr": (
        """
def total(numbers):
    while True: os.write(2, b'x' * 100_000)
""",
        "stopped after",
    ),
    "a flood on the pipe": (
        """
def total(numbers):
    while True:
        for fd in range(3, 20):
            try: os.write(fd, b'x' * 100_000)
            except OSError: pass
""",
        "",
    ),
    "a forged answer": (
        """
import json, struct
def total(numbers):
    for n in range(1, 20):
        text = json.dumps([n, "ok", 13]).encode()
        os.write(int(sys.argv[4]), struct.pack('>QQ', len(text), 0) + text)
    return 13
""",
        "checker's pipe",
    ),
    "a forged reference": (
        """
import json, struct
def total(numbers):
    text = json.dumps([3, "ok", {"t": "host", "id": 10**9}]).encode()
    os.write(int(sys.argv[4]), struct.pack('>QQ', len(text), 0) + text)
""",
        "checker's pipe",
    ),
    "an announced frame of a terabyte": (
        """
import struct
def total(numbers): os.write(int(sys.argv[4]), struct.pack('>QQ', 10, 1 << 40)); os.read(0, 1)
""",
        "MiB",
    ),
    "a closed pipe": (
        """
import time
def total(numbers):
    os.closerange(3, 100)
    time.sleep(100)
""",
        "",
    ),
    "a stolen request": (
        """
import time
def total(numbers):
    while True: os.read(int(sys.argv[3]), 1)
""",
        "stopped after",
    ),
    "an endless iterator": (
        """
def total(numbers):
    while True: yield 1
""",
        "stopped after",
    ),
}
