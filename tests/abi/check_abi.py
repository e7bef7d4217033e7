# SPDX-License-Identifier: Apache-2.0
"""Compares the interface of libcache with a stored reference: `make check-abi`; `--write` stores a new one.

The interface is what a program was compiled with: exported symbols with their versions, prototypes, sizes and offsets of
the public structures, values of constants. Each is a line of the listing; pycparser reads the header, the compiler tells
the numbers. Where abidiff is installed `make check-abi` also lets it compare the library kept from the first release.

A line that has gone or differs is a break, apart from the growth that libcache.h allows: at the end of a structure that
begins with `uint32_t size`, or inside of `reserved`. A new line is an addition. Both end with status 1; an addition is
right once it is in the reference, which is how it gets there on purpose only.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

FIXED_WIDTH = ["int8_t", "uint8_t", "int32_t", "uint32_t", "int64_t", "uint64_t"]

HOW_TO_ADD = """
How to make an addition:
  - a call: libcache.h, a node of its own release in capi/libcache.map (LIBCACHE_1.1 after LIBCACHE_1.0, which never grows
    after its release), man/NAME.3, man/libcache.3;
  - a field: at the end of a structure that begins with `uint32_t size`, read only if the caller's size covers it and 0
    means what was before; or in the place of `reserved`, which callers set to zero;
  - a constant: a value that no older program gave a meaning;
  - raise CACHE_VERSION_MINOR, say it in CHANGELOG.md, then `make abi-reference` and commit tests/abi/reference.txt.
"""
HOW_TO_BREAK = """
A program that was compiled with an older libcache.h would not work with this library. Undo the change, or add a new call
or field beside the old one. Only a new major version may break: then raise CACHE_VERSION_MAJOR, the soname and the node in
capi/libcache.map, and `make abi-reference`.
"""


def run(*words, text=None):
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_abi.py: {' '.join(map(str, words))} failed:\n{done.stderr}")
    return done.stdout


# ---- reading the header ------------------------------------------------------------------------------------------------
def parse(header):
    """The header's declarations, without those of the system."""
    source = re.sub(r"^#include.*$", "", header, flags=re.M)
    types = "".join(f"typedef int {name};\n" for name in [*FIXED_WIDTH, "size_t"])
    declarations = c_parser.CParser().parse(types + run("gcc", "-E", "-P", "-", text=source)).ext
    return declarations[len(FIXED_WIDTH) + 1:]


def spelled(node):
    return " ".join(c_generator.CGenerator().visit(node).split())


def prototype(declaration):
    """A call as its callers were compiled: without the names of the parameters."""
    for parameter in declaration.type.args.params:
        inner = parameter
        while not isinstance(inner, c_ast.TypeDecl):
            inner = inner.type
        inner.declname = None
    return spelled(declaration)


def structures(declarations):
    """(name, [(field, type as written)]) of each typedef of a struct with a body."""
    for declaration in declarations:
        inner = getattr(getattr(declaration, "type", None), "type", None)
        if isinstance(declaration, c_ast.Typedef) and isinstance(inner, c_ast.Struct) and inner.decls:
            yield declaration.name, [(field.name, re.sub(rf"\b{field.name}\b", "", spelled(field)).strip())
                                     for field in inner.decls]


def constants(declarations, header):
    """Names of enumerators and of the macros that are numbers."""
    for declaration in declarations:
        if isinstance(declaration.type, c_ast.Enum):
            yield from (value.name for value in declaration.type.values.enumerators)
    yield from (name for name in re.findall(r"^#define (CACHE_\w+) \d+u?\b", header, re.M) if "_VERSION_" not in name)


def listed_numbers(header, names, layouts):
    """The compiler's numbers: a line for each constant, structure and field."""
    prints = [f'printf("constant {name} %lld\\n", (long long){name});' for name in names]
    for name, fields in layouts:
        prints.append(f'printf("struct {name} size %zu align %zu\\n", sizeof({name}), _Alignof({name}));')
        prints += [f'printf("field {name}.{field} at %zu size %zu type {words}\\n", offsetof({name}, {field}), '
                   f"sizeof((({name} *)0)->{field}));" for field, words in fields]
    source = f"{header}\n#include <stdio.h>\nint main(void) {{\n" + "\n".join(prints) + "\n}\n"
    with tempfile.TemporaryDirectory(prefix="lca-") as folder:
        run("gcc", "-std=c11", "-x", "c", "-", "-o", f"{folder}/numbers", text=source)
        return run(f"{folder}/numbers").splitlines()


def listed_names(declarations, header):
    """Prototypes, types without a body, and macros that are no numbers."""
    lines = [f"call {prototype(declaration)}" for declaration in declarations
             if isinstance(declaration.type, c_ast.FuncDecl)]
    for declaration in declarations:
        inner = getattr(declaration.type, "type", None)
        if isinstance(declaration, c_ast.Typedef) and not (isinstance(inner, c_ast.Struct) and inner.decls):
            lines.append(f"type {spelled(declaration)}")
    return lines + [f"macro {name}" for name in re.findall(r"^#define (CACHE_\w+_INIT)\b", header, re.M)]


