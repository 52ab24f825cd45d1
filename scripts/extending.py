#!/usr/bin/env python3
"""Applies docs/extending.md and its chapters to one copy of the repository, and runs the tests that they name.

The pages are the source. A comment `<!-- file A to B -->` copies a file. Before a block of Rust or C it says that the
block is that file. A block of `diff` with a line `--- FILE` is applied where its old lines stand, which must be one
place. A chapter in docs/extending/ may add at most LINES_MAX lines in this way. Commands that start with `cargo test`
are run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHAPTERS = DOCS / "extending"
LINES_MAX = 4
COPIED = ["Cargo.toml", "Cargo.lock", "crates", "python", "scenarios"]
BLOCK = re.compile(
    r"(?:<!-- file (?P<source>\S+) to (?P<target>\S+) -->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.S | re.M
)
OPTIMISED = re.compile(r"^\[profile\.dev\.package\.\S+\]\nopt-level = \d\n", re.M)
FILE = re.compile(r"<!-- file (\S+) to (\S+) -->")


def fail(message: str) -> NoReturn:
    """Ends with what is wrong with the page."""
    sys.exit(f"error: docs/extending: {message}")


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
    content = f"\n{content}".replace(f"\n{old}", f"\n{new}")
    # So that the page holds when a reader has added something of his own in the same way.
    if content.count(f"\n{old}") != 1:
        fail(f"this diff applies once only; its old lines must end before the new ones begin:\n{text}")
    path.write_text(content[1:])


def check_code(page: str) -> None:
    """The Rust on the page is that of the files."""
    for block in BLOCK.finditer(page):
        if block["kind"] not in ("rust", "c"):
            continue
        if block["source"] is None:
            fail("a program of no file")
        if (ROOT / block["source"]).read_text() != block["text"]:
            fail(f"the code on the page is not that of {block['source']}")


def count_lines(page: str) -> int:
    """Lines that the page adds to files that exist."""
    diffs = [block["text"] for block in BLOCK.finditer(page) if block["kind"] == "diff"]
    return len(re.findall(r"^\+", "".join(diffs), re.M))


def merged(commands: list[str]) -> list[list[str]]:
    """Two commands for all: one runs the test programs, one the tests beside the code.

    Both name the same crates, because cargo builds a dependency again for other crates if they need other features.
    """
    crates, programs, units = [], [], []
    for command in commands:
        match = re.fullmatch(r"cargo test -p (\S+) (?:--lib (\S+)|--test (\S+))", command)
        if match is None:
            fail(f"neither `--lib FILTER` nor `--test NAME`: {command}")
        crates.append(f"-p={match[1]}")
        units += [match[2]] if match[2] else []
        programs += [f"--test={match[3]}"] if match[3] else []
    cargo = ["cargo", "test", "--locked", *dict.fromkeys(crates)]
    return [[*cargo, *dict.fromkeys(programs)], [*cargo, "--lib", "--", *units]]


def make_copy(pages: list[str], copy: Path) -> None:
    """The repository as the pages leave it."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for entry in COPIED:
        source = ROOT / entry
        ignore = shutil.ignore_patterns("target", "*.so", "__pycache__", ".*")
        shutil.copytree(source, copy / entry, ignore=ignore) if source.is_dir() else shutil.copy2(source, copy)
    # These few tests are short: optimising takes longer than it saves.
    manifest = copy / "Cargo.toml"
    manifest.write_text(OPTIMISED.sub("", manifest.read_text()))
    for page in pages:
        for source, target in FILE.findall(page):
            (copy / target).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / source, copy / target)
        for block in BLOCK.finditer(page):
            if block["kind"] == "diff":
                apply(copy, block["text"])


def main() -> None:
    """Copies, changes, tests."""
    pages = [(DOCS / "extending.md").read_text()]
    for chapter in sorted(CHAPTERS.glob("*.md")):
        pages.append(chapter.read_text())
        lines = count_lines(pages[-1])
        if lines > LINES_MAX:
            fail(f"{chapter.name} adds {lines} lines to other files: at most {LINES_MAX}")
        print(f"docs/extending/{chapter.name}: {lines} lines outside the new file and its test", flush=True)
    commands = [re.findall(r"^cargo test .*$", page, re.M) for page in pages]
    if not all(commands):
        fail("a page without `cargo test`")
    for page in pages:
        check_code(page)
    # Always the same place, so that what was built is still good the next time; but never the repository's own target
    # directory: cargo tells packages apart by their place in the workspace, and would take one's build for the other's.
    place = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "extending"
    make_copy(pages, place / "copy")
    quick = {f"CARGO_PROFILE_{p}_DEBUG": "0" for p in ("DEV", "TEST")}
    environment = {**os.environ, **quick, "CARGO_TARGET_DIR": str(place / "target")}
    programs, units = merged([command for of_page in commands for command in of_page])
    for command in programs, units:
        print(f"+ {' '.join(command)}", flush=True)
        done = subprocess.run(
            command, cwd=place / "copy", env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout, end="", flush=True)
        done.check_returncode()
    # A filter that selects nothing would pass.
    for unit in units[units.index("--") + 1 :]:
        if not re.search(rf"^test .*\b{unit}::.* ok$", done.stdout, re.M):
            fail(f"no test beside the code is called {unit}")
    print("docs/extending: every step does what it says")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(e.returncode)
