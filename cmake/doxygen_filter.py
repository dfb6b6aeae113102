#!/usr/bin/env python3
"""What doxygen reads in place of a header (cmake/Doxyfile).

    doxygen_filter.py HEADER           to standard output
    doxygen_filter.py FOLDER FOLDER    all headers of the first, to the second

- The inline namespaces of instruction sets are no part of a name.
- A shape at the end of a member's line, `// (rows, features)`, is its description.
- What means the same wherever it stands is explained once, in the glossary below, and not at every member of that name. A
  comment in the header goes before it.
- Members that end in an underscore are nobody's business, also where a friend's convenience has made them public.
"""

import pathlib
import re
import sys

GLOSSARY = {
    # Types.
    "Scalar": "The type of the values.",
    "Options": "The options of the free function of the same name.",
    "Saved": "What a forward leaves for the backward.",
    "Buffer": "Memory for values of type T.",
    # Layers and what they hold.
    "weight": "The weight, its gradient and its name.",
    "bias": "The bias, its gradient and its name; of size 0 where there is none.",
    "scale": "What the branch, the rows or the features are multiplied by.",
    "alpha": "The scalar alpha, its gradient and its name.",
    "shift": "The scalar that is added before the curve; in moments, a value near the mean that is subtracted first.",
    "gain": "The factor on the standard deviation or on the weight.",
    "gamma": "The learned factor.",
    "g": "The lengths of the units.",
    "v": "The directions of the units; in spectral norms the right singular vector.",
    "u": "The left singular vector, (rows), to be kept in a checkpoint as v is.",
    "saved": "What the last forward left for the backward.",
    "q_saved": "What the last forward left of the queries.",
    "k_saved": "What the last forward left of the keys.",
    "q_norm": "The norm of the queries.",
    "k_norm": "The norm of the keys.",
    "norm": "The norm of the block.",
    "output_norm": "The norm of what the branch or the block gives.",
    "sublayer": "The branch f: anything with forward, backward and for_each_parameter.",
    "shortcut": "What the stream goes through beside the branch.",
    "stream_scale": "What the stream is multiplied by.",
    "features": "How many features there are: the length of the normalized axes together.",
    "channels": "How many channels there are.",
    "samples": "How many samples there are.",
    "groups": "How many groups there are.",
    "units": "How many units there are.",
    "rows": "How many rows there are.",
    "heads": "How the heads are counted.",
    "size": "How many values there are.",
    "count": "How many values were counted.",
    "rank": "The number of this rank.",
    "wait": "Ends the exchange.",
    "Request": "An exchange under way: made by its start, moved, never copied.",
    "start_all_gather": "Starts an all_gather, whose memory is the exchange's until it has ended.",
    "start_all_reduce_sum": "Starts an all_reduce_sum, whose memory is the exchange's until it has ended.",
    "options": "The options the object was made with.",
    "mode": "Which of the ways was chosen.",
    "for_each_parameter": "Calls f(ParameterRef) for every parameter that the object has.",
    "forward": "The forward, as the class says.",
    "backward": "The backward: dx is written, gradients of parameters are accumulated.",
    "state": "What a checkpoint needs.",
    "restore": "Takes up what state() gave.",
    "reserve": "Makes room, so that no call allocates.",
    "reserve_join": "Makes room, so that no call allocates.",
    "reset": "Starts anew.",
    "update": "Takes the statistics of one more batch in.",
    "name": "Its name, as torch calls it.",
    # What joins stream and branch: residual_block.hpp.
    "join": "y = the sum of stream x and branch f, or a norm of it.",
    "pull": "The gradient on its way back: of the branch, or of the argument of an activation.",
    "merge": "dx = g + the gradient that comes through the stream.",
    "keeps_branch": "Whether pull reads f; if not, f is y itself.",
    "passes_gradient": "Whether df is dy itself; then pull is not called.",
    "adds_to_stream": "Whether the gradient through the stream is dy.",
    # Statistics.
    "mean": "The mean.",
    "rstd": "1/sqrt(variance + eps), or 1/sqrt(mean square + eps).",
    "var": "The variance.",
    "variance": "The variance, or which of the two is tracked.",
    "sigma": "The standard deviation, or the largest singular value.",
    "delta": "What is added to shift to give the mean.",
    "M2": "The sum of squared distances from the mean.",
    "moments_data": "The moments of all sets, in the device's memory.",
    "wide_moments": "The moments of a set, in double.",
    "set_moments": "Puts moments in place of what was measured.",
    "statistics": "The statistics, in the device's memory.",
    "known": "Scratch.",
    "sums": "Scratch.",
    "call": "Options and shape of the forward.",
    "begin": "Called by a forward before it writes.",
    "reserve_for": "Makes room, so that no call allocates.",
    "field": "One of the kept numbers of a unit.",
    "divisor": "What the weight is divided by.",
    "num_batches_tracked": "How many batches were taken in.",
    "indicator": "1 where a feature counts, (features).",
    "gate_overwritten": "Whether the forward's y stood in its gate.",
    "order": "Whether the norm or the gate comes first.",
    "valid": "Whether the momentum is one that can be used.",
    "momentum": "How much of the old and how much of the new value is kept.",
    "running": "How running statistics are kept.",
    "rounding": "When the normalized value is rounded to the data's type.",
    # Options of other systems.
    "layer_norm": "Options of LayerNorm.",
    "rms_norm": "Options of RMSNorm.",
    "batch_norm": "Options of BatchNorm.",
    "group_norm": "Options of GroupNorm.",
    "instance_norm": "Options of InstanceNorm.",
    # Memory and devices.
    "data": "Where the values lie, in the device's memory.",
    "value": "The value, or where the values lie, in the device's memory.",
    "gradient": "The gradient, or where its values lie, in the device's memory.",
    "fill": "Sets all values.",
    "copy": "Copies values.",
    "zero_gradient": "Sets the gradient to 0.",
    "ref": "Pointers for an optimizer.",
    "on_host": "Whether the memory is the host's.",
    "stream": "The stream.",
    "facts": "What was read of the device.",
    "is_half_v": "Whether the type is half or bfloat16.",
    "is_none_v": "Whether the type is None.",
    "is_local_v": "Whether the communicator has one rank only.",
    "all_gather": "Gives every rank the values of all, rank by rank.",
    "all_reduce_sum": "Adds up the values of all ranks, on every rank.",
    "none": "There is no such tensor.",
    "serial": "The calling thread.",
    "Index": "Sizes and places: 64 bits.",
    # Views.
    "axis": "The axes, as many as count says.",
    "max_count": "The most axes there can be.",
    "outer": "The extents of the two outer levels.",
    "outer_stride": "The strides of the two outer levels.",
    "length": "How many elements a row has.",
    "stride": "The distance of a row's elements.",
    "inner": "How many rows lie between each other.",
    "inner_stride": "The distance of rows that lie between each other.",
    # Initializers and plans.
    "lower": "The lower bound.",
    "upper": "The upper bound.",
    "in": "The fan-in.",
    "out": "The fan-out.",
    "input": "The input axis or axes.",
    "output": "The output axis or axes.",
    "grouped": "Which axis the groups divide.",
    "out_ratio": "Fan-out over its base.",
    "draw": "The distribution.",
    "spread": "The distribution.",
    "start": "How the tensor starts.",
    "learning_rate": "The factor on the learning rate.",
    "weight_decay": "The factor on the weight decay.",
    "initialize": "Fills a tensor as the plan says for its role.",
    "blocks": "How many blocks a stack has.",
    "block": "The scales of a block.",
    "role": "What the tensor is for.",
    "stack": "Encoder or decoder.",
    "decoder": "The role in the decoder.",
    "word": "The four words of a block.",
    "layer": "Which layer, from 0.",
    "width": "Features of the stream.",
    "base_width": "The width at which the learning rate was found.",
    "base_heads": "The heads at that width.",
    "optimizer": "What the factors are for.",
    "fans_of": "The fans of a tensor of this shape.",
    "constant": "Fills the tensor with one value.",
    "uniform": "Fills the tensor from U(lo, hi).",
    "normal": "Fills the tensor from N(mean, std^2).",
    "clip": "The largest norm of a gradient relative to the norm of its weight.",
    "clipped": "How many units were clipped.",
    "share": "The part of units that were clipped.",
    # Folding.
    "has_offset": "Whether any offset is not 0.",
    "holds_norm_behind": "Whether a norm behind the layer is folded into it.",
    "prepare_next": "Checks, and computes the layer that has the norm before it inside.",
    "prepare_previous": "Checks, and computes the layer that has the norm behind it inside.",
    "apply_next": "Puts in place what prepare_next gave.",
    "apply_previous": "Puts in place what prepare_previous gave.",
    # Tapering.
    "step": "The training step.",
    "rate": "The weight of a new value in the average.",
    "phase": "Warmup, taper or the end.",
    "schedule": "The gate over steps.",
    "gate": "1 while there are norms, 0 when they are gone.",
    "factor": "The fixed scale that takes the norm's place.",
    "calibrated": "Whether the fixed scale is known.",
    "numerator": "The average above the line of the calibration.",
    "denominator": "The average below the line of the calibration.",
    "scale_weight": "The weight of the fixed map.",
    "frozen": "Whether it no longer follows the data.",
    "target": "The scale that is held.",
    "kind": "Which kind.",
    "empty": "Whether nothing was taken in yet.",
    # Probes.
    "trend": "How it goes with the width.",
    "point": "The name of the place.",
    "thresholds": "From where on something is reported.",
    "records": "All records, in the order in which they came.",
    "name_of": "Its name in messages.",
    "text": "The verdict in words.",
    "finite": "Whether all values are finite, or how many are.",
    "nan": "How many NaN there are.",
    "inf": "How many infinities there are.",
    "mean_absolute": "The mean of absolute values.",
    "root_mean_square": "The root of the second moment.",
    "findings": "What was found.",
    "healthy": "Whether nothing was found.",
    "find": "The first finding of this kind, or a null pointer.",
    "condition": "What is wrong.",
    "unmeasured": "Stands where nothing was measured.",
    "radial": "See RadialStatistics.",
    "queries": "Heads of queries.",
    "keys": "Heads of keys and values.",
    "A": "The accumulator type.",
}
ACTIVATION = "The gain for this activation."

