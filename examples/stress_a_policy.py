"""Train a policy on a table that is used as a simulator, then attack the frozen policy."""

import holdfast as hf

model = hf.environments.n_chain(nodes=5)
agent = hf.train(
    model, "trpo", limit_on="discounted", iterations=1, batch_size=300, hidden=(8,), seed=0
)
# A real test has several radii, restarts and thousands of episodes.
found = hf.stress(
    agent,
    radii=[0.1],
    kernels=["tilted"],
    noise=None,
    action_noise=None,
    restarts=1,
    updates=1,
    episodes=200,
)
print(found)
