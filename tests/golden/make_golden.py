#!/usr/bin/env python3
"""Writes golden.json: what PyTorch (2.4 or newer, CPU) computes for every norm, forward and backward.

    python3 tests/golden/make_golden.py

One case a line:

    op        the operation; the modes of one operation are options
    options   eps, axes, groups, momentum, ...
    shape     of x, as torch counts its axes; all arrays are flat, in that order of axes (the last one fastest)
    inputs    float32 numbers; a narrower type sees them rounded to nearest
    results   for each type that torch computes this in: y, and the gradients of sum(y * dy) ("dx", "dweight", ...)

With "parameters": "float32" in its results a 16-bit type had weight, bias and running statistics of float32, as torch's
autocast has; otherwise all of a case's inputs are of the type. Layout "channels_last" is torch's memory format of x and
dy. The *_steps cases are modules that train: see module_steps.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
WIDE = ("float64", "float32")

cases = []
skipped = []


def rounded(value, digits):
    return float(f"{value:.{digits}g}")


def flat(tensor):
    """Shortest decimals that give the numbers of the tensor's type back, or 9 digits for types below float64."""
    values = tensor.detach().double().contiguous().flatten().tolist()
    digits = 17 if tensor.dtype == torch.float64 else 9
    return [rounded(v, digits) for v in values]


def draw(*shape, mean=0.0, spread=1.0):
    return torch.randn(*shape) * spread + mean


def add(op, shape, inputs, function, options=None, types=tuple(TYPES), layout=None, wide_parameters=(), state=None):
    """Runs function(**inputs) in each type; state(**inputs) names tensors that the forward has changed."""
    case = {"op": op, "options": options or {}, "shape": list(shape)}
    if layout:
        case["layout"] = layout
    case["inputs"] = {name: flat(t) for name, t in inputs.items()}
    case["results"] = {}
    for name in types:
        narrow = name not in WIDE
        tensors = {}
        for key, value in inputs.items():
            dtype = torch.float32 if narrow and key in wide_parameters else TYPES[name]
            tensor = value.to(dtype)
            if layout == "channels_last" and key in ("x", "dy"):
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            tensors[key] = tensor.clone(memory_format=torch.preserve_format)
        dy = tensors.pop("dy")
        constants = ("running_mean", "running_var", "u", "v0")
        leaves = {key: tensor.requires_grad_() for key, tensor in tensors.items() if key not in constants}
        try:
            y = function(**tensors)
            y.backward(dy)
        except (RuntimeError, NotImplementedError) as error:
            skipped.append(f"{op} {name}: {str(error).splitlines()[0]}")
            continue
        result = {"y": flat(y)}
        if narrow and any(key in wide_parameters for key in inputs):
            result["parameters"] = "float32"
        for key, leaf in leaves.items():
            result["d" + key] = flat(leaf.grad)
        for key, value in (state(**tensors) if state else {}).items():
            result[key] = flat(value)
        case["results"][name] = result
    cases.append(case)


def parameters(count, weight=True, bias=True):
    chosen = {}
    if weight:
        chosen["weight"] = draw(count, mean=0.5)
    if bias:
        chosen["bias"] = draw(count)
    return chosen


def running_statistics(running_mean, running_var, **_):
    return {"running_mean": running_mean, "running_var": running_var}


def row_norms():
    for shape, axes in (((3, 7), 1), ((4, 16), 1), ((5, 33), 1), ((2, 6, 5), 1), ((2, 6, 5), 2), ((2, 4, 3, 3), 3)):
        normalized = shape[-axes:]
        for weight, bias in ((True, True), (True, False), (False, False)):
            inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)}
            if weight:
                inputs["weight"] = draw(*normalized)
            if bias:
                inputs["bias"] = draw(*normalized)
            add("layer_norm", shape, inputs,
                lambda x, weight=None, bias=None: F.layer_norm(x, normalized, weight, bias, 1e-5),
                {"eps": 1e-5, "axes": axes})
        for weight in (True, False):
            for eps in (1e-6, None):
                inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)}
                if weight:
                    inputs["weight"] = draw(*normalized)
                add("rms_norm", shape, inputs, lambda x, weight=None: F.rms_norm(x, normalized, weight, eps),
                    {"eps": eps, "axes": axes})


