"""What a notebook shows of figures, without %matplotlib inline and with it."""

import base64
import pickle
from types import SimpleNamespace

import nbclient
import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.pylabtools import select_figure_formats
from matplotlib.figure import Figure

import pgmodels as pgm
from tests import made_results

PNG = b"\x89PNG\r\n"


def figures():
    table = made_results.comparison("bernoulli")
    yield pgm.plot_trace(table.results["gibbs"])
    yield pgm.plot_graph(table.results["cavi"].model)


def test_figures_have_a_picture_and_are_figures():
    for figure in figures():
        assert isinstance(figure, Figure)
        assert figure._repr_png_().startswith(PNG)
        again = pickle.loads(pickle.dumps(figure))
        assert again._repr_png_().startswith(PNG)
        np.testing.assert_array_equal(again.get_size_inches(), figure.get_size_inches())


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_notebook_shows_a_figure_as_one_picture(is_inline):
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    if is_inline:
        # As %matplotlib inline does.
        select_figure_formats(shell, {"png"})
    figure = pgm.plot_graph(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))))
    shown, _ = shell.display_formatter.format(figure)
    picture = shown["image/png"]
    assert (base64.b64decode(picture) if isinstance(picture, str) else picture).startswith(PNG)
    assert set(shown) == {"image/png", "text/plain"}


@pytest.mark.slow
def test_a_notebook_runs_with_figures_and_without_warnings():
    cells = [
        "import warnings; warnings.simplefilter('error', UserWarning)",
        "import numpy as np, pgmodels as pgm\nX = np.linspace(0, 1, 8)[:, None]; y = (X[:, 0] > 0.3).astype(float)",
        "vi = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)\npgm.plot_latent(vi)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    [shown] = notebook.cells[-1].outputs
    assert "image/png" in shown.data
