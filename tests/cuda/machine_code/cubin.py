"""Kernels of cubins, read without a disassembler.

From sm_75 to sm_120 an instruction is a word of 16 bytes. Its low nine bits name the operation, and the next three say
where its operands lie (register, constant, immediate, uniform register). Bits 73 to 75 of a memory access hold its
width; in a conversion, bits 75 and 76 hold the logarithm of the bytes of its result, 84 and 85 that of its operand.
What is not in OPERATIONS is counted as an instruction and no more.
"""

import collections
import dataclasses
import struct
import subprocess

OPERATIONS = {
    0x180: "LD",  # generic addresses
    0x185: "ST",
    0x181: "LDG",  # global memory
    0x186: "STG",
    0x183: "LDL",  # local memory
    0x187: "STL",
    0x184: "LDS",  # shared memory
    0x188: "STS",
    0x028: "DMUL",  # double arithmetic
    0x029: "DADD",
    0x02A: "DSETP",
    0x02B: "DFMA",
    0x110: "F2F",  # conversions
    0x111: "F2I",
    0x112: "I2F",
}
ACCESSES = {"LD", "ST", "LDG", "STG", "LDL", "STL", "LDS", "STS"}
DOUBLE_OPERATIONS = {"DMUL", "DADD", "DSETP", "DFMA", "F2F.64", "F2I.64", "I2F.64"}
WIDTHS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 64, 6: 128}  # bits of an access: unsigned and signed bytes and halves

INSTRUCTION_BYTES = 16
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
# Attributes of a kernel in section .nv.info: format and number, as one little-endian half.
FRAME_SIZE, REGISTER_COUNT = 0x1104, 0x2F04


@dataclasses.dataclass
class Kernel:
    mangled: str
    counts: collections.Counter  # "LDG.128": loads of that width; "DADD"; "instructions"
    registers: int  # of a thread
    frame: int  # bytes of local memory of a thread: arrays and what registers spill
    name: str = ""  # as C++ writes it

    def count(self, *operations):
        """Instructions of these operations, whatever their width."""
        return sum(n for key, n in self.counts.items() if key in operations or key.split(".")[0] in operations)


def count_instructions(code):
    counts = collections.Counter()
    for at in range(0, len(code), INSTRUCTION_BYTES):
        low, high = struct.unpack_from("<QQ", code, at)
        operation = OPERATIONS.get(low & 0x1FF)
        if operation in ACCESSES:
            width = high >> 9 & 7
            counts[f"{operation}.{WIDTHS.get(width, f'width code {width}')}"] += 1
        elif operation in ("F2F", "F2I", "I2F"):
            from_double = operation != "I2F" and high >> 20 & 3 == 3
            to_double = operation != "F2I" and high >> 11 & 3 == 3
            counts[f"{operation}.{64 if from_double or to_double else 32}"] += 1
        elif operation:
            counts[operation] += 1
    counts["instructions"] = len(code) // INSTRUCTION_BYTES
    return counts


def read_sections(image):
    """(name, section header, bytes) of every section of an ELF image."""
    (offset,) = struct.unpack_from("<Q", image, 40)
    size, number, names_at = struct.unpack_from("<HHH", image, 58)
    headers = [SECTION_HEADER.unpack_from(image, offset + i * size) for i in range(number)]
    names = headers[names_at][4]
    for header in headers:
        start = names + header[0]
        name = image[start : image.index(b"\0", start)].decode()
        kind, at, length = header[1], header[4], header[5]
        no_bits = 8
        yield name, header, b"" if kind == no_bits else image[at : at + length]


def read_symbols(sections):
    """Names of the symbols, by their number."""
    by_name = {name: data for name, _, data in sections}
    table, strings = by_name[".symtab"], by_name[".strtab"]
    entry_bytes = 24
    names = []
    for at in range(0, len(table), entry_bytes):
        (start,) = struct.unpack_from("<I", table, at)
        names.append(strings[start : strings.index(b"\0", start)].decode())
    return names


def read_attributes(info):
    """(attribute, symbol number, value) of section .nv.info, of those that belong to a symbol."""
    with_size = 4  # format of an attribute that is followed by as many bytes as it says
    at = 0
    while at < len(info):
        attribute, size = struct.unpack_from("<HH", info, at)
        at += 4
        if attribute & 0xFF == with_size:
            if size == 8:
                yield attribute, *struct.unpack_from("<II", info, at)
            at += size


def demangle(names):
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def architecture_of(image):
    """90 for sm_90."""
    (flags,) = struct.unpack_from("<I", image, 48)
    return flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF


def kernels_of(image):
    sections = list(read_sections(image))
    symbols = read_symbols(sections)
    facts = {FRAME_SIZE: {}, REGISTER_COUNT: {}}
    for name, _, data in sections:
        if name == ".nv.info":
            for attribute, symbol, value in read_attributes(data):
                if attribute in facts:
                    facts[attribute][symbols[symbol]] = value
    prefix = ".text."
    kernels = []
    for name, _, data in sections:
        if name.startswith(prefix):
            mangled = name[len(prefix) :]
            registers, frame = facts[REGISTER_COUNT][mangled], facts[FRAME_SIZE][mangled]
            kernels.append(Kernel(mangled, count_instructions(data), registers, frame))
    for kernel, name in zip(kernels, demangle([k.mangled for k in kernels])):
        kernel.name = name
    return kernels


@dataclasses.dataclass
class Cubin:
    name: str  # "surface.o, sm_90"
    kernels: list


def read_cubins(path):
    """The Cubins of a file: itself, or those in an object file that nvcc compiled with --no-compress."""
    with open(path, "rb") as file:
        data = file.read()
    elf, cuda = b"\x7fELF\x02", 190
    cubins = []
    at = data.find(elf)
    while at >= 0:
        (machine,) = struct.unpack_from("<H", data, at + 18)
        if machine == cuda:
            image = data[at:]
            cubins.append(Cubin(f"{path}, sm_{architecture_of(image)}", kernels_of(image)))
        at = data.find(elf, at + 1)
    return cubins