def exported(library):
    """`symbol NAME VERSION` of each, as the dynamic linker sees them."""
    found = re.findall(r"^\w+ [A-Z] (\w+)(@@?\w[\w.]*)?$", run("nm", "-D", "--defined-only", library), re.M)
    return [f"symbol {name} {version.lstrip('@') or 'without a version'}" for name, version in found
            if not name.startswith("LIBCACHE_")]


def version_in(header):
    return ".".join(re.search(rf"^#define CACHE_VERSION_{part} (\d+)$", header, re.M)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


def listing(header_path, library):
    header = Path(header_path).read_text(encoding="utf-8")
    declarations = parse(header)
    soname = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-d", library))[1]
    names, layouts = list(constants(declarations, header)), list(structures(declarations))
    return [f"version {version_in(header)}", f"soname {soname}",
            *sorted(exported(library)), *listed_names(declarations, header),
            *listed_numbers(header, names, layouts)]


# ---- comparing -----------------------------------------------------------------------------------------------------------
def grows(line, now, reference):
    """Whether a line that has gone is growth that old programs do not notice."""
    if match := re.match(r"struct (\w+) size (\d+) align (\d+)$", line):
        return f"field {match[1]}.size at 0 size 4 type uint32_t" in reference and any(
            int(size) >= int(match[2]) for size in re.findall(rf"^struct {match[1]} size (\d+) align {match[3]}$",
                                                              "\n".join(now), re.M))
    if match := re.match(r"field (\w+)\.reserved at (\d+) size (\d+) ", line):
        return fields_in(now, match[1], int(match[2]), int(match[2]) + int(match[3]))
    return False


def fields_in(now, structure, first, last):
    """Whether [first, last) of a structure, reserved before, is covered by fields again and nothing has moved."""
    spans = sorted((int(at), int(at) + int(size)) for at, size in
                   re.findall(rf"^field {structure}\.\w+ at (\d+) size (\d+) ", "\n".join(now), re.M))
    inside = [span for span in spans if first <= span[0] < last]
    return bool(inside) and inside[0][0] == first and inside[-1][1] == last and all(
        before[1] == after[0] for before, after in zip(inside, inside[1:]))


def compare(reference, now):
    """(breaks, additions) as lines for people."""
    gone = [line for line in reference if line not in set(now) and not line.startswith("version ")]
    breaks = [line for line in gone if not grows(line, now, reference)]
    additions = [line for line in now if line not in set(reference) and not line.startswith("version ")]
    return breaks, additions


def node_of(version):
    return "LIBCACHE_" + ".".join(version.split(".")[:2])


def misplaced(reference, now, additions):
    """Additions that are right in themselves, but are not told apart from what was released."""
    before, after = (lines[0].removeprefix("version ") for lines in (reference, now))
    if re.search(rf"^## {re.escape(before)} \(unreleased\)", Path(__file__).parents[2].joinpath(
            "CHANGELOG.md").read_text(encoding="utf-8"), re.M):
        return []  # what nobody has may still change
    wrong = [f"{line}: {node_of(before)} has been released" for line in additions
             if line.startswith("symbol ") and line.endswith(f" {node_of(before)}")]
    if additions and before.split(".")[:2] == after.split(".")[:2]:
        wrong.append(f"the version is still {after}: an addition raises CACHE_VERSION_MINOR")
    return wrong


def write(path, now):
    if path.exists():
        reference = path.read_text(encoding="utf-8").splitlines()
        breaks, additions = compare(reference, now)
        same_major = reference[0].split(".")[0] == now[0].split(".")[0]
        wrong = (breaks if same_major else []) + misplaced(reference, now, additions)
        if wrong:
            return report("The reference stays as it is. These break the interface or are not told apart:", wrong,
                          HOW_TO_BREAK + HOW_TO_ADD)
    path.write_text("\n".join(now) + "\n", encoding="utf-8")
    print(f"{path}: {len(now)} lines")
    return 0


def report(heading, lines, advice):
    print(heading, *[f"    {line}" for line in lines], advice, sep="\n", file=sys.stderr)
    return 1


def check(path, now):
    reference = path.read_text(encoding="utf-8").splitlines()
    breaks, additions = compare(reference, now)
    if breaks:
        return report("The interface is broken. Gone or different:", breaks,
                      "Now instead:\n" + "\n".join(f"    {line}" for line in additions) + "\n" + HOW_TO_BREAK)
    if additions:
        return report("The interface has additions that the reference does not know:",
                      additions + misplaced(reference, now, additions), HOW_TO_ADD)
    print(f"check-abi: {len(reference)} lines of {path.name} hold")
    return 0


def main():
    parser = argparse.ArgumentParser(description="Guards the interface of libcache.")
    parser.add_argument("--header", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--reference", required=True, type=Path)
    parser.add_argument("--write", action="store_true", help="store what is there as the reference")
    options = parser.parse_args()
    now = listing(options.header, options.library)
    return write(options.reference, now) if options.write else check(options.reference, now)


if __name__ == "__main__":
    sys.exit(main())
