"""A redis-server for a model."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def redis():
    """A server on a free port, which is stopped again."""
    port = free_port()
    command = [os.environ.get("REDIS_SERVER", "redis-server"), "--port", str(port), "--save", ""]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if not any("eady to accept connections" in line for line in server.stdout):
            sys.exit("redis-server did not start")
        yield f"redis://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.wait()
