"""From counts of transitions to a policy with a proof."""

import numpy as np

import holdfast as hf

# Observed transitions of a machine that is new (0), worn (1) or broken (2).
# Actions: run (0), service (1).
counts = np.array(
    [
        [[1600, 360, 40], [390, 10, 0]],
        [[0, 1700, 300], [360, 30, 10]],
        [[0, 0, 100], [200, 0, 200]],
    ]
)
output = np.array([[10.0, 6.0], [8.0, 2.0], [0.0, 0.0]])
broken = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])

# Transitions that are possible at all, known without data.
possible = np.array(
    [
        [[1, 1, 1], [1, 1, 0]],
        [[0, 1, 1], [1, 1, 1]],
        [[0, 0, 1], [1, 0, 1]],
    ],
    dtype=bool,
)

# The set contains the true kernel with 95 % confidence, all rows at once.
kernel, uncertainty = hf.KL.from_counts(counts, confidence=0.95, support=possible)
model = hf.RobustCMDP(
    transitions=kernel,
    reward=output,
    constraints=[hf.at_most(broken, 1.0, name="time broken")],
    initial=np.array([1.0, 0.0, 0.0]),
    discount=0.95,
    uncertainty=uncertainty,
)

solution = hf.solve(model, "rcpo", iterations=60)
print(solution.status)
print(hf.certify(model, solution.policy))
