"""A sampler as plain data (its registered name and options) and back: what a file can hold of it.

Data of a file are data: reading them opens no file that they name and reaches no machine.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from samplers.base import Sampler
from samplers.errors import InvalidOptionError, IsingAttnError
from samplers.registry import get_sampler, sampler_class, sampler_entries
from samplers.spread import plain_class

# Their calls cost money, on the account of whoever loads the file; so they are always given anew.
_REMOTE = ("dwave",)


def sampler_to_dict(sampler: Sampler) -> dict[str, Any]:
    """{"name": …, "options": …} in JSON values.

    A schedule of the simulated anneal that is an object or a file is stored with its angles. `options` is None where
    the sampler cannot be made again from data: an option holds an object (a dimod sampler, a Qiskit primitive), its
    class is not registered, or it reaches a machine outside.
    """
    name = registered_name(sampler)
    if name is None or name in _REMOTE:
        return {"name": stored_name(sampler), "options": None}
    options = Sampler.options(sampler)  # the base's: some spell an object by its name
    if "schedule" in options and not _is_name(options["schedule"]):
        from samplers.dqa.schedules import as_schedule

        options["schedule"] = as_schedule(options["schedule"]).to_json()
    return {"name": name, "options": options if _is_plain(options) else None}


def sampler_from_dict(values: Any, source: str | Path) -> Sampler:
    """The inverse of `sampler_to_dict`, for data from anywhere.

    Args:
        source: where the data come from, for messages.

    Raises:
        InvalidOptionError: other keys, an unknown sampler or option, or options that were not stored.
        MissingDependencyError: the sampler needs a package that is absent.
    """
    if not isinstance(values, dict) or set(values) != {"name", "options"} or not isinstance(values["name"], str):
        raise InvalidOptionError(f"{source}: a sampler must have a name and options, and nothing else")
    name, options = values["name"], values["options"]
    if options is None or name in _REMOTE:
        raise InvalidOptionError(f"{source} names the sampler {name!r} without options to make it again; give your own")
    if not isinstance(options, dict):
        raise InvalidOptionError(f"{source}: the options of the sampler {name!r} must be a JSON object")
    options = dict(options)
    schedule = options.get("schedule")
    if isinstance(schedule, dict):
        from samplers.dqa.schedules import schedule_from_json

        options["schedule"] = schedule_from_json(schedule, source)
    elif not _is_name(schedule):
        raise InvalidOptionError(f"{source}: schedule is {schedule!r}; a file holds a schedule itself, or its name")
    try:
        return get_sampler(name, **options)
    except (TypeError, ValueError) as error:
        if isinstance(error, IsingAttnError):
            raise type(error)(f"{source}: {error}") from None
        raise InvalidOptionError(f"{source}: the sampler {name!r} does not take these options ({error})") from None


def registered_name(sampler: Sampler) -> str | None:
    """The name under which `get_sampler` makes samplers of this class; None where there is none."""
    kind = plain_class(sampler)  # its workers, if any, are of this machine
    own = f"{kind.__module__}:{kind.__qualname__}"
    for name, entry in sampler_entries().items():
        if name == kind.name or entry.target == own:
            with contextlib.suppress(IsingAttnError, ImportError, AttributeError):
                if sampler_class(name) is kind:
                    return name
    return None


def stored_name(sampler: Sampler) -> str:
    """Its registered name, or that of its class."""
    return registered_name(sampler) or sampler.name or type(sampler).__name__


def _is_name(schedule: Any) -> bool:
    """A schedule by name, or none; anything else is an object or a file."""
    return schedule is None or (isinstance(schedule, str) and not schedule.endswith(".json") and os.sep not in schedule)


def _is_plain(value: Any) -> bool:
    """Whether JSON brings it back as it was."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return bool(_same(json.loads(text), value))


def _same(back: Any, value: Any) -> bool:
    if type(back) is not type(value):
        return False
    if isinstance(value, dict):
        return back.keys() == value.keys() and all(_same(back[key], value[key]) for key in value)
    if isinstance(value, list):
        return len(back) == len(value) and all(map(_same, back, value))
    return bool(back == value)
