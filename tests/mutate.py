#!/usr/bin/env python3
"""Breaks one line of a header at a time and reports which of these mutants the tests miss.

    tests/mutate.py include/evenkeel/moments.hpp --tests tests/core/moments_test.cpp
    tests/mutate.py include/evenkeel/norms/l2_norm.hpp --tests tests/norms/l2_norm_test.cpp --most 40 --minutes 20

A mutant changes a sign, an index, a comparison or a constant, or leaves out a term or a statement. Each is compiled in a copy
of include/, with the named test files, as build/dev compiles them (configure and build that first), and run. It is killed
where a test fails or hangs, stillborn where it does not compile, and a survivor where all tests pass. Survivors are printed
as differences; the exit status is 1 where fewer than --least of the mutants that compile are killed.
"""

import argparse
import json
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (kind, what is matched, what stands in its place); of each match in a line one mutant.
RULES = [
    ("sign", r"(?<=[\w)\]]) \+ (?=[\w(-])", " - "),
    ("sign", r"(?<=[\w)\]]) - (?=[\w(])", " + "),
    ("sign", r" \+= ", " -= "),
    ("sign", r" -= ", " += "),
    ("sign", r"(?<=[(=,:?] )-(?=[a-z(])", ""),
    ("sign", r"(?<=return )-(?=[a-z(])", ""),
    ("factor", r"(?<=[\w)\]]) \* (?=[\w(])", " / "),
    ("factor", r"(?<=[\w)\]]) / (?=[\w(])", " * "),
    ("factor", r" \*= ", " /= "),
    ("index", r"(?<=\w)\[([a-z]\w*)\]", r"[\1 + 1]"),
    ("index", r"(?<=\w)\[([0-9])\]", r"[\1 ^ 1]"),
    ("comparison", r" < (?=[\w(-])(?!.*>)", " <= "),
    ("comparison", r" <= ", " < "),
    ("comparison", r" > (?=[\w(-])(?<!template)", " >= "),
    ("comparison", r" >= ", " > "),
    ("comparison", r" == ", " != "),
    ("comparison", r" != ", " == "),
    ("comparison", r" && ", " || "),
    ("comparison", r" \|\| ", " && "),
    ("constant", r"(?<![\w.<\"])([0-9]+)(?![\w.\">])", lambda m: str(int(m.group(1)) + 1)),
    ("constant", r"(?<![\w.])([0-9]+\.[0-9]+)(?=f?\b)", lambda m: f"{float(m.group(1)) * 1.5:.6g}".ljust(3, "0")),
    ("constant", r"(?<![\w.])([0-9]+e-?[0-9]+)(?=f?\b)", lambda m: f"{float(m.group(1)) * 2:g}"),
    ("constant", r"\btrue\b", "false"),
    ("constant", r"\bfalse\b", "true"),
    ("missing term", r" [+-] [\w.]+(\[[^\]]*\]|\([^()]*\))?(?=[;,)])", ""),
    ("missing term", r" \* [\w.]+(\[[^\]]*\]|\([^()]*\))?(?=[;,) ])", ""),
    ("missing statement", r"^(\s*)(?!return|using|const|constexpr|static|auto|if|for|else|template|struct|class)"
                          r"[\w.>\[\]()-]+( [-+*/]?= |\().*;$", r"\1;"),
]
SKIPPED = re.compile(r"^\s*(//|#|/\*|template|using|static_assert|requires|namespace|inline namespace|throw|\"|EVENKEEL_MATH)"
                     r"|static constexpr bool|throw_shape_error|operator")


def mutants_of(path):
    """Every (line number, kind, new line) of the file."""
    found = []
    for number, line in enumerate(path.read_text().split("\n")):
        if SKIPPED.search(line):
            continue
        code, _, comment = line.partition("  //")
        for kind, pattern, replacement in RULES:
            for match in re.finditer(pattern, code):
                if code[: match.start()].count('"') % 2:  # inside of a string
                    continue
                new = code[: match.start()] + match.expand(replacement) if isinstance(replacement, str) else \
                    code[: match.start()] + replacement(match)
                new += code[match.end():]
                if new != code:
                    found.append((number, kind, new))
    return found


