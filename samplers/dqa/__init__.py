"""Diabatic quantum annealing: schedules, calibration, a batched state vector and Qiskit circuits on Aer."""

from samplers.dqa.layers import Layers
from samplers.dqa.sampler import CoarseScheduleWarning, DQASampler
from samplers.dqa.schedules import (
    AngleSchedule,
    AnnealSchedule,
    anneal_from_csv,
    free_angles,
    load_schedule,
    named_schedule,
    save_schedule,
    schedule_names,
)

__all__ = [
    "AngleSchedule",
    "AnnealSchedule",
    "CoarseScheduleWarning",
    "DQASampler",
    "Layers",
    "anneal_from_csv",
    "free_angles",
    "load_schedule",
    "named_schedule",
    "save_schedule",
    "schedule_names",
]
