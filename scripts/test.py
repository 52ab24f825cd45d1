#!/usr/bin/env python3
"""Every test, and one closing line over all of them.

Three lanes run beside each other: one of tests that compute, two of tests of the real world, which mostly wait. Within
a lane one program of tests runs after the other. The lanes of the real world begin with the first program that is
compiled, the other one when the cores are free; it then takes what is left of theirs. Tests say why they skip
something; these reasons are repeated at the end, with the ten slowest tests.

The Python tests run with the interpreter that runs this file: the one of .venv, which has the wheel.
"""

import argparse
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
CARGO = shlex.split(os.environ.get("CARGO", "cargo"))
SKIPPED = re.compile(r"^(SKIPPED|skipped|not checked): ")
MISSING = re.compile(r"^not checked: (.*)/[^/]+ is not there$")
# Programs of tests that wait for the real world: crate, and its test programs ("lib" are the tests beside the code).
REAL = {
    "sluicenet-cli": {"real"},
    "sluicenet-testbed": {"lib", "testbed"},
    "sluicenet-dataplane": {"lib", "dataplane"},
    "sluicenet-socket": {"lib", "socket"},
    "sluicenet-preload": {"lib"},
}
# A long program runs in two parts, beside each other: its name, and the tests of the first part by their names. Those
# of the testbed run one after the other, because there is one testbed on a machine.
PARTS = {"sluicenet-cli real": ("testbed", "clean")}
# Threads of a program in each lane. Waiting costs no core.
COMPUTING_THREADS = os.cpu_count() or 2
REAL_THREADS = 2
REAL_LANES = 2
SLOWEST = 10
# A program hangs if none of its tests begins or ends for so long. On a busy machine the slowest test takes a third.
STUCK_SECONDS = 900