DECLARATION = re.compile(
    r"^(?:  |    )(?!//|return|if|for|else|using namespace|friend|\}|throw|static_assert|const auto)"
    r"(?:EVENKEEL_HD |EVENKEEL_HOST |inline |static |constexpr |explicit |mutable |virtual |\[\[[a-z_]+\]\] )*"
    r"(?:using (?P<alias>\w+) =|.*?[\w>&*\]] [&*]?(?P<name>\w+)(?:\[\d\])?(?: =|\{|\(|;|,))")
FREE = re.compile(r"^(?:inline |constexpr |template <> )*(?:using (?P<alias>\w+) =|[\w:<> ,&*]*[\w>] [&*]?(?P<name>\w+)(?:<[^>]*>)?(?: =|\{|\())")
CONSTRUCTOR = re.compile(r"^  (?:explicit |constexpr |EVENKEEL_HD )*(?P<name>[A-Z]\w+)\(")


SEVERAL = re.compile(r"^(  (?:static constexpr )?(?:bool|A|std::int64_t|double|Index|EmaState) )(\w+(?: = [^,;\n]+)?"
                     r"(?:, \w+(?: = [^,;\n]+)?)+);(.*)$", re.M)


def split(match):
    """Members that share a line: each one gets its own, with the comment of all."""
    kind, names, comment = match.groups()
    return "\n".join(f"{kind}{name};{comment}" for name in names.split(", "))


