"""Assemblies: whole models built from ising_attn."""
