"""Models of similar size share their compiled programs."""

import jax
import pytest

import holdfast as hf


@pytest.fixture
def compiled():
    """The compilations since the fixture was set up, one entry each."""
    found = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_second_model_of_similar_size_compiles_nothing(oracle, compiled):
    jax.jit(lambda x: 3 * x - 7)(0.5)
    assert len(compiled) == 1  # the listener hears every compilation, and hears it once
    hf.solve(oracle.random_model(0, states=6, radius=0.1), iterations=3)
    other = oracle.random_model(1, states=7, radius=0.2, discount=0.8)
    compiled.clear()
    hf.solve(other, iterations=4, trust_region=0.02, seed=3)
    assert not compiled
