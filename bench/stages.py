"""Instructions by stage of a packet's way, from a file of callgrind with `--dump-instr=yes`."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "crates/profile/src/stages.rs"
OUTSIDE = "outside: columns, hashes, report, libraries"


def costs(text: str, program: Path) -> tuple[Counter[int], int]:
    """The instructions at each address of the program, and those in other objects."""
    names: dict[str, str] = {}
    own: Counter[int] = Counter()
    outside = address = 0
    is_own = is_call = False
    for line in text.splitlines():
        if match := re.match(r"ob=(\(\d+\))(?: (.*))?", line):
            name = names.setdefault(match[1], match[2] or "")
            is_own = name == f"{program}"
        elif match := re.match(r"cob=(\(\d+\)) (.*)", line):
            names.setdefault(match[1], match[2])
        elif line.startswith("calls="):
            is_call = True
        elif match := re.match(r"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)$", line):
            at = match[1]
            if at.startswith("0x"):
                address = int(at, 16)
            elif at != "*":
                address += int(at)
            # The line after a call has the cost of what is called, which is counted there.
            if is_call:
                is_call = False
            elif is_own:
                own[address] += int(match[2])
            else:
                outside += int(match[2])
    return own, outside


def files(program: Path, addresses: list[int]) -> Iterator[list[str]]:
    """The source files of the functions at each address, those of inlined functions first."""
    asked = "\n".join(map(hex, addresses))
    command = ["addr2line", "--addresses", "--inlines", "--exe", f"{program}"]
    told = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    for of_address in re.split(r"^0x[0-9a-f]+\n", told, flags=re.MULTILINE)[1:]:
        yield [line.rsplit(":", 1)[0] for line in of_address.splitlines()]


def table() -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """How each source folder counts and for which stage, and the stages' names: those of `run --profile`."""
    text = TABLE.read_text()
    sources = re.findall(r'\("([^"]+)", (Own|Callee|Caller)\(Stage::(\w+)\)\)', text)
    names = re.findall(r'Stage::(\w+) => "([^"]+)"', text)
    return {prefix: (counts, stage) for prefix, counts, stage in sources}, dict(names)


def stage_of(sources: dict[str, tuple[str, str]], chain: list[str]) -> str | None:
    """The stage of an instruction, by the rules of `crates/profile/src/stages.rs`."""
    found: dict[str, str] = {}
    for file in chain:
        below = file.rpartition("crates/")[2]
        prefixes = [prefix for prefix in sources if "crates/" in file and below.startswith(prefix)]
        if prefixes:
            counts, stage = sources[max(prefixes, key=len)]
            if counts == "Callee":
                return stage
            found.setdefault(counts, stage)
    return found.get("Own") or found.get("Caller")


def by_stage(text: str, program: Path) -> Counter[str]:
    """The instructions of each stage."""
    own, outside = costs(text, program)
    sources, names = table()
    stages = Counter({OUTSIDE: outside})
    for chain, cost in zip(files(program, list(own)), own.values(), strict=True):
        stage = stage_of(sources, chain)
        stages[names[stage] if stage else OUTSIDE] += cost
    return stages
