"""Python in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(*arguments, **environment):
    """Run it where ``tests`` is found; what it prints, once it has ended well."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_when(condition, *arguments):
    """Start it, and kill it as soon as a condition holds."""
    process = subprocess.Popen([sys.executable, *map(str, arguments)], cwd=ROOT)
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
