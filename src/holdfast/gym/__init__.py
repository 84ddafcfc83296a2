"""Gymnasium in both directions.

`disturb` turns a Gymnasium environment into a simulator that `hf.train` and `hf.stress` accept:

- A *channel* (`channels.py`) says where a disturbance enters: actions, observations, states, forces or
  physical parameters.
- A *cost* (`costs.py`) is computed from a step: an entry of `info`, or a function of a `Transition`.
- A *host* (`hosts/`) steps many copies of the environment outside JAX, in MuJoCo's threads, in this
  process or in worker processes. `hosted.py` calls it from compiled programs.

`as_gymnasium.py` and `registration.py` make Holdfast's tables and simulators available to other training
libraries, `mujoco/` contains Holdfast's robot tasks, and `from_gymnasium` reads a transition table.
"""
