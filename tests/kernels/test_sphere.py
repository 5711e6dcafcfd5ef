"""Kernels of places on the earth: distances in km, positive definite, and the order of the columns."""

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.kernels.columns import RADIUS, Sphere

PLACES = {"Berlin": (13.40, 52.52), "Paris": (2.35, 48.86), "Quito": (-78.47, -0.18), "Suva": (178.44, -18.14)}
X = np.array(list(PLACES.values()))


def chords(X):
    """By the law of haversines, which no coordinate of a place enters."""
    longitude, latitude = np.deg2rad(X).T
    half = np.sin(0.5 * (latitude[:, None] - latitude)) ** 2
    half = half + np.cos(latitude[:, None]) * np.cos(latitude) * np.sin(0.5 * (longitude[:, None] - longitude)) ** 2
    return 2.0 * RADIUS * np.sqrt(half)


def test_distances_are_chords_in_km():
    kernel = Sphere(pgm.RBF(2.0, 3000.0))
    np.testing.assert_allclose(kernel(X, X), 2.0 * np.exp(-0.5 * (chords(X) / 3000.0) ** 2), rtol=1e-10)
    np.testing.assert_allclose(kernel.diagonal(X), 2.0)
    # Berlin to Paris is 878 km over the surface.
    assert chords(X)[0, 1] == pytest.approx(878.0, rel=0.01)
    # Full turns change nothing.
    np.testing.assert_allclose(kernel(X + np.array([360.0, 0.0]), X), kernel(X, X), rtol=1e-10)


def test_it_is_positive_definite_over_the_whole_earth():
    rng = np.random.default_rng(0)
    places = np.column_stack([rng.uniform(-180, 180, 200), np.rad2deg(np.arcsin(rng.uniform(-1, 1, 200)))])
    for kernel in (pgm.RBF(1.0, 8000.0), pgm.Matern52(1.0, 20000.0)):
        assert np.linalg.eigvalsh(Sphere(kernel)(places, places)).min() > -1e-9


def test_models_take_it_by_name_and_set_its_lengthscale(tmp_path):
    frame = pd.DataFrame({"year": [2001.0, 2002.0, 2003.0, 2004.0], "lon": X[:, 0], "lat": X[:, 1]})
    kernel = pgm.On(Sphere(pgm.Matern32()), ["lon", "lat"]) + pgm.On(pgm.RBF(1.0, 2.0), ["year"])
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), frame, [0, 1, 1, 0])
    assert float(result.model.gps[0].kernel.left.kernel.kernel.lengthscale.value) == pytest.approx(
        np.median(chords(X)[np.triu_indices(4, 1)])
    )
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.model == result.model
    np.testing.assert_allclose(loaded.predict_latent(frame), result.predict_latent(frame))
    with pytest.raises(ValueError, match=r"X_new must have longitudes and then latitudes.*got 48.86 and 178.4"):
        result.predict(frame.assign(lon=48.86, lat=178.4))


def test_what_it_cannot_be_is_named():
    with pytest.raises(ValueError, match=r"longitudes and then latitudes in degrees.*in row 3"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF()))), X[:, ::-1], [0, 1, 1, 0])
    with pytest.raises(ValueError, match=r"Sphere reads longitude and latitude; got 3 column"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF()))), np.eye(3), [0, 1, 1])
    with pytest.raises(ValueError, match="one lengthscale, in km"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF(1.0, [1.0, 2.0])))), X, [0, 1, 1, 0])


def test_a_formula_takes_it():
    pytest.importorskip("formulaic")
    frame = pd.DataFrame({"y": [1.0, 2.0, 1.5, 0.5], "lon": X[:, 0], "lat": X[:, 1]})
    regression = pgm.formula("y ~ gp(lon, lat, sphere=True)", frame)
    kernel = regression.model.gps[1].kernel.kernel
    assert isinstance(kernel, Sphere)
    assert 500.0 < np.exp(float(kernel.kernel.lengthscale.prior.loc)) < 13000.0
