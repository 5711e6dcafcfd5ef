"""What single precision would save in a pass over the rows, and what it would cost in digits.

Usage: python validation/single_precision.py. Data are read from PGMODELS_DATA.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from scipy.cluster.vq import kmeans2
from table import write_table

import pgmodels as pgm
from pgmodels.datasets import load
from pgmodels.inference.problem import problem_of
from pgmodels.model import Data
from pgmodels.priors import linalg
from pgmodels.priors.base import pad_zeros, row_mask_of
from pgmodels.priors.linalg import each_row, inverse_root, summed
from pgmodels.runtime.jit import compiled

SETS = ("magic", "electricity", "cod-rna", "skin")
ROWS, LEARNED, INPUTS, PASSES, REPEATS = 20_000, 1_000, 300, 10, 5
# What is in single precision, each with all before it; sums over chunks of rows are in double precision always.
VARIANTS = ("nothing", "A W A^T", "A and variances, by products", "K(Z, X)")


def one_pass(prior, X, h, w, whitener, level):
    """Mean and variance (n,) of the latent at the rows, and log Z of the sites h and w."""
    single = [jnp.float32 if level > place else jnp.float64 for place in range(3)]
    products, solves, kernel = single

    def cross(X):
        at_rows, at_inputs = X.astype(kernel), prior.Z.astype(kernel)
        kernel_single = jax.tree.map(lambda part: jnp.asarray(part, kernel), prior.kernel)
        return (kernel_single(at_inputs, at_rows) * prior.active[:, None]).astype(solves)

    def statistics(X, h, w):
        A = whitener.astype(solves) @ cross(X)
        scaled = (A * jnp.sqrt(w)).astype(products)
        return (scaled @ scaled.T).astype(float), A.astype(float) @ h

    P, pulled = summed(statistics, (jnp.eye(prior.rank), jnp.zeros(prior.rank)), prior.rank, X, h, w)
    root = jnp.linalg.cholesky(P)
    centre = cho_solve((root, True), pulled)
    weights, half = whitener.T @ centre, solve_triangular(root, whitener, lower=True)

    def moments(X):
        K = cross(X)
        return weights @ K, jnp.sum((half.astype(solves) @ K) ** 2, axis=0).astype(float)

    mean, variance = each_row(moments, prior.rank, X)
    normaliser = 0.5 * pulled @ centre - jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * w @ prior.residual
    return mean, variance + prior.residual, normaliser


def compare(name: str) -> list[dict[str, object]]:
    """A row for each variant, at hyperparameters learned on some rows and at the sites of some passes of CAVI."""
    data = load(name)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(data.X))[:ROWS]
    X = data.X[order]
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), data.y[order]
    Z = kmeans2(X, INPUTS, minit="++", seed=0)[0]
    start = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, np.sqrt(X.shape[1])), mean=0.0, form=pgm.Inducing(Z[:50])))
    kernel = pgm.fit(start, X[:LEARNED], y[:LEARNED], objective="augmented", progress=False).model.gps[0].kernel
    programs = [compiled(partial(one_pass, level=level)) for level in range(len(VARIANTS))]
    times = np.zeros((REPEATS, len(VARIANTS)))
    with jax.enable_x64(True):
        # By chunks of rows: no factor is held.
        linalg.HELD = 0
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.0, form=pgm.Inducing(Z)))
        prior = problem_of(model, Data(X, y)).prior.groups[0]
        whitener, row_mask = inverse_root(prior.root), row_mask_of(len(y), len(prior.X))
        h, w = pad_zeros(y - 0.5, len(row_mask)), 0.25 * row_mask
        for _ in range(PASSES):
            mean, variance, _ = programs[0](prior, prior.X, h, w, whitener)
            c = jnp.sqrt(mean**2 + variance)
            w = row_mask * jnp.tanh(c / 2) / (2 * c)
        results = [[np.asarray(part) for part in program(prior, prior.X, h, w, whitener)] for program in programs]
        for turn in times:
            for place, program in enumerate(programs):
                begin = time.process_time()
                jax.block_until_ready(program(prior, prior.X, h, w, whitener))
                turn[place] = time.process_time() - begin
    mean, variance, normaliser = results[0]
    spread = float(np.linalg.cond(np.asarray(prior.root)))
    rows = []
    for variant, took, (m, v, z) in zip(VARIANTS, np.median(times, axis=0), results, strict=True):
        rows.append(
            {
                "data": f"{name}, {len(X)} x {X.shape[1]}",
                "condition of L_Z": spread,
                "in single precision": variant,
                "CPU s a pass": took,
                "log Z off, nats": float(abs(z - normaliser)),
                "of log Z": float(abs(z / normaliser - 1)),
                "means off, deviations": float(np.max(np.abs(m - mean) / np.sqrt(variance))),
                "variances off, relative": float(np.max(np.abs(v / variance - 1))),
            }
        )
    return rows


if __name__ == "__main__":
    write_table(
        "Single precision in a pass over the rows",
        [row for name in SETS for row in compare(name)],
        f"A pass of cavi with {INPUTS} inducing inputs, centres of k-means: Bernoulli, one RBF kernel learned on "
        f"{LEARNED:,} rows. Variants have in single precision what they name and all that those above have; sums over "
        "chunks of rows, the Cholesky roots and L_Z^-1 are in double precision in all. Errors are against the pass in "
        "double precision, the largest over the rows. cavi stops where the ELBO changes by 1e-9 of itself.",
        seed=0,
    )
