"""The Gibbs sampler: its moves, what tunes them, its runs."""
