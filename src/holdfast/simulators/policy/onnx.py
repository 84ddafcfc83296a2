"""Export of a trained policy as an ONNX graph, which runs without Python and JAX."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.simulators.policy.agent import Agent

INPUT, OUTPUT = "observation", "action"
# Operator set 17 and file version 8 (2022) also run on embedded runtimes that are rarely updated.
_OPSET, _IR_VERSION = 17, 8


def to_onnx_bytes(agent: Agent) -> bytes:
    """Return the deterministic policy as a serialised ONNX model that computes `Agent.predict`.

    The input `observation` is float32 of shape (batch, n). The output `action` is float32 of shape
    (batch, m), in the environment's units and clipped to its bounds, or int64 of shape (batch,) for
    discrete actions. With a memory the observation includes the past; see `Agent.to_onnx`. The metadata
    hold the algorithm, the seed, the limits, the memory and the environment's name, each as JSON.

    Raises:
        ImportError: onnx is not installed.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise ImportError('onnx: it is not installed; pip install "holdfast[onnx]"') from error

    nodes: list[Any] = []
    constants: list[Any] = []

    def add(operator: str, *, attributes: Any = None, **named: np.ndarray) -> None:
        """Append an operator on the output of the last node and on named constants."""
        constants.extend(numpy_helper.from_array(array, name) for name, array in named.items())
        last = nodes[-1].output[0] if nodes else INPUT
        output = f"{operator.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operator, [last, *named], [output], **(attributes or {})))

    arrays = agent.arrays
    if arrays.mean is not None and arrays.inverse_spread is not None:
        add("Sub", mean=arrays.mean)
        add("Mul", inverse_spread=arrays.inverse_spread)
        add("Clip", lowest=np.array(-arrays.clip), highest=np.array(arrays.clip))
    for i, (weight, bias) in enumerate(arrays.layers):
        if i > 0:
            add("Tanh")
        add("Gemm", **{f"weight_{i}": weight, f"bias_{i}": bias})
    kind = TensorProto.FLOAT
    shape: list[Any] = ["batch", len(arrays.layers[-1][1])]
    if arrays.std is None:
        add("ArgMax", attributes={"axis": 1, "keepdims": 0})
        kind, shape = TensorProto.INT64, ["batch"]
    elif arrays.box is not None:
        low, high, middle, half = arrays.box
        add("Mul", half_range=half)
        add("Add", middle=middle)
        add("Max", low=low)
        add("Min", high=high)
    nodes[-1].output[0] = OUTPUT
    observation = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", arrays.inputs])
    action = helper.make_tensor_value_info(OUTPUT, kind, shape)
    model = helper.make_model(
        helper.make_graph(nodes, "policy", [observation], [action], constants),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="holdfast",
        producer_version=__version__,
    )
    facts = {
        "algorithm": agent.algorithm,
        "seed": agent.seed,
        "limits": list(agent.limits),
        "memory": agent.settings.memory,
        "environment": agent.description.get("name"),
    }
    helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)
