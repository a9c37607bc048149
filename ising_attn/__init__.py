"""Ising attention: attention weights are the spin marginals of an Ising model."""
