from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import holdfast as hf
from holdfast.cli import main as cli
from holdfast.simulators.certificates import proof_options

TIMID = np.eye(8)[np.zeros(17, int)]  # always stakes 1, and is feasible
BOLD = np.eye(8)[np.full(17, 7)]  # always stakes all, and is not


@pytest.fixture
def main(monkeypatch, tmp_path):
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda command: cli.main(command.split())


def call(*arguments, **environment):
    """The command line in a process of its own, as a user calls it."""
    code = "import sys; from holdfast.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


HELP = {
    "--help": "holdfast reproduce gambler --seeds 1",
    "reproduce --help": "holdfast reproduce gambler n-chain --seeds 2",
    "solve --help": "Exit codes: 0 the policy is feasible, 3 it is not",
    "certify --help": "--no-bound        Skip the upper bound",
    "check --help": "Exit codes: 0 the proof is accepted, 1 it is refused, 2 bad input.",
    "train --help": "--steps N         Number of simulator steps",
    "stress --help": "holdfast stress runs/train/point-gather-rcpo-radius-0.2",
    "bench --help": "holdfast bench my-experiment.toml --out runs/mine",
    "report --help": "holdfast report runs/train --serve",
    "--version": f"holdfast {hf.__version__}",
}


def test_help_teaches_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from holdfast.cli.main import main\n"
        "for command in sys.argv[1:]:\n"
        "    try:\n"
        "        code = main(command.split())\n"
        "    except SystemExit as stop:\n"
        "        code = stop.code\n"
        "    print('\\nexit code', code)\n"
        "heavy = ('jax', 'scipy', 'matplotlib', 'equinox', 'mujoco')\n"
        "print('imported:', [name for name in heavy if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *HELP], capture_output=True, text=True, check=True
    )
    *texts, imported = found.stdout.split("\nexit code 0\n")
    assert imported == "imported: []\n"
    for text, taught in zip(texts, HELP.values(), strict=True):
        assert taught in text


def test_a_reader_that_closes_the_pipe_causes_no_traceback():
    code = "import sys; from holdfast.cli.main import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-c", code, "train", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")


