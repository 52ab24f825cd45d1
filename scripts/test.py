#!/usr/bin/env python3
"""Every test of the house, and one closing line over all of them.

Rust tests run with their output shown, so that a test which skips something can say why; what it says is repeated at
the end. The Python tests run with the interpreter that runs this file: that of .venv, where the wheel is.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
SKIPPED = re.compile(r"^(SKIPPED|not checked): ")
MISSING = re.compile(r"^not checked: (.*)/[^/]+ is not there$")


class Count:
    """Tests so far."""

    def __init__(self) -> None:
        """None yet."""
        self.passed = self.failed = self.ignored = 0
        self.remarks: list[str] = []

    def remark(self, text: str) -> None:
        """Something that was skipped, and why; told once, and files of one folder together."""
        if missing := MISSING.match(text):
            text = f"not checked: files that would be in {os.path.normpath(missing[1])}"
        if text not in self.remarks:
            self.remarks.append(text)


def rust(count: Count) -> bool:
    """The Rust tests; whether cargo was content."""
    command = [os.environ.get("CARGO", "cargo"), "test", "--locked", "--no-fail-fast", "--", "--show-output"]
    # The one that has the wheel and what its controller needs.
    environment = {**os.environ, "SLUICENET_PYTHON": sys.executable}
    shown = True
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            text = line.rstrip("\n")
            if found := RESULT.match(text):
                count.passed += int(found[1])
                count.failed += int(found[2])
                count.ignored += int(found[3])
            # What tests that passed have printed is nobody's business, but for what they say they skipped.
            if text == "successes:":
                shown = False
            elif text == "failures:" or text.startswith(("test result:", "running ")):
                shown = True
            if SKIPPED.match(text):
                count.remark(text)
            if shown:
                print(text, flush=True)
    return process.returncode == 0


def python(count: Count) -> bool:
    """The Python tests; whether pytest was content."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            "python/tests",
        ]
        done = subprocess.run([*command, "-c", "python/pyproject.toml", "--rootdir=python"], cwd=ROOT, check=False)
        if not report.exists():
            return False
        for case in ElementTree.parse(report).iter("testcase"):
            if (skipped := case.find("skipped")) is not None:
                count.ignored += 1
                count.remark(f"SKIPPED: {case.get('name')}: {skipped.get('message')}")
            elif case.find("failure") is not None or case.find("error") is not None:
                count.failed += 1
            else:
                count.passed += 1
    return done.returncode == 0


def main() -> None:
    """Runs all, counts all."""
    start = time.monotonic()
    count = Count()
    # Both in any case: one report of everything that is wrong.
    content = [rust(count), python(count)]
    if count.remarks:
        print("\nnot everything could be checked here:")
        for remark in count.remarks:
            print(f"  {remark}")
    verdict = "ok" if all(content) and count.failed == 0 else "FAILED"
    print(
        f"\ntest result: {verdict}. {count.passed} passed; {count.failed} failed; {count.ignored} ignored; 0 measured; "
        f"0 filtered out; finished in {time.monotonic() - start:.2f}s"
    )
    sys.exit(verdict != "ok")


if __name__ == "__main__":
    main()
