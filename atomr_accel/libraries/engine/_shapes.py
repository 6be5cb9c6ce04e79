"""Profiles, and the shapes of what calls give and get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..._errors import said_of
from ...wire.options import whole

if TYPE_CHECKING:
    from .wire.messages import TensorOf

Limits = tuple[tuple[int, int], ...]
"""The least and the largest extent of each axis."""

Profiles = tuple[Mapping[str, Limits], ...]


def checked_profiles(given: object) -> Profiles:
    """Return profiles, of which every call has to fit one.

    Args:
        given: None, a mapping of inputs to shapes, or several of these. A shape has an extent or a
            pair of the least and the largest extent for each axis.
    """
    if given is None:
        return ()
    several = (given,) if isinstance(given, Mapping) else given
    if isinstance(several, str | bytes) or not isinstance(several, Iterable):
        raise TypeError(
            f"profiles must be a mapping of inputs to shapes, or several, not {said_of(given)}"
        )
    profiles = tuple(_profile(each) for each in several)
    if not profiles:
        raise ValueError("profiles must have at least one; leave them out for any shapes")
    return profiles


def fixed_axes(profiles: Profiles) -> tuple[tuple[str, int, int], ...]:
    """Return the axes, by input and number, that have one extent in all profiles."""
    if not profiles:
        return ()
    first, *others = profiles
    return tuple(
        (name, axis, least)
        for name, limits in first.items()
        for axis, (least, most) in enumerate(limits)
        if least == most
        and all(axis < len(o.get(name, ())) and o[name][axis] == (least, most) for o in others)
    )


def require_inputs(profiles: Profiles, inputs: tuple[TensorOf, ...]) -> None:
    """Check that profiles are about the inputs of a model."""
    known = {each.name: each for each in inputs}
    for name, limits in ((name, limits) for each in profiles for name, limits in each.items()):
        if name not in known:
            raise ValueError(
                f"profiles must be of inputs of the model, {_listed(known)}, not of {name!r}; "
                "rename it"
            )
        shape = known[name].shape
        if shape is None:
            continue
        fits = len(shape) == len(limits) and all(
            not isinstance(extent, int) or least <= extent <= most
            for extent, (least, most) in zip(shape, limits, strict=True)
        )
        if not fits:
            raise ValueError(
                f"the profile of {name!r} must allow the model's shape {shown(shape)}, not "
                f"{limits}; change the profile"
            )


def bound_axes(
    inputs: tuple[TensorOf, ...], shapes: Mapping[str, tuple[int, ...]], profiles: Profiles
) -> dict[str, int]:
    """Return the extents of named axes in a call."""
    axes: dict[str, int] = {}
    for each in inputs:
        shape = shapes[each.name]
        if each.shape is None:
            continue
        fits = len(shape) == len(each.shape)
        for wanted, extent in zip(each.shape, shape, strict=False):
            if isinstance(wanted, str):
                fits = fits and axes.setdefault(wanted, extent) == extent
            else:
                fits = fits and wanted in (None, extent)
        if not fits:
            named = {key: axes[key] for key in each.shape if isinstance(key, str) and key in axes}
            where = f" with {', '.join(f'{k} = {v}' for k, v in named.items())}" if named else ""
            raise ValueError(
                f"{each.name} must have shape {shown(each.shape)}{where}, not {shape}; pad or "
                "reshape it"
            )
    if profiles and not any(_fits(profile, shapes) for profile in profiles):
        given = ", ".join(f"{name}={shape}" for name, shape in shapes.items())
        raise ValueError(
            f"shapes must fit a profile of the engine, not {given}; build it with one for these"
        )
    return axes


def output_shape(tensor: TensorOf, axes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an output in a call; None if only the run tells it."""
    if tensor.shape is None:
        return None
    shape = []
    for extent in tensor.shape:
        found = axes.get(extent) if isinstance(extent, str) else extent
        if found is None:
            return None
        shape.append(found)
    return tuple(shape)


def shown(shape: tuple[Any, ...] | None) -> str:
    """Return a shape as text."""
    if shape is None:
        return "(...)"
    return f"({', '.join('?' if each is None else str(each) for each in shape)})"


def _fits(profile: Mapping[str, Limits], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(
        len(limits) == len(shapes[name])
        and all(low <= n <= high for n, (low, high) in zip(shapes[name], limits, strict=True))
        for name, limits in profile.items()
    )


def _profile(given: object) -> Mapping[str, Limits]:
    if not isinstance(given, Mapping):
        raise TypeError(f"a profile must be a mapping of inputs to shapes, not {said_of(given)}")
    return {_name(name): _limits(name, shape) for name, shape in given.items()}


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"a profile's inputs must be names, not {said_of(given)}")
    return given


def _limits(name: str, shape: object) -> Limits:
    what = f"the profile of {name!r}"
    if not isinstance(shape, tuple | list):
        raise TypeError(f"{what} must be a tuple of extents or pairs, not {said_of(shape)}")
    limits = []
    for each in shape:
        pair = each if isinstance(each, tuple | list) else (each, each)
        if len(pair) != 2:
            raise ValueError(f"{what} must have pairs of the least and the largest, not {each!r}")
        least, most = (whole(extent, f"an extent in {what}", least=0) for extent in pair)
        if least > most:
            raise ValueError(f"{what} must have the least extent first, not {each!r}")
        limits.append((least, most))
    return tuple(limits)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
