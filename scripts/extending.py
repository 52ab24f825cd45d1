#!/usr/bin/env python3
"""Does what docs/extending.md says, in a copy of the repository, and runs the tests it names.

The page is the source: a comment `<!-- file A to B -->` copies a file, and before a block of Rust says that the block
is that file; a block of `diff` with a line `--- FILE` is applied where its old lines stand, which must be one place;
of the commands, those that start with `cargo test` are run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "extending.md"
COPIED = ["Cargo.toml", "Cargo.lock", "crates", "python", "scenarios"]
BLOCK = re.compile(
    r"(?:<!-- file (?P<source>\S+) to (?P<target>\S+) -->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.S | re.M
)
FILE = re.compile(r"<!-- file (\S+) to (\S+) -->")


def fail(message: str) -> NoReturn:
    """Ends with what is wrong with the page."""
    sys.exit(f"error: docs/extending.md: {message}")


def apply(copy: Path, text: str) -> None:
    """Applies a block of changes to the file it names."""
    head, *lines = text.splitlines()
    if not head.startswith("--- "):
        fail(f"a diff that names no file:\n{text}")
    path = copy / head.removeprefix("--- ")
    old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", "-"))
    new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", "+"))
    content = path.read_text()
    # Whole lines: an old line must not be found in the middle of another.
    count = f"\n{content}".count(f"\n{old}")
    if count != 1:
        fail(f"these lines stand {count} times in {head.removeprefix('--- ')}, not once:\n{old}")
    path.write_text(f"\n{content}".replace(f"\n{old}", f"\n{new}")[1:])


def check_code(page: str) -> None:
    """The Rust on the page is that of the files."""
    for block in BLOCK.finditer(page):
        if block["kind"] != "rust":
            continue
        if block["source"] is None:
            fail("Rust of no file")
        if (ROOT / block["source"]).read_text() != block["text"]:
            fail(f"the code on the page is not that of {block['source']}")


def make_copy(page: str, copy: Path) -> None:
    """The repository as the page leaves it."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for entry in COPIED:
        source = ROOT / entry
        ignore = shutil.ignore_patterns("target", "*.so", "__pycache__", ".*")
        shutil.copytree(source, copy / entry, ignore=ignore) if source.is_dir() else shutil.copy2(source, copy)
    for source, target in FILE.findall(page):
        (copy / target).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / source, copy / target)
    for block in BLOCK.finditer(page):
        if block["kind"] == "diff":
            apply(copy, block["text"])


def main() -> None:
    """Copies, changes, tests."""
    page = PAGE.read_text()
    commands = re.findall(r"^cargo test .*$", page, re.M)
    if not commands:
        fail("no `cargo test` to run")
    check_code(page)
    # Always the same place, so that what was built is still good the next time; but never the repository's own target
    # directory: cargo tells packages apart by their place in the workspace, and would take one's build for the other's.
    place = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "extending"
    make_copy(page, place / "copy")
    quick = {f"CARGO_PROFILE_{p}_{k}": "0" for p in ("DEV", "TEST") for k in ("OPT_LEVEL", "DEBUG")}
    environment = {**os.environ, **quick, "CARGO_TARGET_DIR": str(place / "target")}
    for command in commands:
        print(f"+ {command}", flush=True)
        subprocess.run([*command.split(), "--locked"], cwd=place / "copy", env=environment, check=True)
    print("docs/extending.md: every step does what it says")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(e.returncode)
