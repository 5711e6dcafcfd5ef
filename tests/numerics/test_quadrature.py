"""Nodes integrate what is known in closed form; pieces hold each row once."""

import numpy as np
import pytest

from pgmodels.numerics import quadrature as integration

M, SCALE = 0.7, 1.3


def test_gauss_hermite_is_exact_for_polynomials_of_degree_63():
    nodes, weights = integration.gauss_hermite(32)
    # Odd central moments vanish, so that E (M + S x)^7 takes the moments 1, 1, 3, 15 of x^0, x^2, x^4, x^6.
    expected = M**7 + 21 * M**5 * SCALE**2 + 35 * M**3 * 3 * SCALE**4 + 7 * M * 15 * SCALE**6
    assert weights @ (M + SCALE * nodes) ** 7 / np.sqrt(2 * np.pi) == pytest.approx(expected, rel=1e-12)
    # 61!! = 61 * 59 * ... * 1, the highest even moment that 32 nodes hold.
    assert weights @ nodes**62 / np.sqrt(2 * np.pi) == pytest.approx(np.prod(np.arange(1.0, 62.0, 2.0)), rel=1e-10)


def test_gauss_legendre_is_exact_for_polynomials_of_degree_19():
    nodes, weights = integration.gauss_legendre(10)
    assert weights @ (1.5 + nodes) ** 19 == pytest.approx((2.5**20 - 0.5**20) / 20, rel=1e-13)


@pytest.mark.parametrize(("size", "count"), [(1, 401), (2, 65)])
def test_trapezoid_grid_is_exact_to_rounding(size, count):
    nodes, weights = integration.trapezoid_normal(size, count)
    slope = np.array([0.8, -0.5])[:size]
    # E exp(a'x) = exp(a'a / 2); the mass beyond 8 deviations, tilted by 0.8, is N(7.2) = 3e-13.
    assert weights @ np.exp(nodes @ slope) == pytest.approx(np.exp(slope @ slope / 2), rel=1e-11)


def test_sobol_normals_integrate_and_scrambles_differ():
    slope = np.array([0.8, -0.5, 0.3])
    means = [
        np.exp(integration.sobol_normals(3, 4096, seed) @ slope).mean() for seed in (0, 1, np.random.default_rng(1))
    ]
    # By Monte Carlo the standard error is 1.9 / 64 = 0.03; scrambled Sobol points are thirty times better.
    np.testing.assert_allclose(means, np.exp(slope @ slope / 2), rtol=3e-3)
    assert len(set(means)) == 3
    assert means[0] == np.exp(integration.sobol_normals(3, 4096) @ slope).mean()


@pytest.mark.parametrize(("count", "width", "length"), [(10, 3, 4), (12, 3, 4), (5, 100, 1), (0, 3, 4)])
def test_slices_hold_each_entry_once(count, width, length):
    slices = integration.slices(count, width, values=12)
    assert np.concatenate([np.arange(count)[part] for part in slices] or [[]]).tolist() == list(range(count))
    assert all(part.stop - part.start == length for part in slices)
    assert integration.chunk_length(width, values=12) == length


@pytest.mark.parametrize(("count", "width", "length"), [(10, 3, 4), (7, 1, 8), (8, 1, 8), (9, 1, 12), (3, 100, 1)])
def test_padded_chunks_have_one_length_and_repeat_the_last_row(count, width, length):
    rows = 5 + 2 * np.arange(count)
    chunks = integration.padded_chunks(rows, width, values=12)
    assert {len(chunk) for chunk in chunks} == {length}
    joined = np.concatenate(chunks)
    assert joined[:count].tolist() == rows.tolist()
    assert set(joined[count:]) <= {rows[-1]}
    assert len(joined) - count < length


def test_row_counts_share_few_chunk_lengths():
    lengths = {len(chunk) for count in range(1, 1000) for chunk in integration.padded_chunks(np.arange(count), 1)}
    assert lengths == {2**power for power in range(11)}


def test_power_of_two_is_the_next():
    assert [integration.power_of_two(count) for count in (0, 1, 2, 3, 5, 1024, 1025)] == [1, 1, 2, 4, 8, 1024, 2048]
