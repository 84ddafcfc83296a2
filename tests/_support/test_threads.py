"""Verbs use one thread of the linear algebra library for small models, and restore the others."""

import threadpoolctl

import holdfast as hf
from holdfast._support.threads import linear_algebra_threads


def blas_threads():
    return [
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    ]


def test_small_models_use_one_thread_and_large_ones_the_default():
    before = blas_threads()
    assert before
    with linear_algebra_threads(521):
        assert set(blas_threads()) == {1}
    with linear_algebra_threads(10_000):
        assert blas_threads() == before
    assert blas_threads() == before


def test_algorithms_run_with_one_thread():
    seen = []

    def nothing(run):
        seen.append(set(blas_threads()))
        return run.policy

    hf.solve(hf.environments.gambler(), nothing, iterations=1)
    assert seen
    assert all(each == {1} for each in seen)
