"""A Gymnasium environment with a cost of your own and a disturbance on its actions."""

import gymnasium

import holdfast as hf


def spinning(step: hf.Transition) -> float:
    """Return 1 while the pendulum turns faster than 4 radians a second."""
    return float(abs(step.next_observation[2]) > 4)


env = hf.disturb("Pendulum-v1", hf.Actions(0.3), cost={"spinning": spinning}, horizon=50)

# "rcpo" with radius= trains against an adversary; "pcpo" trusts the simulator and compiles faster.
agent = hf.train(env, "pcpo", cost_limit=5, iterations=1, batch_size=500, hidden=(8,), seed=0)

pendulum = gymnasium.make("Pendulum-v1")
observation, _ = pendulum.reset(seed=0)
print("torque", agent.predict(observation, deterministic=True))
print("limit on the cost of an episode", agent.limits)
