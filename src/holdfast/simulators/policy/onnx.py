"""A trained policy as an ONNX graph, for machines that have neither Python nor JAX."""

from __future__ import annotations

import json
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast._support.files import write_bytes
from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.simulators.policy.agent import Agent

INPUT, OUTPUT = "observation", "action"
# Old enough for runtimes on devices that are seldom updated.
_OPSET, _IR_VERSION = 17, 8


class _Graph:
    """Nodes and constants, one after the other; every node takes what the last one gave."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._last = INPUT

    def add(self, operator: str, *constants: tuple[str, np.ndarray], **attributes: Any) -> None:
        """One more node: the operator on what came last and on named constants."""
        from onnx import helper, numpy_helper

        self.constants += [numpy_helper.from_array(array, name) for name, array in constants]
        inputs = [self._last, *(name for name, _ in constants)]
        self._last = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [self._last], **attributes))

    def end(self) -> None:
        """Names what came last as the output."""
        self.nodes[-1].output[0] = OUTPUT


def to_onnx_bytes(agent: Agent) -> bytes:
    """The deterministic policy as a serialised ONNX model, with all that `Agent.predict` does.

    The input `observation` has shape (batch, n), float32. The output `action` has shape (batch, m),
    float32, in the environment's units and cut to its bounds, or (batch,), int64, where actions are
    discrete. The batch is of any size. The metadata have the algorithm, seed, limits and the name of the
    environment, each as JSON.

    Raises:
        ImportError: onnx is not installed.
    """
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise ImportError("onnx: it is not installed; pip install holdfast[onnx]") from error

    arrays, graph = agent.arrays, _Graph()
    if arrays.mean is not None and arrays.inverse_spread is not None:
        graph.add("Sub", ("mean", arrays.mean))
        graph.add("Mul", ("inverse_spread", arrays.inverse_spread))
        graph.add("Clip", ("lowest", np.array(-arrays.clip)), ("highest", np.array(arrays.clip)))
    for i, (weight, bias) in enumerate(arrays.layers):
        graph.add("Gemm", (f"weight_{i}", weight), (f"bias_{i}", bias))
        graph.add("Tanh")
    weight, bias = arrays.last
    graph.add("Gemm", ("weight_last", weight), ("bias_last", bias))
    if arrays.std is None:
        graph.add("ArgMax", axis=1, keepdims=0)
        action = helper.make_tensor_value_info(OUTPUT, TensorProto.INT64, ["batch"])
    else:
        action = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", len(bias)])
        if arrays.box is not None:
            low, high, middle, half = arrays.box
            graph.add("Mul", ("half_range", half))
            graph.add("Add", ("middle", middle))
            graph.add("Max", ("low", low))
            graph.add("Min", ("high", high))
    graph.end()
    observation = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", arrays.inputs])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", [observation], [action], graph.constants),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="holdfast",
        producer_version=__version__,
    )
    facts = {
        "algorithm": agent.algorithm,
        "seed": agent.seed,
        "limits": list(agent.limits),
        "environment": agent.description.get("name"),
    }
    helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def write_onnx(agent: Agent, path: str | PathLike[str]) -> None:
    """Writes what `to_onnx_bytes` gives, whole or not at all."""
    write_bytes(path, to_onnx_bytes(agent))
