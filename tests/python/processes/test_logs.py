"""The library's events in Python's logging."""

import os
import subprocess
import sys
import textwrap

# A queue whose reader waits logs a warning after `warn_every`.
WARN = """
import crossrank, logging, os, threading, time
world = crossrank.connect(rank=0, world_size=1)
queue = crossrank.MessageQueue.create_writer(world, readers=1, name="late", warn_every=0.05)
reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
def warn():
    try: queue.wait_for(0); [queue.enqueue_bytes(b"x", timeout=0.5) for _ in range(8)]
    except TimeoutError: pass
"""


def run(program, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "CROSSRANK_LOG"}
    code = textwrap.dedent(WARN) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**environment, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_warning_reaches_the_logger():
    done = run(
        """
        class Handler(logging.Handler):
            def emit(self, record): seen.append(record)
        seen = []
        logging.getLogger("crossrank").addHandler(Handler())
        warn()
        until = time.monotonic() + 30
        while not seen: assert time.monotonic() < until; time.sleep(0.01)
        record = seen[0]
        assert record.levelno == logging.WARNING and record.name == "crossrank", record
        assert "late" in record.getMessage() or "late" in record.fields.values(), (record.getMessage(), record.fields)
        """
    )
    assert done.stderr == ""


def test_a_warning_of_the_last_moment_is_logged():
    assert "crossrank: warning: a queue waits" in run("warn()").stderr


def test_the_environment_asks_for_lines_on_standard_error():
    done = run("logging.getLogger('crossrank').addHandler(logging.NullHandler())\nwarn()", CROSSRANK_LOG="warning")
    assert "crossrank: warning: " in done.stderr


def test_a_handler_that_raises_harms_nothing():
    done = run(
        """
        class Handler(logging.Handler):
            def emit(self, record): raise KeyError("no such handler")
        logging.getLogger("crossrank").addHandler(Handler())
        warn()
        world.barrier()
        """
    )
    assert "no such handler" in done.stderr


def test_a_forked_child_logs_too():
    """The parent's thread is in a handler at the time of the fork, and the child does not have it."""
    run(
        """
        class Handler(logging.Handler):
            def emit(self, record):
                seen.append(record)
                entered.set()
                if os.getpid() == parent: over.wait()
        seen, parent, entered, over = [], os.getpid(), threading.Event(), threading.Event()
        logging.getLogger("crossrank").addHandler(Handler())
        warn()
        assert entered.wait(30)
        pid = os.fork()
        if pid == 0:
            seen.clear()
            world = crossrank.connect(rank=0, world_size=1, job_id="child")
            queue = crossrank.MessageQueue.create_writer(world, readers=1, warn_every=0.05)
            reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
            warn()
            until = time.monotonic() + 30
            while not seen and time.monotonic() < until: time.sleep(0.01)
            os._exit(7 if seen else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        over.set()
        """
    )