@dataclass
class Count:
    """The tests that have run so far."""

    passed: int = 0
    failed: int = 0
    ignored: int = 0
    remarks: list[str] = field(default_factory=list)
    times: list[tuple[float, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # What tests find in their environment: Python with the wheel, the library of light sockets, the CNI plugin.
    variables: dict[str, str] = field(default_factory=lambda: {"SLUICENET_PYTHON": sys.executable})

    def remark(self, text: str) -> None:
        """Keeps the reason of a skipped test; each reason once, and missing files of one folder together."""
        if missing := MISSING.match(text):
            text = f"not checked: files that would be in {os.path.normpath(missing[1])}"
        if text not in self.remarks:
            self.remarks.append(text)


@dataclass
class Program:
    """A program of Rust tests."""

    name: str
    path: str
    folder: Path
    is_real: bool
    options: list[str] = field(default_factory=list)

    def parts(self) -> "list[Program]":
        """The programs that together run the tests of this one."""
        names = PARTS.get(self.name)
        if names is None:
            return [self]
        others = [option for name in names for option in ("--skip", name)]
        return [
            replace(self, name=f"{self.name}: {', '.join(names)}", options=[*names]),
            replace(self, name=f"{self.name}: the others", options=others),
        ]


def build_beside() -> dict[str, str]:
    """Builds what tests of other crates run, as the tests are built; its paths, by the variables of the tests."""
    # Of all crates, so that features are chosen as for the tests, and nothing is compiled twice.
    command = [*CARGO, "build", "--locked", "--profile=test", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    messages = map(json.loads, done.stdout.splitlines())
    files = [name for message in messages for name in message.get("filenames", [])]
    wanted = {"SLUICENET_PRELOAD": "/libsluicenet_socket.so", "SLUICENET_CNI": "/sluicenet-cni"}
    return {variable: next(name for name in files if name.endswith(end)) for variable, end in wanted.items()}


def compile_tests(arguments: argparse.Namespace) -> Iterator[Program]:
    """Compiles all Rust tests; each program as soon as it is there. Exits with what the compiler said."""
    command = [*CARGO, "test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            message = json.loads(line)
            if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
                continue
            manifest = Path(message["manifest_path"])
            crate = f"sluicenet-{manifest.parent.name}"
            target = message["target"]
            name = target["name"] if "test" in target["kind"] else "lib"
            if arguments.only and arguments.only not in f"{crate} {name}":
                continue
            is_real = name in REAL.get(crate, set())
            yield Program(f"{crate} {name}", message["executable"], manifest.parent, is_real)
    if process.returncode != 0:
        sys.exit(process.returncode)


def tell(ok: bool, tests: int, began: float, name: str, cpu: str = "") -> None:
    """A line about a program of tests."""
    print(
        f"{'ok' if ok else 'FAILED':6} {tests:4} tests {time.monotonic() - began:7.1f} s {cpu:>13}  {name}", flush=True
    )


# Programs of tests that run. Each leads a process group, which has the programs that it started.
groups: set[int] = set()


def kill_group(leader: int) -> None:
    """Ends a program of tests and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def interrupted(number: int, _frame: object) -> None:
    """Ends all programs of tests, which do not get the signals of the terminal, and then this one."""
    for leader in list(groups):
        kill_group(leader)
    os._exit(128 + number)


class Guard:
    """Ends a program of tests that hangs, and remembers which of its tests did not end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Watches a program that has just begun."""
        self.process = process
        self.running: set[str] = set()
        self.stuck: list[str] = []
        self.last = time.monotonic()
        self.lock = threading.Lock()
        self.ended = threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Looks until the program has ended."""
        while not self.ended.wait(1):
            with self.lock:
                if time.monotonic() - self.last <= STUCK_SECONDS:
                    continue
                self.stuck = sorted(self.running) or ["before its first test"]
            kill_group(self.process.pid)
            return

    def note(self, event: dict[str, Any]) -> None:
        """A test began or ended."""
        with self.lock:
            self.last = time.monotonic()
            if event.get("event") == "started":
                self.running.add(event["name"])
            else:
                self.running.discard(event.get("name", ""))


def run_program(program: Program, count: Count, arguments: argparse.Namespace) -> bool:
    """Runs a program of tests and counts its results; whether all passed."""
    threads = REAL_THREADS if program.is_real else COMPUTING_THREADS
    filters = arguments.filters
    if arguments.long:
        threads, filters = 1, ["--ignored", *(filters or ["long_"])]
    options = ["-Zunstable-options", "--format=json", "--report-time", "--show-output", f"--test-threads={threads}"]
    # The times of single tests are an unstable option of the test harness. Nothing is compiled with this variable.
    variables = {**os.environ, **count.variables, "RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": str(program.folder)}
    began = time.monotonic()
    failures, tests = [], 0
    with subprocess.Popen(
        [program.path, *options, *program.options, *filters],
        cwd=program.folder,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        groups.add(process.pid)
        guard = Guard(process)
        for line in process.stdout or ():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            # A program that a test started may print anything.
            if not isinstance(event, dict) or event.get("type") != "test" or event.get("event") in (None, "timeout"):
                continue
            guard.note(event)
            if event["event"] == "started":
                continue
            tests += 1
            with count.lock:
                output = event.get("stdout", "")
                for text in output.splitlines():
                    if SKIPPED.match(text):
                        count.remark(text)
                if event["event"] == "ok":
                    count.passed += 1
                elif event["event"] == "ignored":
                    count.ignored += 1
                else:
                    count.failed += 1
                    failures.append(f"---- {program.name}: {event['name']}: {event['event']}\n{output}")
                count.times.append((float(event.get("exec_time", 0)), f"{program.name}: {event['name']}"))
        # With what its own programs took, if it waited for them.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        guard.ended.set()
        groups.discard(process.pid)
    ok = process.returncode == 0
    if guard.stuck:
        with count.lock:
            count.failed += len(guard.stuck)
        failures.append(f"---- {program.name}: no end after {STUCK_SECONDS} s: {', '.join(guard.stuck)}")
    elif not ok and not failures:
        with count.lock:
            count.failed += 1
        failures.append(f"---- {program.name}: the program ended with {process.returncode}")
    with count.lock:
        for text in failures:
            print(text)
        tell(ok, tests, began, program.name, f"{used.ru_utime + used.ru_stime:.1f} CPU s")
    return ok


def run_doc_tests(count: Count) -> bool:
    """The examples in doc comments."""
    began = time.monotonic()
    command = [*CARGO, "test", "--locked", "--doc", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", done.stdout, re.M)
    passed, failed, ignored = (sum(int(result[i]) for result in found) for i in range(3))
    with count.lock:
        count.passed += passed
        count.failed += failed
        count.ignored += ignored
        if done.returncode != 0:
            print(done.stdout + done.stderr)
        tell(done.returncode == 0, passed, began, "examples in doc comments")
    return done.returncode == 0


def run_python(count: Count) -> bool:
    """The Python tests."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "python/tests"]
        command = [sys.executable, "-m", "pytest", *options]
        done = subprocess.run(
            [*command, "-c", "python/pyproject.toml", "--rootdir=python"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        with count.lock:
            if done.returncode != 0:
                print(done.stdout)
            if not report.exists():
                return False
            cases = list(ElementTree.parse(report).iter("testcase"))
            for case in cases:
                count.times.append((float(case.get("time", 0)), f"python: {case.get('name')}"))
                if (skipped := case.find("skipped")) is not None:
                    count.ignored += 1
                    count.remark(f"SKIPPED: {case.get('name')}: {skipped.get('message')}")
                elif case.find("failure") is not None or case.find("error") is not None:
                    count.failed += 1
                else:
                    count.passed += 1
            tell(done.returncode == 0, len(cases), began, "python")
    return done.returncode == 0


def main() -> None:
    """Compiles, runs both lanes, counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="programs whose name contains this, as `cli real`; no Python, no examples")
    parser.add_argument("--long", action="store_true", help="the long tests, whose rates want a machine of their own")
    parser.add_argument("filters", nargs="*", help="names of tests, as libtest takes them")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    begun = time.monotonic()
    count = Count()
    count.variables |= build_beside()
    verdicts: list[bool] = []
    computing: list[Program] = []
    # What the lanes of the real world do; None ends them.
    real: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()

    def real_lane() -> None:
        while (job := real.get()) is not None:
            is_ok = False
            try:
                is_ok = job()
            finally:
                verdicts.append(is_ok)
        # For the other lanes.
        real.put(None)

    # The long tests run one after the other.
    lanes = [threading.Thread(target=real_lane) for _ in range(0 if arguments.long else REAL_LANES)]
    for lane in lanes:
        lane.start()
    try:
        for program in compile_tests(arguments):
            if not program.is_real:
                computing.append(program)
                continue
            for part in [program] if arguments.long or arguments.filters else program.parts():
                real.put(partial(run_program, part, count, arguments))
        if not arguments.long and not arguments.only:
            real.put(partial(run_python, count))
            real.put(partial(run_doc_tests, count))
    except SystemExit:
        # The programs that run may finish; no other begins.
        with suppress(queue.Empty):
            while True:
                real.get_nowait()
        raise
    finally:
        real.put(None)
    compiled = time.monotonic()
    print(f"compiled in {compiled - begun:.0f} s", flush=True)
    for program in computing:
        verdicts.append(run_program(program, count, arguments))
    real_lane()
    for lane in lanes:
        lane.join()
    if count.remarks:
        print("\nnot everything could be checked here:")
        for remark in count.remarks:
            print(f"  {remark}")
    print(f"\nthe {SLOWEST} slowest tests:")
    for seconds, name in sorted(count.times, reverse=True)[:SLOWEST]:
        print(f"  {seconds:6.1f} s  {name}")
    is_ok = all(verdicts) and count.failed == 0
    print(
        f"\ntest result: {'ok' if is_ok else 'FAILED'}. {count.passed} passed; {count.failed} failed; "
        f"{count.ignored} ignored; 0 measured; 0 filtered out; finished in {time.monotonic() - begun:.2f}s"
    )
    sys.exit(not is_ok)


if __name__ == "__main__":
    main()