IMAGES = ((5, 3), (4, 16), (2, 6, 5), (2, 4, 3, 3))


def batch_norms():
    for shape in IMAGES:
        channels = shape[1]
        for layout in ("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",):
            for affine in (True, False):
                inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)}
                inputs |= parameters(channels, affine, affine)
                add("batch_norm", shape, inputs,
                    lambda x, weight=None, bias=None: F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5),
                    {"eps": 1e-5}, layout=layout, wide_parameters=("weight", "bias"))
                inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)}
                inputs |= parameters(channels, affine, affine)
                inputs |= {"running_mean": draw(channels), "running_var": draw(channels).square() + 0.25}
                wide = ("weight", "bias", "running_mean", "running_var")
                add("batch_norm_tracking", shape, inputs,
                    lambda x, running_mean, running_var, weight=None, bias=None: F.batch_norm(
                        x, running_mean, running_var, weight, bias, True, 0.1, 1e-5),
                    {"eps": 1e-5, "momentum": 0.1}, layout=layout, wide_parameters=wide,
                    state=running_statistics)
                add("batch_norm_inference", shape, inputs,
                    lambda x, running_mean, running_var, weight=None, bias=None: F.batch_norm(
                        x, running_mean, running_var, weight, bias, False, 0.1, 1e-5),
                    {"eps": 1e-5}, layout=layout, wide_parameters=wide)


def group_norms():
    for shape in ((5, 6), (2, 6, 5), (2, 4, 3, 3)):
        channels = shape[1]
        for groups in sorted({1, 2, channels}):
            if channels // groups == 1 and len(shape) == 2:
                continue  # one value in a group
            for layout in ("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",):
                for affine in (True, False):
                    inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)}
                    inputs |= parameters(channels, affine, affine)
                    add("group_norm", shape, inputs,
                        lambda x, weight=None, bias=None: F.group_norm(x, groups, weight, bias, 1e-5),
                        {"eps": 1e-5, "groups": groups}, layout=layout)


def instance_norms():
    for shape in ((2, 6, 5), (2, 4, 3, 3)):
        channels = shape[1]
        for affine in (True, False):
            inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)} | parameters(channels, affine, affine)
            add("instance_norm", shape, inputs,
                lambda x, weight=None, bias=None: F.instance_norm(x, None, None, weight, bias, True, 0.1, 1e-5),
                {"eps": 1e-5})
            inputs = {"x": draw(*shape, mean=0.5, spread=2), "dy": draw(*shape)} | parameters(channels, affine, affine)
            inputs |= {"running_mean": draw(channels), "running_var": draw(channels).square() + 0.25}
            wide = ("weight", "bias", "running_mean", "running_var")
            add("instance_norm_tracking", shape, inputs,
                lambda x, running_mean, running_var, weight=None, bias=None: F.instance_norm(
                    x, running_mean, running_var, weight, bias, True, 0.1, 1e-5),
                {"eps": 1e-5, "momentum": 0.1}, wide_parameters=wide, state=running_statistics)
            add("instance_norm_inference", shape, inputs,
                lambda x, running_mean, running_var, weight=None, bias=None: F.instance_norm(
                    x, running_mean, running_var, weight, bias, False, 0.1, 1e-5),
                {"eps": 1e-5}, wide_parameters=wide)


