"""A sandboxed process outlives the thread that asked for it."""

import threading

from inner.sandbox import spawn, tier

CODE = "import time; print('up', flush=True); time.sleep(1); print('alive', flush=True)"


def test_a_process_outlives_the_thread_that_asked_for_it():
    made = []

    def ask():
        made.append(spawn(["-I", "-S", "-c", CODE], tier=tier()))
        made.append(made[0].process.stdout.readline())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    confined, first = made
    try:
        assert first + confined.process.stdout.read() == b"up\nalive\n"
    finally:
        confined.kill()
