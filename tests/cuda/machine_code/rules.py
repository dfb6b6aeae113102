"""What the machine code of evenkeel's kernels must be like.

Every kernel: no local memory, no access through generic addresses, no double arithmetic unless its types are double.
Blocks of a cluster alone write through generic addresses, a sum each into the shared memory of the others.

A row kernel: its registers leave room for as many blocks as it was compiled for, which the launch plan counts on.

A row kernel whose accesses are full, V = 16 bytes / the widest element of its tensors: no load or store of global
memory moves 8, 16 or 64 bits, but for single values of the accumulator's type, and those of 128 bits are exactly

    loads  = packs * (words of the inputs + reads * words of the parameters) + (words of the inputs, for the start)
    stores = packs * (words of the outputs + words of the sums over rows)

where V elements of T are sizeof(T) * V / 16 words. Each pack of an input is read once: the values stay in registers
from the sums to the outputs. Parameters are read once, with the outputs, or, where the sums need them too, twice; once
also where they are few enough to stay in registers over the rows. The start is the row's first pack, from which the
threads of a block take the shift; lanes of a warp pass it on without a load. Sums over rows leave a block as words,
one row of them each; lanes add theirs up in shared memory and write them one by one.
"""

import dataclasses
import re

REGISTERS = 65536  # of a multiprocessor
REGISTER_STEP = 8  # registers of a thread are given out in eights
SCOPES = ["lanes", "block", "cluster"]
LANES, CLUSTER = "lanes", "cluster"

# Kernels that use local memory: the library's sine and cosine reduce large angles there.
USES_LOCAL_MEMORY = "random_kernel<"
# Kernels between two passes over channels and behind one over rows, which see a few values of each, and those of
# weights, whose maths are in double whatever the weights are: what adds up to sums, what is written, and a copy. Sums
# over rows or elements of which there are few, and random numbers.
COMPUTES_IN_DOUBLE = re.compile(
    r"channel_gradient_kernel<|row_means_kernel<|unit_\w*kernel<|normalize_kernel|value_kernel<"
    r"|(gate_sums|kept_sums|quantile)_kernel<"
    r"|\b(PartSums|WeightCopy|ClippedWrite|(WeightNorm|Standardized|Spectral)(Gradient|Tangent)?Write)\b"
)

BYTES = {"double": 8, "float": 4, "__nv_bfloat16": 2, "__half": 2}

@dataclasses.dataclass
class Math:
    """What a math's functions sum and read."""

    sums: int  # over a row
    start_reads_inputs: bool
    sums_read_parameters: bool


# The first that stands in a math's name counts: some wrap another one.
MATHS = {
    "GatedForward": Math(sums=1, start_reads_inputs=False, sums_read_parameters=False),
    "GatedBackward": Math(sums=1, start_reads_inputs=False, sums_read_parameters=True),
    "StandardizeForward": Math(sums=2, start_reads_inputs=True, sums_read_parameters=False),
    "StandardizeBackward": Math(sums=2, start_reads_inputs=False, sums_read_parameters=True),
    "RmsForward": Math(sums=1, start_reads_inputs=False, sums_read_parameters=False),
    "RmsBackward": Math(sums=1, start_reads_inputs=False, sums_read_parameters=True),
}


# Maths that wrap one of these and read or sum less or other things than it.
NOT_COUNTED = re.compile(r"\b(Partial|Masked|RmsCalibration|StandardizeCalibration|Anchor|TaperBackward<RmsBackward)")


def template_arguments(name):
    """["A", "B<C, D>"] of "T<A, B<C, D> >"."""
    start = name.index("<")
    arguments, depth, begin = [], 0, start + 1
    for at in range(start, len(name)):
        if name[at] == "<":
            depth += 1
        elif name[at] == ">":
            depth -= 1
        if (name[at] == "," and depth == 1) or depth == 0:
            argument = name[begin:at].strip()
            if argument:
                arguments.append(argument)
            begin = at + 1
        if depth == 0:
            return arguments
    raise ValueError(f"no end of the template arguments of {name}")


def scalar_of(type_name):
    """Bytes of an element of DeviceRows<T>, OffsetParameter<T, A> or T*; 0 where that is no row of elements."""
    if type_name == "None" or type_name.startswith("OneValue"):
        return 0
    words = re.split(r"[<>*, ]+", type_name)
    return next(BYTES[word] for word in words if word in BYTES)


@dataclasses.dataclass
class RowKernel:
    scope: str
    vector: int
    packs: int
    bound: int
    blocks: int  # that a multiprocessor must have room for
    math: str  # name of the norm's math, without what wraps it
    accumulator: int  # bytes
    inputs: list  # bytes of an element of each
    parameters: list
    outputs: list
    sums_over_rows: int
    known: str  # type of what the rows bring along

    @property
    def full(self):
        """Elements of the widest access that all its tensors allow."""
        return 16 // max(self.inputs + self.outputs)

    @property
    def holds_parameters(self):
        """See holds_parameters in row_kernels.cuh."""
        return self.packs <= 2 and self.packs * self.vector * sum(self.parameters) <= 64

    def words(self, scalars):
        return sum(scalar * self.vector // 16 for scalar in scalars)

    @property
    def loads(self):
        math = MATHS[self.math]
        reads = 2 if math.sums_read_parameters and not self.holds_parameters else 1
        loads = self.packs * (self.words(self.inputs) + reads * self.words(self.parameters))
        if math.start_reads_inputs and self.scope != LANES:
            loads += self.words(self.inputs)
        return loads

    @property
    def stores(self):
        sums = [] if self.scope == LANES else [self.accumulator] * self.sums_over_rows
        return self.packs * (self.words(self.outputs) + self.words(sums))


def parse_row_kernel(name):
    """The RowKernel of a demangled name, or None."""
    name = name.replace("evenkeel::detail::", "").replace("evenkeel::", "")
    if not name.startswith("void row_kernel<"):
        return None
    pass_name, scope, vector, packs, bound, blocks = template_arguments(name)
    math, inputs, parameters, outputs, known, _ = template_arguments(pass_name)
    accumulator = "double" if "<double" in math else "float"
    wrapped = next((m for m in MATHS if re.search(rf"\b{m}<", math)), math.split("<")[0])
    if NOT_COUNTED.search(math):
        wrapped = math.split("<")[0]
    terms = re.search(r"TaperTerms<([^>]*)>", math) or re.search(r"ParameterTerms<([^>]*)>", math)
    element = lambda list_name: [b for b in map(scalar_of, template_arguments(list_name)) if b]
    return RowKernel(
        scope=SCOPES[int(scope.split(")")[-1])],
        vector=int(vector),
        packs=int(packs),
        bound=int(bound),
        blocks=int(blocks),
        math=wrapped,
        accumulator=BYTES[accumulator],
        inputs=element(inputs),
        parameters=element(parameters),
        outputs=element(outputs),
        sums_over_rows=terms[1].count("true") if terms else 0,
        known=known,
    )
