"""`holdfast stress`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli._shared import FailedError, check_writable, option, refused


@dataclasses.dataclass(frozen=True)
class StressCommand:
    """Test trained policies under kernels that they were not trained on.

    For every radius, new adversaries are trained against the frozen policy: one for the reward and one
    for each cost. Stronger noise, noise on actions and other physical parameters are tested as well.
    Every test is run with drawn and with most likely actions. Prints a table and the critical radius,
    the largest at which every limit was found to hold, and writes stress.json and stress.png.

    Examples:
      holdfast stress runs/train/point-gather-rcpo-radius-0.2
      holdfast stress runs/train/point-gather-rcpo-radius-0.2/agent-3.safetensors --radii 0.1 0.2 0.4
      holdfast stress runs/mine --radii 0 --noise 1 2 4 --parameters speed=0.8,1.2 turn=0.5,2

    Exit codes: 0 done, whatever was found, 1 the simulator returned a number that is not finite, 2 bad
    input, 4 a file could not be written, 130 interrupted.
    """

    agents: Annotated[Positional[Path], arg(metavar="RUN_OR_AGENT")]
    """Folder that train wrote, or the file of one agent."""
    radii: Annotated[tuple[float, ...], option("R ...", "0.05 0.1 0.2 0.4")] = ()
    """Radii of the attacks, in nats; 0 alone skips them."""
    noise: Annotated[tuple[float, ...], option("X ...", "1 1.5 2 3 if it is Gaussian")] = ()
    """Factors on the standard deviation of the disturbance."""
    action_noise: Annotated[
        tuple[float, ...], option("S ...", "0.05 0.1 0.2 if they are vectors")
    ] = ()
    """Standard deviations of Gaussian noise on the actions."""
    parameters: Annotated[tuple[str, ...], option("NAME=V,V ...", "none")] = ()
    """Physical parameters of the simulator, with the values to test."""
    environment: Annotated[str, option("ENV", "the run's own")] = ""
    """Simulator, for agents of module:NAME: a file may not choose which code is imported."""
    restarts: Annotated[int | None, option("N", "2, or 1 outside JAX")] = None
    """Number of adversaries of each kind per radius and signal; the strongest counts."""
    episodes: Annotated[int | None, option("N", "20000, or 100 outside JAX")] = None
    """Number of episodes per measurement and agent."""
    updates: Annotated[int | None, option("N", "200, or 100 outside JAX")] = None
    """Number of batches that a learned adversary trains on."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of all random numbers."""
    json: bool = False
    """Print the result as JSON."""
    out: Annotated[str, option("DIR", "the run's folder, or AGENT-stress")] = ""
    """Folder for stress.json and stress.png."""

    def run(self) -> int:
        """Stress the policies, print the table and write the files."""
        given = self.agents
        out = Path(self.out or (given if given.is_dir() else f"{given.with_suffix('')}-stress"))
        with refused():
            parameters = dict(map(parameter_values, self.parameters))
            check_writable(out)
        import holdfast as hf
        from holdfast._support.files import to_json
        from holdfast.report.training import tests_on
        from holdfast.simulators.environment import TrainingError
        from holdfast.simulators.training.runs import agent_files
        from holdfast.verbs import as_simulator

        with refused():
            files = agent_files(given) if given.is_dir() else [given]
            env = as_simulator(self.environment) if self.environment else None
            agents = [hf.load(file, environment=env) for file in files]
        names = ("radii", "noise", "action_noise", "restarts", "episodes", "updates", "seed")
        options = {name: getattr(self, name) for name in names if getattr(self, name) != ()}
        try:
            with refused(), tests_on(sys.stderr) as progress:
                found = hf.stress(agents, parameters=parameters, callback=progress, **options)
        except (FloatingPointError, TrainingError) as error:
            raise FailedError(str(error)) from error
        found.save(out / "stress.json")
        written = [out / "stress.json"]
        if len({row.kind for row in found.rows}) > 1:  # the nominal kernel alone makes no figure
            found.plot(out / "stress.png")
            written.append(out / "stress.png")
        print(to_json(found.to_dict()) if self.json else found)
        if not self.json:
            print(f"written to {' and '.join(map(str, written))}")
        return 0


def parameter_values(text: str) -> tuple[str, list[float]]:
    """Return a parameter and its values from NAME=VALUE,VALUE."""
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise ValueError(f"parameters: expected NAME=VALUE,VALUE, got {text!r}") from error