def weight_norms():
    # x is the direction v, weight the length g.
    for shape in ((3, 7), (4, 6, 5), (4, 3, 3, 3)):
        for dim in (0, 1, None):
            lengths = 1 if dim is None else shape[dim]
            broadcast = [1] * len(shape)
            if dim is not None:
                broadcast[dim] = lengths

            def weight_norm(x, weight):
                if dim is None:
                    return x * (weight / torch.linalg.vector_norm(x))
                return torch._weight_norm(x, weight.reshape(broadcast), dim)

            inputs = {"x": draw(*shape, spread=0.5), "dy": draw(*shape), "weight": draw(lengths, mean=1)}
            add("weight_norm", shape, inputs, weight_norm, {"dim": dim})

    for shape in ((3, 7), (16, 4), (4, 3, 3, 3)):
        flat_weight = draw(*shape, spread=0.5)
        for train in (True, False):
            matrix = flat_weight.reshape(shape[0], -1)
            u = F.normalize(draw(shape[0]), dim=0)
            v = F.normalize(matrix.T @ u, dim=0)

            def spectral_norm(x, u, v0):
                module = torch.nn.Linear(1, 1, bias=False).to(x.dtype)
                module.weight = torch.nn.Parameter(x.detach().reshape(x.shape[0], -1).clone())
                torch.nn.utils.parametrizations.spectral_norm(module, n_power_iterations=1, eps=1e-12)
                spectral = module.parametrizations.weight[0]
                spectral._u, spectral._v = u, v0
                spectral.train(train)
                return spectral(x.reshape(x.shape[0], -1)).reshape(x.shape)

            add("spectral_norm", shape, {"x": flat_weight, "dy": draw(*shape), "u": u, "v0": v}, spectral_norm,
                {"train": train, "eps": 1e-12}, types=WIDE, state=lambda u, v0, **_: {"u": u, "v": v0})

    for shape in ((3, 7), (4, 3, 3, 3)):
        fan_in = torch.Size(shape[1:]).numel()
        axes = tuple(range(1, len(shape)))
        unit = [shape[0]] + [1] * (len(shape) - 1)
        inputs = {"x": draw(*shape, mean=0.1, spread=0.5), "dy": draw(*shape)}

        def centred(x):
            var, mean = torch.var_mean(x, dim=axes, keepdim=True, correction=0)
            return x - mean, var

        def standardized(x):
            apart, var = centred(x)
            return apart * torch.rsqrt(var + 1e-5)

        def scaled(x, weight):
            apart, var = centred(x)
            return weight.reshape(unit) * apart * torch.rsqrt(torch.clamp(var * fan_in, min=1e-4))

        def scaled_added(x, weight):
            apart, var = centred(x)
            return weight.reshape(unit) * apart * torch.rsqrt(fan_in * (var + 1e-6))

        add("weight_standardization", shape, inputs, standardized, {"eps": 1e-5}, types=WIDE)
        inputs = inputs | {"weight": draw(shape[0], mean=1, spread=0.5)}
        add("scaled_weight_standardization", shape, inputs, scaled, {"floor": 1e-4, "eps_added": False}, types=WIDE)
        add("scaled_weight_standardization", shape, inputs, scaled_added, {"eps": 1e-6, "eps_added": True}, types=WIDE)


def elementwise_norms():
    for shape in ((3, 7), (4, 16), (2, 6, 5)):
        features = shape[-1]
        x = draw(*shape, mean=0.5, spread=2)
        add("l2_norm", shape, {"x": x, "dy": draw(*shape)}, lambda x: F.normalize(x, dim=-1, eps=1e-12),
            {"eps": 1e-12, "axis": len(shape) - 1})
        add("l2_norm", shape, {"x": draw(*shape), "dy": draw(*shape)}, lambda x: F.normalize(x, dim=1, eps=0.5),
            {"eps": 0.5, "axis": 1}, types=WIDE)
        inputs = {"x": x, "dy": draw(*shape), "alpha": torch.tensor([0.5])} | parameters(features)
        add("dyt", shape, inputs, lambda x, alpha, weight, bias: weight * torch.tanh(alpha * x) + bias, types=WIDE)
        inputs = inputs | {"shift": torch.tensor([0.25])}
        add("derf", shape, inputs,
            lambda x, alpha, shift, weight, bias: weight * torch.erf(alpha * x + shift) + bias, types=WIDE)
    tiny = torch.tensor([[3e-7, -4e-7, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, -4.0]])
    add("l2_norm", (3, 3), {"x": tiny, "dy": draw(3, 3)}, lambda x: F.normalize(x, dim=-1, eps=1e-6),
        {"eps": 1e-6, "axis": 1}, types=WIDE)


