"""One ONNX operator as a session of ONNX Runtime over memory of its caller: what onnxruntime.cpp asks of Python."""

import numpy
import onnxruntime
from onnx import TensorProto, helper

EPS = 1e-5


def node_of(norm, groups):
    """The operator, its inputs and the version of the operator set that has it; None where there is none."""
    if norm == "layer_norm":
        inputs = ["x", "weight", "bias"]
        return helper.make_node("LayerNormalization", inputs, ["y"], axis=-1, epsilon=EPS), inputs, 17
    if norm == "rms_norm":
        inputs = ["x", "weight"]
        return helper.make_node("RMSNormalization", inputs, ["y"], axis=-1, epsilon=EPS), inputs, 23
    if norm == "batch_norm_inference":
        inputs = ["x", "weight", "bias", "running_mean", "running_var"]
        return helper.make_node("BatchNormalization", inputs, ["y"], epsilon=EPS), inputs, 15
    if norm == "group_norm":
        inputs = ["x", "weight", "bias"]
        node = helper.make_node("GroupNormalization", inputs, ["y"], num_groups=groups, epsilon=EPS)
        return node, inputs, 21
    return None


def prepare(norm, shape, groups, addresses):
    """A function that runs the norm from the memory at these addresses, by name, to that of y; or None."""
    found = node_of(norm, groups)
    if found is None:
        return None
    node, inputs, version = found
    shapes = {name: list(shape) if name in ("x", "y") else [shape[1]] for name in [*inputs, "y"]}
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in shapes.items()}
    graph = helper.make_graph([node], norm, [info[name] for name in inputs], [info["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in inputs:
        binding.bind_input(name, "cpu", 0, numpy.float32, shapes[name], addresses[name])
    binding.bind_output("y", "cpu", 0, numpy.float32, shapes["y"], addresses["y"])
    return lambda: session.run_with_iobinding(binding)