def commands_of(build, tests, include):
    """The compile command of each test file, its objects and its include/ being elsewhere."""
    database = json.loads((build / "compile_commands.json").read_text())
    commands = {}
    for entry in database:
        source = pathlib.Path(entry["file"])
        if source not in tests or source in commands:
            continue
        words = shlex.split(entry["command"])
        while not re.search(r"(c\+\+|g\+\+|clang\+\+)[-0-9.]*$", words[0]):  # what launches the compiler
            words = words[1:]
        words = [f"-I{include}" if word == f"-I{ROOT / 'include'}" else word for word in words]
        output = words.index("-o")
        commands[source] = (words[:output] + words[output + 2:], pathlib.Path(entry["directory"]))
    missing = [str(test) for test in tests if test not in commands]
    if missing:
        sys.exit(f"tests/mutate.py: {build} does not compile {', '.join(missing)}")
    return commands


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header", type=pathlib.Path, nargs="+")
    parser.add_argument("--tests", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    parser.add_argument("--most", type=int, default=10**9, help="a sample of so many mutants")
    parser.add_argument("--minutes", type=float, default=1e9, help="ends when so much time has passed")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--least", type=float, default=0.95, help="the share of mutants that must be killed")
    arguments = parser.parse_args()

    headers = [path.resolve() for path in arguments.header]
    tests = [path.resolve() for path in arguments.tests]
    mutants = [(header, *mutant) for header in headers for mutant in mutants_of(header)]
    random.Random(arguments.seed).shuffle(mutants)
    counts = {"killed": 0, "survived": 0, "stillborn": 0}
    kinds = {}
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        include = folder / "include"
        shutil.copytree(ROOT / "include", include)
        commands = commands_of(arguments.build, tests, include)
        main_library = arguments.build / "tests" / "libevenkeel_test_main.a"

        def outcome():
            objects = []
            for number, (command, directory) in enumerate(commands.values()):
                objects.append(folder / f"{number}.o")
                if subprocess.run([*command, "-Wno-error", "-w", "-o", objects[-1]], cwd=directory, capture_output=True).returncode:
                    return "stillborn"
            compiler = next(iter(commands.values()))[0][0]
            subprocess.run([compiler, *objects, main_library, "-pthread", "-o", folder / "test"], check=True)
            try:
                passed = subprocess.run([folder / "test"], capture_output=True, timeout=120).returncode == 0
            except subprocess.TimeoutExpired:
                passed = False
            return "survived" if passed else "killed"

        if outcome() != "survived":
            sys.exit("tests/mutate.py: the tests do not pass as they are")
        tried = 0
        for header, number, kind, line in mutants[: arguments.most]:
            if time.monotonic() > end:
                break
            tried += 1
            text = header.read_text().split("\n")
            old, text[number] = text[number], line
            copy = include / header.relative_to(ROOT / "include")
            copy.write_text("\n".join(text))
            result = outcome()
            shutil.copy(header, copy)
            counts[result] += 1
            kinds.setdefault(kind, {"killed": 0, "survived": 0, "stillborn": 0})[result] += 1
            if result == "survived":
                print(f"survived: {header.relative_to(ROOT)}:{number + 1}: {kind}\n  -{old}\n  +{line}", flush=True)
    alive = counts["killed"] + counts["survived"]
    for kind, numbers in sorted(kinds.items()):
        print(f"{kind:18}", ", ".join(f"{value} {name}" for name, value in numbers.items()))
    share = counts["killed"] / alive if alive else 0.0
    print(f"{tried} of {len(mutants)} mutants: {counts['killed']} killed, {counts['survived']} survived, "
          f"{counts['stillborn']} do not compile; {100 * share:.1f}% killed")
    return 0 if share >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
