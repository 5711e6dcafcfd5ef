import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each example must print: the lines that carry what it shows.
SHOWN = {
    "binary": ["Learned: RBF", "gibbs (ref.)", "corrected: the latent variance"],
    "multiclass": ["logistic-softmax: 3 latents", "stick-breaking: 2 latents", "gibbs (ref.)"],
    "counts": ["true rate", "NegativeBinomial(dispersion=", "gibbs (ref.)"],
    "robust_regression": ["Student-t", "Laplace", "cavi against gibbs"],
    "heteroscedastic_regression": ["Held-out data", "Use gibbs for this model"],
    "own_likelihood": ["λ | f, y ~ Gamma(1, rate", "the ELBO rises", "gibbs (ref.)", "no augmentation for the factor"],
}
# Some 25 s on two idle cores: compilation, for the most part.
SLOW = {"multiclass", "own_likelihood"}


def test_every_example_is_listed():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SHOWN]
)
def test_example_runs_as_it_stands(name, tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8")
    script = ROOT / "examples" / f"{name}.py"
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pgmodels", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    for line in SHOWN[name]:
        assert line in run.stdout
    # Warnings of the package go to stderr: an example that needs one explained is no example.
    assert "Warning" not in run.stderr
