"""Times PyTorch's norms on a GPU in the way of bench/cuda_norms.cu and prints the same lines of CSV.

    torch_cuda_norms.py ROWSxFEATURES...      shapes; torch.compile is timed on those named with a trailing c: 16384x4096c

Buffers rotate over more memory than the L2 cache holds, the calls of one turn are a CUDA graph (so Python's own time is
left out), and the figure is the median of the turns, divided by the calls.
"""

import statistics
import sys

try:
    import torch
except ImportError:
    print("# PyTorch is not installed: no peer")
    sys.exit()

CACHE_BYTES = 256 << 20
REPEATS = 21


def microseconds(calls):
    """Median time of one call of the list, which is run as one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPEATS):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / len(calls))
    return statistics.median(times)


def report(who, op, rows, features, tensors, time):
    gigabytes = tensors * rows * features * 2 / time * 1e-3
    print(f"{who},{op},bfloat16,{rows},{features},{time:.2f},{gigabytes:.0f}", flush=True)


def forward_calls(function, sets):
    return [lambda s=s: function(s["x"]) for s in sets]


def backward_calls(function, sets):
    """The backward alone: each set has a graph of its own, kept for all turns."""
    calls = []
    for s in sets:
        x = s["x"].detach().requires_grad_()
        y = function(x)
        calls.append(lambda y=y, x=x, dy=s["dy"]: torch.autograd.grad(y, [x, *function.parameters], dy, retain_graph=True))
    return calls


class Norm:
    def __init__(self, function, parameters):
        self.function, self.parameters = function, parameters

    def __call__(self, x):
        return self.function(x)


def time_shape(rows, features, compiled):
    device, kind = "cuda", torch.bfloat16
    count = max(2, min(64, CACHE_BYTES // (4 * rows * features) + 1))
    sets = [
        {name: torch.randn(rows, features, device=device, dtype=kind) for name in ("x", "dy")} for _ in range(count)
    ]
    weight = torch.randn(features, device=device, dtype=kind, requires_grad=True)
    bias = torch.randn(features, device=device, dtype=kind, requires_grad=True)
    functional = torch.nn.functional
    norms = {
        "rms_norm": Norm(lambda x: functional.rms_norm(x, (features,), weight, 1e-6), [weight]),
        "layer_norm": Norm(lambda x: functional.layer_norm(x, (features,), weight, bias, 1e-5), [weight, bias]),
    }
    for name, norm in norms.items():
        variants = [("torch-eager", norm)]
        if compiled:
            variants.append(("torch-compile", Norm(torch.compile(norm.function), norm.parameters)))
        for who, function in variants:
            for op, tensors, calls in (
                (name, 2, lambda: forward_calls(function, sets)),
                (name + "_backward", 3, lambda: backward_calls(function, sets)),
            ):
                try:
                    report(who, op, rows, features, tensors, microseconds(calls()))
                except Exception as error:  # a peer that fails is a line of the table, not the end of it
                    print(f"# {who} {op} {rows}x{features}: {type(error).__name__}: {str(error)[:120]}", flush=True)


def main():
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}")
    if not torch.cuda.is_available():
        return
    for shape in sys.argv[1:]:
        compiled = shape.endswith("c")
        rows, features = (int(n) for n in shape.rstrip("c").split("x"))
        time_shape(rows, features, compiled)


if __name__ == "__main__":
    main()