def module_steps(op, make, shape, momentum, steps=10, rate=0.1):
    """Training steps of a module by SGD on the loss mean((y - target)^2), then its inference output for x_inference.

    Each step has a batch of its own; target is the same for all. What the module is after every step is listed.
    """
    batches = [draw(*shape, mean=0.5 * step, spread=1 + 0.25 * step) for step in range(steps)]
    target, probe = draw(*shape), draw(*shape, mean=2, spread=2)
    options = {"eps": 1e-5, "momentum": momentum, "rate": rate, "steps": steps}
    case = {"op": op, "options": options, "shape": list(shape)}
    case["inputs"] = {"x": [flat(b) for b in batches], "target": flat(target), "x_inference": flat(probe)}
    case["results"] = {}
    for name in WIDE:
        module = make(momentum).to(TYPES[name])
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        result = {k: [] for k in ("loss", "weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
        for batch in batches:
            optimizer.zero_grad()
            loss = (module(batch.to(TYPES[name])) - target.to(TYPES[name])).square().mean()
            loss.backward()
            optimizer.step()
            result["loss"].append(flat(loss)[0])
            for key in ("weight", "bias", "running_mean", "running_var"):
                result[key].append(flat(getattr(module, key)))
            result["num_batches_tracked"].append(int(module.num_batches_tracked))
        module.eval()
        result["y_inference"] = flat(module(probe.to(TYPES[name])))
        result["num_batches_tracked_after_inference"] = int(module.num_batches_tracked)
        case["results"][name] = result
    cases.append(case)


def modules():
    nn = torch.nn
    for momentum in (0.1, None):
        module_steps("batch_norm_steps", lambda m: nn.BatchNorm1d(3, momentum=m), (4, 3), momentum)
        module_steps("batch_norm_steps", lambda m: nn.BatchNorm2d(3, momentum=m), (2, 3, 2, 2), momentum)
    make = lambda m: nn.InstanceNorm1d(3, momentum=m, affine=True, track_running_stats=True)
    module_steps("instance_norm_steps", make, (2, 3, 5), 0.1)
    make = lambda m: nn.InstanceNorm2d(3, momentum=m, affine=True, track_running_stats=True)
    module_steps("instance_norm_steps", make, (2, 3, 2, 2), 0.1)


def standard_rows():
    """Standard normal rows without parameters, for the fact that LayerNorm and RMSNorm are torch's in float32."""
    x = draw(4, 64)
    cases.append({
        "op": "standard_normal", "options": {"layer_norm_eps": 1e-5, "rms_norm_eps": 1e-6}, "shape": [4, 64],
        "inputs": {"x": flat(x)},
        "results": {"float32": {"layer_norm": flat(F.layer_norm(x, (64,), None, None, 1e-5)),
                                "rms_norm": flat(F.rms_norm(x, (64,), None, 1e-6))}},
    })


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for make in (row_norms, batch_norms, group_norms, instance_norms, weight_norms, elementwise_norms, modules,
                 standard_rows):
        make()
    path = pathlib.Path(__file__).with_name("golden.json")
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in cases)
    version = torch.__version__.split("+")[0]
    path.write_text('{"made_by":"make_golden.py","torch":"%s","cases":[\n%s\n]}\n' % (version, lines))
    print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes, PyTorch {version}")
    for line in sorted(set(skipped)):
        print("not in torch on the CPU:", line)


if __name__ == "__main__":
    main()
