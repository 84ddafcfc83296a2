"""Factors on a MuJoCo model: what they reach, what they leave, and what they refuse."""

import gymnasium
import mujoco
import numpy as np
import pytest

import holdfast as hf
from holdfast.gym.hosts.host import PARAMETERS
from holdfast.gym.hosts.physics import Physics, body_names

ARM = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="arm"><joint name="hinge" axis="0 1 0" armature="0.1"/>
      <geom type="capsule" fromto="0 0 0 1 0 0" size="0.1" mass="1"/><site name="end" pos="1 0 0"/>
    </body>
    <site name="wall" pos="1 0 2"/>
  </worldbody>
  <tendon><spatial name="cord"><site site="wall"/><site site="end"/></spatial></tendon>
  <actuator>%s</actuator>
</mujoco>
"""


def arrays(model):
    found = {}
    for name in dir(model):
        value = getattr(model, name) if not name.startswith("_") else None
        if isinstance(value, np.ndarray):
            found[name] = value.copy()
    return found | {"gravity": model.opt.gravity.copy()}


def changes(before, after):
    same = {k for k in before if np.array_equal(before[k], after[k], equal_nan=True)}
    return set(before) - same


def model_of(name):
    return gymnasium.make(name).unwrapped.model


def test_a_factor_reaches_its_own_arrays_and_no_others():
    nominal = model_of("HalfCheetah-v5")
    expected = {
        "friction": {"geom_friction"},
        "damping": {"dof_damping"},
        "gravity": {"gravity"},
        "gain": {"actuator_gainprm"},
    }
    for name, fields in expected.items():
        physics = Physics(nominal)
        physics.set_factors((name,), [1.25])
        assert changes(arrays(nominal), arrays(physics.model)) == fields
        assert all(np.allclose(arrays(physics.model)[f], 1.25 * arrays(nominal)[f]) for f in fields)
        # So nothing that MuJoCo computes beforehand has to be computed again.
        mujoco.mj_setConst(physics.model, mujoco.MjData(physics.model))
        assert changes(arrays(nominal), arrays(physics.model)) == fields


def test_mass_renews_what_mujoco_computed_from_it():
    nominal = model_of("HalfCheetah-v5")
    physics = Physics(nominal)
    physics.set_factors(("mass",), [2.0])
    before, after = arrays(nominal), arrays(physics.model)
    for field in ("body_mass", "body_inertia", "body_subtreemass"):
        np.testing.assert_allclose(after[field], 2 * before[field])
    armature = nominal.dof_armature
    np.testing.assert_allclose(after["dof_M0"] - armature, 2 * (before["dof_M0"] - armature))
    assert (after["dof_invweight0"] < before["dof_invweight0"]).all()


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Humanoid-v5"])
def test_factors_do_not_pile_up_and_one_brings_the_nominal_model_back_to_the_bit(name):
    nominal = model_of(name)
    physics = Physics(nominal)
    before = arrays(physics.model)
    every = physics.adjustable
    assert every == PARAMETERS
    physics.set_factors(every, [1.3] * len(every))
    physics.set_factors(every, [0.7] * len(every))
    fresh = Physics(nominal)
    fresh.set_factors(every, [0.7] * len(every))
    assert changes(arrays(fresh.model), arrays(physics.model)) == set()
    assert len(changes(before, arrays(physics.model))) > len(every)
    physics.set_factors(("mass",), [1.1])
    physics.reset()
    assert changes(before, arrays(physics.model)) == set()


def test_the_given_model_changes_only_in_place():
    nominal = model_of("Hopper-v5")
    before = arrays(nominal)
    Physics(nominal).set_factors(("gravity",), [0.5])
    assert changes(before, arrays(nominal)) == set()
    Physics(nominal, in_place=True).set_factors(("gravity",), [0.5])
    assert changes(before, arrays(nominal)) == {"gravity"}


@pytest.mark.parametrize(
    "actuator",
    [
        '<motor joint="hinge" gear="2"/>',
        '<position joint="hinge" kp="5" kv="1"/>',
        '<velocity joint="hinge" kv="3"/>',
        '<muscle tendon="cord" lengthrange="0.5 4" scale="200"/>',
        '<muscle tendon="cord" lengthrange="0.5 4" force="30"/>',
    ],
)
@pytest.mark.parametrize("mass", [1.0, 3.0])
def test_gain_multiplies_the_whole_force_of_every_kind_of_actuator(actuator, mass):
    nominal = mujoco.MjModel.from_xml_string(ARM % actuator)

    def force(factor):
        physics = Physics(nominal)
        # What an actuator can do is not the load's to change.
        physics.set_factors(("mass", "gain"), [mass, factor])
        data = mujoco.MjData(physics.model)
        data.qpos[:], data.qvel[:], data.ctrl[:], data.act[:] = 0.3, 0.2, 0.7, 0.6
        mujoco.mj_forward(physics.model, data)
        return data.actuator_force.copy()

    data = mujoco.MjData(nominal)
    data.qpos[:], data.qvel[:], data.ctrl[:], data.act[:] = 0.3, 0.2, 0.7, 0.6
    mujoco.mj_forward(nominal, data)
    assert abs(data.actuator_force).min() > 0.1
    np.testing.assert_allclose(force(1.0), data.actuator_force)
    np.testing.assert_allclose(force(1.5), 1.5 * data.actuator_force)


def test_pushes_keep_quaternions_on_their_sphere():
    model = model_of("Ant-v5")
    data = mujoco.MjData(model)
    physics = Physics(model)
    numbers = np.random.default_rng(0).normal(size=2 * model.nv)
    before, place = data.qvel.copy(), data.qpos.copy()
    physics.push(data.qpos, data.qvel, numbers)
    assert np.linalg.norm(data.qpos[3:7]) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(data.qpos[:3], place[:3] + numbers[:3])
    np.testing.assert_allclose(data.qpos[7:], place[7:] + numbers[6 : model.nv])
    np.testing.assert_allclose(data.qvel, before + numbers[model.nv :])


def test_bodies_are_found_by_name_and_an_unknown_one_is_told_the_others():
    model = model_of("HalfCheetah-v5")
    assert {"torso", "ffoot"} < set(body_names(model))
    assert "world" not in body_names(model)
    with pytest.raises(
        ValueError, match=r"^body: HalfCheetah-v5 has no 'arm'; it has torso, bthigh"
    ):
        hf.disturb("HalfCheetah-v5", hf.Force("arm", 1.0), {})


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("Swimmer-v5", "damping"), ("Swimmer-v5", "friction"), ("Pusher-v5", "gravity")],
)
def test_a_parameter_with_nothing_to_act_on_is_refused(name, parameter):
    assert parameter not in Physics(model_of(name)).adjustable
    message = f"^{parameter}: not a parameter that {name} can change; it can change: mass"
    with pytest.raises(ValueError, match=message):
        hf.disturb(name, hf.Parameters(**{parameter: 0.1}), {})


def test_without_actuators_there_is_no_gain():
    assert "gain" not in Physics(mujoco.MjModel.from_xml_string(ARM % "")).adjustable


def test_an_unknown_parameter_is_told_the_known_ones():
    env = hf.disturb("Hopper-v5", cost={})
    with pytest.raises(
        ValueError, match=r"^colour: not a parameter of Hopper-v5, which has mass, fri"
    ):
        env.with_parameters(mass=1.1, colour=1.1)


@pytest.mark.parametrize(("name", "factor"), [("mass", 0), ("friction", -1), ("gravity", np.nan)])
def test_factors_that_are_no_physics_are_refused(name, factor):
    with pytest.raises(ValueError, match=f"^{name}: "):
        Physics(model_of("Hopper-v5")).set_factors((name,), [factor])
