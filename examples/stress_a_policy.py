"""Train a policy on a table that is used as a simulator, then attack the frozen policy."""

import holdfast as hf

model = hf.environments.n_chain(nodes=5)
agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
# A real test has several radii, restarts and thousands of episodes.
found = hf.stress(
    agent,
    radii=[0.1],
    restarts=1,
    episodes=200,
    updates=2,
    kernels="categorical",
)
print(found)
