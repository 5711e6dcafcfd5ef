"""Time of a CAVI iteration and of a Gibbs sweep against the raw linear algebra of the same size, in one run."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from table import write_table

import pgmodels as pgm
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Keep, run_chunk
from pgmodels.inference.moves import DataAugmentation
from pgmodels.inference.problem import problem_of
from pgmodels.inference.slice_moves import SliceLatents
from pgmodels.model import Data
from pgmodels.runtime.jit import compiled, one_thread_up_to


def seconds(function: Callable[[], object], num_rows: int, repeats: int = 7) -> float:
    """The median time of a call after the first, with the threads that engines run on."""
    times = []
    with one_thread_up_to(num_rows):
        jax.block_until_ready(function())
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(function())
            times.append(time.perf_counter() - start)
    return float(np.median(times))


rows = []
with jax.enable_x64(True):
    for n, kernel in [
        (500, pgm.Matern12(1.0, 1.0)),
        (1000, pgm.Matern12(1.0, 1.0)),
        (2000, pgm.Matern12(1.0, 1.0)),
        (2000, pgm.RBF(1.0, 1.0)),
    ]:
        rng = np.random.default_rng(0)
        X = rng.uniform(-2.0, 2.0, (n, 2))
        y = (rng.random(n) < 0.5 + 0.4 * np.sin(2 * X[:, 0])).astype(float)
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel))
        problem = problem_of(model, Data(X, y))
        K = jnp.asarray(kernel(X, X)) + jnp.eye(n)
        cholesky = jax.jit(jnp.linalg.cholesky)
        both = jax.jit(lambda K: solve_triangular(jnp.linalg.cholesky(K), K, lower=True))
        state, step = CAVI.init(problem), compiled(CAVI.step)
        run = GibbsRun(model, model.check(X, y), Settings(0, 1, jax.random.key(0), Keep("moments")))
        sweeps_alone = run.schedule.change(SliceLatents, repeats=0)
        # Bound as defaults: a closure would read the last size.
        raw_cholesky = seconds(lambda f=cholesky, K=K: f(K), n)
        raw_both = seconds(lambda f=both, K=K: f(K), n)
        update = seconds(lambda step=step, p=problem, s=state: step(p, s), n)
        chunk = (run.target, sweeps_alone, run.state, run.moments, 0, 5, run.settings.keep)
        sweep = seconds(lambda c=chunk: run_chunk(*c), n) / 5
        slices = run.schedule.change(SliceLatents, repeats=20).change(DataAugmentation, every=1000)
        chunk = (run.target, slices, run.state, run.moments, 1, 5, run.settings.keep)
        slice_step = seconds(lambda c=chunk: run_chunk(*c), n) / 100
        rows.append(
            {
                "n": n,
                "kernel": type(kernel).__name__,
                "form": f"{type(problem.prior.groups[0]).__name__}, rank {problem.prior.groups[0].rank}",
                "Cholesky n, ms": 1e3 * raw_cholesky,
                "Cholesky + solve n, ms": 1e3 * raw_both,
                "CAVI iteration, ms": 1e3 * update,
                "ratio to Cholesky + solve": update / raw_both,
                "Gibbs sweep, ms": 1e3 * sweep,
                "ratio to Cholesky": sweep / raw_cholesky,
                "slice step, ms": 1e3 * slice_step,
            }
        )
write_table(
    "Iterations against raw linear algebra, Bernoulli",
    rows,
    "A dense CAVI iteration needs one Cholesky factor and the inverse of its triangle, n^3 / 3 operations each; beside "
    "it LAPACK's Cholesky and triangular solve with n columns, 4 n^3 / 3, which give the same variances. A dense Gibbs "
    "sweep needs one Cholesky factor, n^3 / 3, matrix-vector products and n Pólya-Gamma draws; a slice step a "
    "matrix-vector product with a root's inverse and two with the prior's, n^2 each. Times in milliseconds, medians of "
    "7 calls, compilation apart, all on one thread of LAPACK up to 1,500 rows, as the engines do.",
    seed=0,
)