def bad_inputs(folder):
    (folder / "file").write_text("in the way")
    (folder / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(folder / "timid.npy", TIMID)
    np.save(folder / "small.npy", TIMID[:3])
    np.save(folder / "negative.npy", TIMID - 1)
    return {
        "reproduce gambler casino": "there is no 'casino'",
        "reproduce gambler --seeds 0": "--seeds: expected a whole number",
        "reproduce gambler --iterations -3": "iterations",
        "reproduce gambler --engine steam": "'steam'",
        "bench papr": "did you mean paper?",
        "bench missing.toml": "missing.toml",
        "bench paper --seeds 0": "seeds",
        "bench paper --workers -1": "--workers: ",
        "bench paper --engine steam": "'steam'",
        "bench paper --address here": "--address: allowed only with --engine ray",
        "bench paper --out file": "file",
        "bench paper --out nowhere://x": "nowhere://x",
        "reproduce gambler --out file": "file",
        "reproduce gambler --out file/deeper": "file",
        "solve casino": "MODEL: there is no model or file 'casino'",
        "solve point-gather": "use holdfast train",
        "solve no.such.module:model": "'no.such.module:model' cannot be imported",
        "solve missing.npz": "missing.npz",
        "solve damaged.npz": "damaged.npz",
        "solve gambler --algorithm magic": "'magic'",
        "solve gambler --step sideways": "'sideways'",
        "solve gambler --safeguard prayer": "'prayer'",
        "solve gambler --iterations 0": "iterations",
        "solve gambler --trust-region -1": "--trust-region: ",
        "solve gambler --seed -1": "seed",
        "solve gambler --out file": "file",
        "solve gambler --set magic --radius 0.1": "'magic'",
        "solve gambler --set kl": "--radius: ",
        "solve gambler --radius -1": "radius",
        "solve gambler --set interval --radius 1": "interval",
        "solve gambler --set kl --radius 0.1 --within-support": "--within-support: ",
        "solve gambler --within-support": "--within-support: ",
        "solve gambler --set kl --radius 0.1 --metric file": "metric",
        "solve gambler --set wasserstein --radius 0.1": "metric",
        "solve gambler --set wasserstein --radius 0.1 --metric missing.npy": "missing.npy",
        "solve gambler --set wasserstein --radius 0.1 --metric timid.npy": "metric",
        "solve gambler --set total-variation --radius 0.1": "reward",
        "solve gambler --nodes 10": "--nodes: needs --certify",
        "solve gambler --settings dual_step=1": "settings",
        "solve gambler --algorithm rpd --settings dual_step": "dual_step",
        "solve gambler --algorithm rpd --settings dual_stpe=1": "dual_stpe",
        "solve gambler --algorithm rpd --settings dual_step=-1": "dual_step",
        "solve gambler --algorithm rpd --settings dual_step=1 dual_step=2": "twice",
        "solve gambler --algorithm rpd --trust-region 0.1": "--trust-region: ",
        "solve gambler --certify --nodes -1": "nodes",
        "certify gambler timid.npy --nodes -1": "nodes",
        "certify gambler timid.npy --out file/deeper/c.json": "file",
        "certify frozen-lake timid.npy": "timid.npy",
        "certify casino timid.npy": "casino",
        "certify gambler missing.npy": "missing.npy",
        "certify gambler damaged.npz": "damaged.npz",
        "certify gambler small.npy": "small.npy",
        "certify gambler negative.npy": "POLICY: ",
        "train casino": "ENV: there is no 'casino'",
        "train Hoper-v5": "did you mean Hopper-v5?",
        "train n-chain --steps 0": "--steps: ",
        "train n-chain --steps 9 --iterations 2": "--steps: give either",
        "train n-chain --algorithm magic": "'magic'",
        "train n-chain --algorithm pcpo --radius 0.2": "radius",
        "train n-chain --radius -1": "radius",
        "train n-chain --cost-limit 1 2": "--cost-limit: ",
        "train n-chain --iterations 0": "iterations",
        "train n-chain --batch-size 0": "--batch-size: ",
        "train n-chain --limit-on week": "--limit-on: ",
        "train n-chain --seeds 0": "seeds",
        "train n-chain --seeds 2 --seed 1": "seed",
        "train n-chain --seed -1": "seed",
        "train n-chain --discount 2": "discount",
        "train n-chain --adversary.kernel gaussian-mixture": "--adversary.kernel: ",
        "train n-chain --out file": "file",
        "train n-chain --out file/deeper": "file",
        "train n-chain --video film.avi": "'film.avi'",
        "train n-chain --video file/film.gif": "file",
        "train linear-gaussian --cost-limit 40 --video film.gif": "has no picture",
        "train n-chain --cost money": "--cost: n-chain has its own",
        "train n-chain --speed-limit 2": "--speed-limit: n-chain has its own",
        "train n-chain --channel actions": "--channel: n-chain has its own",
        "train CartPole-v1 --cost money --speed-limit 2": "--speed-limit: ",
        "train CartPole-v1 --channel wind": "'wind'",
        "stress missing": "missing",
        "stress file": "file",
        "stress .": "contains no training run",
        "stress file --parameters speed": "parameters",
        "stress file --parameters speed=fast": "parameters",
        "stress file --out file": "file",
    }


def test_bad_input_is_refused_in_one_sentence_before_any_work(main, tmp_path, capsys):
    wrong = {}
    for command, named in bad_inputs(tmp_path).items():
        before = sorted(tmp_path.rglob("*"))
        code = main(command)
        out, err = capsys.readouterr()
        one_sentence = err.startswith("holdfast: ") and err.count("\n") == 1 and named in err
        if (code, out) != (2, "") or not one_sentence or sorted(tmp_path.rglob("*")) != before:
            wrong[command] = code, out, err
    assert wrong == {}


@pytest.mark.parametrize("command", ["", "sove gambler", "solve", "reproduce --seeds many"])
def test_what_cannot_be_parsed_is_refused_too(main, command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert capsys.readouterr().err != ""


def test_a_folder_without_permission_is_refused(main, tmp_path, monkeypatch, capsys):
    # By the system's own answer, since a test that runs as root may write everywhere.
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    assert main("reproduce gambler --out locked/run") == 2
    assert capsys.readouterr().err == (
        "holdfast: locked/run: cannot be written to, permission denied\n"
    )


def test_an_interrupt_exits_with_130_and_says_how_to_go_on(main, monkeypatch, capsys):
    from holdfast.experiments import runner

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    assert main("reproduce gambler") == 130
    assert "Run the same command to resume" in capsys.readouterr().err


def test_reproduce_end_to_end(main, tmp_path, capsys):
    command = "reproduce gambler --seeds 1 --iterations 3 --engine inline --out runs/quick"
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 4
    assert "seeds 1 instead of 5, iterations 3 instead of 200" in out
    assert "claims: runs/quick/claims.md" in out
    assert str(tmp_path) not in out
    folder = tmp_path / "runs" / "quick"
    assert {path.name for path in folder.iterdir()} >= {
        "gambler",
        "claims.md",
        "claims.json",
        "experiment.json",
        "table.md",
        "timings.csv",
    }
    with (folder / "gambler" / "data.csv").open(newline="") as file:
        data = list(csv.DictReader(file))
    assert len(data) == 4 * 4
    # All four start from the policy that the seed draws.
    assert len({row["reward"] for row in data if row["iteration"] == "0"}) == 1
    records = json.loads((folder / "claims.json").read_text())["claims"]
    holds = {record["statement"]: record["holds"] for record in records}
    assert holds["RVI violates the constraint."]
    for path in folder.rglob("*.*"):
        assert str(tmp_path).encode() not in path.read_bytes()

    data_before = (folder / "gambler" / "data.csv").read_bytes()
    assert main(command) == 0
    assert capsys.readouterr().err == "[4/4] 4 kept from an earlier run\n"
    assert (folder / "gambler" / "data.csv").read_bytes() == data_before


def test_bench_tells_what_failed_and_keeps_the_rest(main, tmp_path, capsys, monkeypatch):
    solve = hf.solve
    monkeypatch.setattr(
        hf, "solve", lambda *given, **rest: solve(*given, **rest) if given[1] == "rvi" else 1 / 0
    )
    (tmp_path / "mine.toml").write_text(
        'environments = ["gambler"]\nalgorithms = ["rvi", "rcpo"]\nseeds = 1\n'
        "[environment.gambler]\ngoal = 4\n"
    )
    assert main("bench mine.toml --engine inline --iterations 2") == 1
    out, err = capsys.readouterr()
    assert "gambler rcpo failed for good: ZeroDivisionError" in err
    assert "gambler rcpo failed 3 times:\n" in out
    assert "│ RVI" in out
    assert "written to runs/bench/mine" in out
    assert (tmp_path / "runs/bench/mine/table.csv").is_file()


def test_solve_writes_a_folder_that_certify_reads(main, tmp_path, capsys):
    hf.environments.gambler().save("model.npz")
    assert main("solve model.npz --iterations 3 --seed 2 --out run") == 0
    out = capsys.readouterr().out
    assert "RCPO: feasible" in out
    assert "≥ 2.5" in out
    assert "written to run" in out
    names = {"policy.npz", "policy.csv", "history.csv", "solution.json", "model.npz"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names

    solution = json.loads(Path("run/solution.json").read_text())
    settings = {"environment": "model.npz", "algorithm": "rcpo", "seed": 2, "iterations": 3}
    assert settings.items() <= solution["settings"].items()
    with Path("run/history.csv").open(newline="") as file:
        history = list(csv.DictReader(file))
    assert len(history) == 4
    # The solution is evaluated afresh, so that both agree up to their numerical errors.
    worst = solution["reward"]["worst"]
    assert float(history[-1]["reward"]) == pytest.approx(worst, rel=1e-12)
    assert float(history[-1]["utility"]) == pytest.approx(solution["constraints"][0]["worst"])

    assert main("certify run run --json") == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate["feasible"] is True
    assert certificate["reward"]["worst"] == pytest.approx(solution["reward"]["worst"])


def test_solve_with_settings_of_the_algorithm(main, tmp_path, capsys):
    arguments = "--algorithm cup --settings robust=true policy_step=0.5 largest_multiplier=7"
    assert main(f"solve gambler {arguments} --iterations 2 --out run") in (0, 3)
    written = json.loads((tmp_path / "run" / "solution.json").read_text())
    expected = {"robust": True, "policy_step": 0.5, "largest_multiplier": 7}
    assert written["settings"]["settings"] == expected


def test_the_help_of_solve_names_every_algorithm():
    from holdfast.cli import solve
    from holdfast.tabular.algorithms import ALGORITHMS

    assert f"One of {', '.join(ALGORITHMS)}, or" in Path(solve.__file__).read_text()


def test_solve_with_another_set_and_a_certificate(main, capsys):
    arguments = "--set kl --radius 0.05"
    assert main(f"solve gambler {arguments} --iterations 3 --certify --nodes 2 --out run") == 0
    out = capsys.readouterr().out
    assert out.startswith("RCPO: feasible in the worst case")
    assert "has a worst-case reward above" in out
    certificate = json.loads(Path("run/certificate.json").read_text())
    assert 0 < certificate["gap"] < 1
    assert certificate["critical_factor"] >= 1
    settings = json.loads(Path("run/solution.json").read_text())["settings"]
    assert settings["uncertainty"] == {"set": "kl", "radius": 0.05}

    # The folder's model carries the set; a larger radius of the same kind breaks the policy.
    assert main("certify run run --no-bound --json --out again.json") == 0
    again = json.loads(Path("again.json").read_text())
    assert again["reward"] == certificate["reward"]
    assert again["upper_bound"] == "inf"
    capsys.readouterr()
    radius = 1.01 * 0.05 * certificate["critical_factor"]
    assert main(f"certify run run --radius {radius} --no-bound") == 3


def test_every_option_of_a_set_reaches_it(tmp_path):
    from holdfast.cli._shared import SetOptions

    model = hf.environments.gambler()
    np.save(tmp_path / "line.npy", np.abs(np.subtract.outer(np.arange(17.0), np.arange(17.0))))
    within = SetOptions("total-variation", 0.05, within_support=True).apply(model).uncertainty
    assert (within.name, within.radius, within.within_support) == ("total-variation", 0.05, True)
    assert SetOptions(radius=0.3).apply(model).uncertainty.radius == 0.3
    # A transport cost needs signals that do not depend on the successor.
    plain = model.replace(reward=np.ones((17, 8)), constraints=())
    moved = SetOptions("wasserstein", 0.2, metric=str(tmp_path / "line.npy")).apply(plain)
    assert moved.uncertainty.metric[0, 16] == 16


def test_solve_takes_a_model_of_the_users_own_module(main, tmp_path, capsys):
    (tmp_path / "short_models.py").write_text(
        "import holdfast as hf\n\n\ndef short(goal=4):\n    return hf.environments.gambler(goal=goal)\n"
    )
    assert main("solve short_models:short --algorithm lp --iterations 1") in (0, 3)
    assert "written to runs/solve/short-lp-seed-0" in capsys.readouterr().out


def test_solve_says_by_its_exit_code_that_nothing_feasible_was_found(main, tmp_path, capsys):
    hf.environments.gambler(threshold=100.0).save("greedy.npz")
    assert main("solve greedy.npz --iterations 3 --safeguard none") == 3
    out = capsys.readouterr().out
    assert "infeasible" in out
    assert "could reach, in the worst case: 6.45" in out
    folder = tmp_path / "runs" / "solve" / "greedy-rcpo-seed-0"
    solution = json.loads((folder / "solution.json").read_text())
    assert solution["status"] == "infeasible"
    assert solution["settings"]["safeguard"] is None


@pytest.mark.parametrize(("policy", "code"), [(TIMID, 0), (BOLD, 3)])
def test_certify_says_by_its_exit_code_whether_it_is_feasible(main, capsys, policy, code):
    np.save("policy.npy", policy)
    assert main("certify gambler policy.npy") == code
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("feasible" if code == 0 else "NOT feasible")


TRAIN = "train n-chain --algorithm pcpo --limit-on discounted --batch-size 180 --seeds 2"


def test_train_writes_a_folder_that_stress_reads(main, tmp_path, capsys):
    # No policy has a positive cost here, so that even the first ones are within a limit of 1.
    train = f"{TRAIN} --cost-limit 1"
    command = f"{train} --iterations 4"
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "n-chain, PCPO, minus utility ≤ 1: the last iteration" in out
    assert "mean" in out
    assert "written to runs/train/n-chain-pcpo\n" in out
    assert str(tmp_path) not in out
    lines = err.splitlines()
    assert lines[0] == "n-chain, PCPO, minus utility ≤ 1: 4 iterations, 2 seeds"
    assert [line[:5] for line in lines[1:]] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert "2 of 2 seeds within); KL 0.0" in lines[-1]
    folder = tmp_path / "runs" / "train" / "n-chain-pcpo"
    assert hf.load(folder / "agent-1.safetensors").environment.name == "n-chain"

    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert again.err.splitlines()[1:] == ["all iterations were finished before"]

    assert main(f"{train} --iterations 5") == 0
    assert capsys.readouterr().err.splitlines()[1] == "resuming at iteration 4"
    assert main(f"{TRAIN} --iterations 5 --cost-limit -1000") == 2
    assert "limits [1.0], not [-1000.0]" in capsys.readouterr().err

    # What was measured at the end decides the exit code.
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for over in ("costs", "likely_costs"):  # of drawn and of most likely actions
        changed = [*rows[:-1], {**rows[-1], "costs": [0.0], "likely_costs": [0.0], over: [1.1]}]
        metrics.write_text("".join(json.dumps(row) + "\n" for row in changed))
        assert main(f"{train} --iterations 5") == 3
        assert "over a limit: seed 1\n" in capsys.readouterr().out

    few = "--radii 0 --episodes 20 --restarts 1 --updates 1"
    assert main(f"stress runs/train/n-chain-pcpo {few}") == 0
    found = capsys.readouterr().out
    assert "n-chain, pcpo-0, pcpo-1: mean over 20 episodes" in found
    assert "critical radius" in found
    assert "written to runs/train/n-chain-pcpo/stress.json\n" in found
    assert main(f"stress runs/train/n-chain-pcpo/agent-1.safetensors {few} --json --out new") == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads(Path("new/stress.json").read_text())
    assert json.loads(printed)["agents"] == ["pcpo-1"]


def test_train_for_a_certificate_says_what_is_proved(main, capsys, monkeypatch):
    few = proof_options.BoundSettings(episodes=100)
    monkeypatch.setattr(proof_options, "BoundSettings", lambda: few)
    train = f"{TRAIN} --iterations 1 --certified 0.9"
    assert main(f"{train} --cost-limit 1") == 0
    proved = "pcpo-1: Proved, after iteration 1, at attempt 1, with drawn actions."
    assert proved in capsys.readouterr().out
    assert main(f"{train} --cost-limit -39 --out other") == 3  # every step pays at most 2
    assert "pcpo-0: Not proved: minus utility is only bounded by" in capsys.readouterr().out
    assert main(f"{train} --cost-limit 1 --algorithm trpo --out third") == 2
    assert "certified: the algorithm does not enforce limits" in capsys.readouterr().err


def test_train_films_an_episode(main, capsys):
    few = f"{TRAIN} --iterations 1 --out run"
    assert main(f"{few} --video film.gif elsewhere/film.gif") in (0, 3)
    out = capsys.readouterr().out
    assert "recorded in run/film.gif\nrecorded in elsewhere/film.gif\n" in out
    films = [Path(name).read_bytes() for name in ("run/film.gif", "elsewhere/film.gif")]
    assert films[0] == films[1]
    with Image.open("run/film.gif") as image:
        assert image.size == (40 * 24, 24)
        assert image.n_frames > 1
        first = np.asarray(image.convert("RGB"))
        image.seek(1)
        assert not np.array_equal(first, np.asarray(image.convert("RGB")))
    assert main(f"{few} --video") in (0, 3)  # under a name of its own
    assert "recorded in run/episode.mp4\n" in capsys.readouterr().out
    assert b"ftyp" in Path("run/episode.mp4").read_bytes()[:16]


def test_an_mp4_that_nothing_can_write_is_refused_before_any_work(main, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main("train n-chain --video film.mp4") == 2
    assert 'pip install "holdfast[video]"' in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_what_is_said_of_a_gymnasium_environment_reaches_it(main, monkeypatch):
    asked = []

    def disturb(environment, **options):
        asked.append((environment, options))
        raise ValueError("enough")

    monkeypatch.setattr(hf, "disturb", disturb)
    monkeypatch.setattr(hf, "speed_limit", lambda speed: ("speed", speed))
    start = ["train", "some/Robot-v1"]
    assert cli.main([*start, "--channel", "actions 0.1", "--channel", "force torso 20"]) == 2
    assert cli.main([*start, "--speed-limit", "2"]) == 2
    assert cli.main([*start, "--cost", "money"]) == 2
    assert [environment for environment, _ in asked] == ["some/Robot-v1"] * 3
    first, second, third = (options for _, options in asked)
    assert list(first) == ["channel"]
    assert [each.describe()["kind"] for each in first["channel"]] == ["Actions", "Force"]
    assert second == {"cost": ("speed", 2.0)}
    assert third == {"cost": "money"}


def test_a_simulator_that_fails_is_a_sentence_and_exit_code_1(main, capsys, monkeypatch):
    from holdfast.simulators import train

    def broken(*_):
        raise hf.TrainingError("n-chain returned something that is not a finite number")

    monkeypatch.setattr(train.TrainingRun, "train", broken)
    assert main(TRAIN) == 1
    err = capsys.readouterr().err
    assert (
        err.splitlines()[-1] == "holdfast: n-chain returned something that is not a finite number"
    )


def test_an_interrupted_training_says_how_to_go_on(main, capsys, monkeypatch):
    from holdfast.simulators import train

    def interrupted(run, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(train.TrainingRun, "train", interrupted)
    assert main(TRAIN) == 130
    assert "Run the same command to resume" in capsys.readouterr().err
