"""The Gibbs sampler: its moves, their adaptation, and runs."""