def documented(lines, at):
    """Whether the declaration that begins in line `at` has a comment of its own."""
    return "///<" in lines[at] or (at > 0 and lines[at - 1].lstrip().startswith("///"))


def filtered(text, path):
    """The text of the header at `path`."""
    text = re.sub(r"^inline namespace EVENKEEL_ISA \{\n", "\n", text, flags=re.M)
    text = re.sub(r"^\}  // namespace EVENKEEL_ISA\n", "\n", text, flags=re.M)
    text = text.replace("::inline EVENKEEL_ISA", "")
    text = SEVERAL.sub(split, text)
    lines = text.split("\n")
    output = []
    start = None  # of a declaration whose template line came first
    for number, line in enumerate(lines):
        if re.match(r"^  [^/}].*\b\w+_(?: = [^;]*|\{[^;]*\})?;(\s*//.*)?$", line) and not re.match(r"^  (return|using)", line):
            output.append("")  # a private part
            continue
        line = re.sub(r"^(  [^ ].*;)(\s+)// (?!NOLINT)", r"\1\2///< ", line)
        lines[number] = line
        output.append(line)
        if re.match(r"^ *(template <|EVENKEEL_MATH template <)", line) or (start is not None and re.match(r"^ *(requires|class|>)", line)):
            start = number if start is None else start
            if not re.search(r"[;{(]", line.split("template <")[-1]):
                continue
        first = number if start is None else start
        start = None
        if documented(lines, first) or "///<" in line:
            continue
        match = DECLARATION.match(line) or FREE.match(line)
        name = match and (match.group("alias") or match.group("name"))
        description = GLOSSARY.get(name)
        constructor = CONSTRUCTOR.match(line)
        if constructor and not line.startswith("  ///"):
            description = "Made as the class says."
        elif re.search(r"\) -> \w+<.*>;$", line):
            description = "Deduces the type of the values."
        elif "operator=(" in line:
            description = "Assignment."
        elif name and path.endswith("init/gains.hpp"):
            description = ACTIVATION
        if description:
            output.insert(len(output) - (number - first) - 1, f"{re.match(' *', line).group()}/// {description}")
    return "\n".join(output)


def main():
    source = pathlib.Path(sys.argv[1])
    if len(sys.argv) == 2:
        sys.stdout.write(filtered(source.read_text(encoding="utf-8"), str(source)))
        return
    for path in source.rglob("*"):
        if path.suffix in (".hpp", ".cuh"):
            target = pathlib.Path(sys.argv[2]) / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(filtered(path.read_text(encoding="utf-8"), str(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
