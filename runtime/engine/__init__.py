"""Computation: programs of operations, their plans, parameters, optimizers."""
