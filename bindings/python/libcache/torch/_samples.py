# SPDX-License-Identifier: Apache-2.0
"""Samples as rows: any nest of tuples, lists and dicts around tensors, arrays, numbers, strings, bytes, None and PIL
images becomes a list of columns and a form, which says how to put them together again."""
from __future__ import annotations

import importlib
import json
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import torch

from .._columns import DTYPES

Form = list[Any]  # [kind, ...]; JSON writes and reads it


class SampleError(TypeError):
    """A sample has a part that cannot be cached; the message names the field."""


_TORCH_DTYPES = {str(dtype).partition(".")[2]: dtype for dtype in (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.bfloat16, torch.complex64, torch.complex128)}


def take_apart(sample: Any) -> tuple[Form, list[Any]]:
    """(form, columns) of a sample. SampleError for what cannot be cached."""
    columns: list[Any] = []
    return _apart(sample, "sample", columns), columns


def _apart(value: Any, where: str, columns: list[Any]) -> Form:
    kind = type(value)
    if value is None:
        return ["none"]
    if kind in (bool, int, float, str, bytes):
        if kind is int and not -2**63 <= value < 2**63:
            raise SampleError(f"{where}: {value} does not fit into 64 bits and cannot be cached")
        columns.append(value)
        return [kind.__name__]
    if kind is complex:
        columns.append(np.array([value.real, value.imag]))
        return ["complex"]
    if kind in (tuple, list):
        return [kind.__name__, *[_apart(item, f"{where}[{i}]", columns) for i, item in enumerate(value)]]
    if kind is dict:
        for key in value:
            if type(key) not in (str, int):
                raise SampleError(f"{where}: a key of a dict must be a str or an int, not {key!r}")
        return ["dict", *[[key, _apart(item, f"{where}[{key!r}]", columns)] for key, item in value.items()]]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        if "<locals>" in kind.__qualname__:
            raise SampleError(f"{where}: the named tuple {kind.__qualname__} is local to a function; define it in a "
                              f"module")
        return ["namedtuple", f"{kind.__module__}:{kind.__qualname__}",
                *[_apart(item, f"{where}.{name}", columns) for name, item in zip(kind._fields, value)]]
    if kind is torch.Tensor:
        return _tensor_apart(value, where, columns)
    if kind is np.ndarray or isinstance(value, np.generic):
        return _array_apart(value, where, columns)
    if _is_picture(value):
        return _picture_apart(value, where, columns)
    raise SampleError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be cached; samples are "
                      f"made of tensors, arrays, numbers, strings, bytes, None, PIL images, tuples, lists and dicts")


def _tensor_apart(value: torch.Tensor, where: str, columns: list[Any]) -> Form:
    if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu" or value.requires_grad:
        raise SampleError(f"{where} is a tensor that cannot be cached (layout {value.layout}, device {value.device}, "
                          f"requires_grad {value.requires_grad}); return a dense CPU tensor without gradient")
    name = str(value.dtype).partition(".")[2]
    if name not in _TORCH_DTYPES:
        raise SampleError(f"{where}: tensors of {value.dtype} cannot be cached")
    value = value.resolve_conj().resolve_neg()
    if name == "bfloat16":
        value = value.contiguous().view(torch.int16)
    elif value.is_complex():
        value = torch.view_as_real(value)
    columns.append(value.numpy())
    return ["tensor", name]


def _array_apart(value: Any, where: str, columns: list[Any]) -> Form:
    form = ["scalar" if isinstance(value, np.generic) else "array", value.dtype.str]
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise SampleError(f"{where}: an array of {array.dtype} cannot be cached")
    if array.dtype.newbyteorder("=") in DTYPES:
        columns.append(array)
        return form
    # complex numbers, dates, fixed-width strings, long double: their bytes, with the width as one more dimension
    columns.append(np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.dtype.itemsize))
    return [form[0] + " bytes", form[1]]


def _is_picture(value: Any) -> bool:
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def _picture_apart(value: Any, where: str, columns: list[Any]) -> Form:
    """The pixels, not the file: format, info and EXIF data of a picture are not kept."""
    palette = value.getpalette("RGB") if value.mode in ("P", "PA") else None
    columns += [value.tobytes(), np.array(value.size)]
    if palette is None:
        return ["picture", value.mode]
    columns.append(bytes(palette))
    return ["picture", value.mode, "RGB"]


# ---- and together again ----------------------------------------------------------------------------------------------

_BUILTINS = {"__import__": __import__}  # which PyTorch needs in whatever frame first asks it for NumPy

def putting_together(form: Form) -> tuple[Callable[[tuple], Any], int]:
    """(function that makes the sample of a row, number of columns it reads). The function is compiled: a row of two
    columns costs two calls, not a walk over the form. What it returns is the caller's own: arrays and tensors are
    copies, because PyTorch has no read-only tensor and would write into shared memory."""
    maker = _Maker()
    expression = maker.expression(form)
    return eval(f"lambda row: {expression}", maker.names), maker.columns  # noqa: S307 - made of our own words only


class _Maker:
    def __init__(self) -> None:
        self.columns = 0
        self.names: dict[str, Any] = {"__builtins__": _BUILTINS, "int": int, "bool": bool, "float": float, "str": str,
                                      "from_numpy": torch.from_numpy}

    def _name(self, value: Any) -> str:
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name

    def _column(self) -> str:
        self.columns += 1
        return f"row[{self.columns - 1}]"

    def expression(self, form: Form) -> str:
        kind = form[0]
        if kind == "none":
            return "None"
        if kind in ("int", "bool", "float"):
            return f"{kind}({self._column()})"
        if kind == "str":
            return self._column()
        if kind == "bytes":
            return f"{self._column()}.tobytes()"
        if kind == "complex":
            return f"{self._name(lambda parts: complex(*parts.tolist()))}({self._column()})"
        if kind in ("tuple", "list"):
            items = "".join(self.expression(item) + ", " for item in form[1:])
            return f"({items})" if kind == "tuple" else f"[{items}]"
        if kind == "dict":
            return "{" + "".join(f"{self._name(key)}: {self.expression(item)}, " for key, item in form[1:]) + "}"
        if kind == "namedtuple":
            return f"{self._name(_find(form[1]))}({''.join(self.expression(item) + ', ' for item in form[2:])})"
        if kind == "tensor":
            return self._tensor(form[1])
        if kind == "picture":
            columns = ", ".join(self._column() for _ in form)  # pixels, size and, named in a third place, the palette
            return f"{self._name(_picture)}({form[1]!r}, {columns})"
        return self._array(kind, np.dtype(form[1]))

    def _tensor(self, name: str) -> str:
        plain = f"from_numpy({self._column()}.copy())"
        if name == "bfloat16":
            return f"{plain}.view({self._name(torch.bfloat16)})"
        return f"{self._name(torch.view_as_complex)}({plain})" if name.startswith("complex") else plain

    def _array(self, kind: str, dtype: np.dtype) -> str:
        column, width = self._column(), self._name(dtype)
        if kind == "scalar":
            return f"{column}.astype({width})[()]"
        if kind == "array":
            return f"{column}.astype({width})"
        return f"{self._name(_array_of_bytes)}({column}, {width}){'[()]' if kind.startswith('scalar') else ''}"


def cutting_up(form: Form) -> Optional[Callable[[list[np.ndarray]], list[Any]]]:
    """putting_together for rows of one shape that were gathered: a function that makes the samples of a batch of its
    columns, each of which holds that column of all rows. Samples are parts of the columns, not copies. None for forms
    with a part that is not gathered as it is: text, pictures, numbers that are kept as bytes."""
    iterables: list[str] = []
    sample = _cut_up(form, iterables)
    if sample is None or not iterables:
        return None
    names = {"__builtins__": _BUILTINS, "zip": zip, "tensors": _tensors_of_block, "arrays": _arrays_of_block}
    parts = "".join(f"v{i}, " for i in range(len(iterables)))
    return eval(f"lambda c: [{sample} for {parts} in zip({', '.join(iterables)})]", names)  # noqa: S307


def _cut_up(form: Form, iterables: list[str]) -> Optional[str]:
    """The expression that makes a sample of v0, v1, ...; iterables, of a batch's columns c, give those."""
    kind, column = form[0], f"c[{len(iterables)}]"
    if kind == "none":
        return "None"
    if kind in ("tuple", "list"):
        items = [_cut_up(item, iterables) for item in form[1:]]
        if None in items:
            return None
        inside = "".join(f"{item}, " for item in items)
        return f"({inside})" if kind == "tuple" else f"[{inside}]"
    if kind == "dict":
        pairs = [(key, _cut_up(item, iterables)) for key, item in form[1:]]
        if any(item is None for _, item in pairs):
            return None
        return "{" + "".join(f"{key!r}: {item}, " for key, item in pairs) + "}"
    if kind in ("int", "bool", "float"):
        iterables.append(f"{column}.tolist()")
    elif kind == "tensor" and form[1] != "bfloat16" and not form[1].startswith("complex"):
        iterables.append(f"tensors({column})")
    elif kind in ("array", "scalar") and np.dtype(form[1]).isnative:
        iterables.append(f"arrays({column})" if kind == "array" else column)
    else:
        return None
    return f"v{len(iterables) - 1}"


def _tensors_of_block(block: np.ndarray) -> Any:
    """A tensor per row. Where a row is more than a number it has a storage of its own: who pickles it, or shares it
    with another process, takes along that row and not the batch."""
    return map(torch.from_numpy, block) if block.ndim > 1 else torch.from_numpy(block).unbind(0)


def _arrays_of_block(block: np.ndarray) -> Any:
    return block if block.ndim > 1 else [block[i, ...] for i in range(len(block))]


_SHOWN = ".numpy()"


def taking_apart(form: Form) -> Optional[tuple[Callable[[Any], Any], Callable[[Any], list[int]]]]:
    """A faster take_apart for samples of one form: a function that gives the columns, or None for any other sample, and
    one that gives the addresses of a sample's tensors. They are compiled like putting_together, for forms of plain
    tensors, numbers, strings and bytes; there are none for others. The first one raises TypeError or RuntimeError for
    tensors that NumPy cannot show."""
    names: dict[str, Any] = {"__builtins__": _BUILTINS, "type": type, "len": len, "tuple": tuple, "list": list,
                             "int": int, "bool": bool, "float": float, "str": str, "bytes": bytes,
                             "Tensor": torch.Tensor}
    checks: list[str] = []
    columns: list[str] = []
    if not _fast_checks(form, "s", names, checks, columns):
        return None
    split = f"lambda s: [{', '.join(columns)}] if {' and '.join(checks)} else None"
    places = [column.replace(_SHOWN, ".data_ptr()") for column in columns if column.endswith(_SHOWN)]
    return eval(split, names), eval(f"lambda s: [{', '.join(places)}]", names)  # noqa: S307


def _fast_checks(form: Form, where: str, names: dict[str, Any], checks: list[str], columns: list[str]) -> bool:
    kind = form[0]
    if kind in ("tuple", "list"):
        checks.append(f"type({where}) is {kind} and len({where}) == {len(form) - 1}")
        return all(_fast_checks(item, f"{where}[{i}]", names, checks, columns) for i, item in enumerate(form[1:]))
    if kind == "tensor" and form[1] != "bfloat16" and not form[1].startswith("complex"):
        names["d_" + form[1]] = _TORCH_DTYPES[form[1]]
        checks.append(f"type({where}) is Tensor and {where}.dtype is d_{form[1]}")
        columns.append(where + _SHOWN)  # fails on a device, sparse, with a gradient
        return True
    if kind in ("int", "bool", "float", "str", "bytes"):
        checks.append(f"type({where}) is {kind}" + (f" and {-2**63} <= {where} < {2**63}" if kind == "int" else ""))
        columns.append(where)
        return True
    return False


_PILED_BYTES = 8192  # of a column of a row: copying more than that costs more than a NumPy array for each tensor


def pile_up(form: Form, samples: Sequence[Any]) -> Optional[tuple[tuple[np.ndarray, ...], list[int]]]:
    """Samples of this form as one array for each column, which holds that column of all of them, and the addresses of
    their tensors. What take_apart costs for a sample, this costs for a batch. None if that cannot be done: for other
    samples, tensors that differ in shape or are large, and for what is no plain tensor or number."""
    columns: list[np.ndarray] = []
    places: list[int] = []
    try:
        piled = _pile(form, samples, columns, places)
    except (TypeError, RuntimeError, OverflowError):  # NumPy cannot show it, shapes differ, 64 bits are too few
        piled = False
    return (tuple(columns), places) if piled and columns else None


def _pile(form: Form, values: Sequence[Any], columns: list[np.ndarray], places: list[int]) -> bool:
    kind = form[0]
    if kind in ("tuple", "list"):
        return (_all_are({"tuple": tuple, "list": list}[kind], values) and set(map(len, values)) == {len(form) - 1} and
                all(_pile(item, of_all, columns, places) for item, of_all in zip(form[1:], zip(*values))))
    if kind == "tensor" and form[1] != "bfloat16" and not form[1].startswith("complex"):
        return _pile_tensors(_TORCH_DTYPES[form[1]], values, columns, places)
    if kind in ("int", "bool", "float"):
        number, dtype = _NUMBERS[kind]
        if _all_are(number, values):
            columns.append(np.array(values, dtype))
            return True
    return False


_NUMBERS = {"int": (int, np.int64), "bool": (bool, np.bool_), "float": (float, np.float64)}
_dtype_of, _needs_gradient = operator.attrgetter("dtype"), operator.attrgetter("requires_grad")


def _all_are(kind: type, values: Sequence[Any]) -> bool:
    return set(map(type, values)) == {kind}


def _pile_tensors(dtype: torch.dtype, values: Sequence[Any], columns: list[np.ndarray], places: list[int]) -> bool:
    if (not _all_are(torch.Tensor, values) or set(map(_dtype_of, values)) != {dtype} or
            any(map(_needs_gradient, values)) or values[0].numel() * values[0].element_size() > _PILED_BYTES):
        return False
    columns.append(torch.stack(values).contiguous().numpy())
    places += filter(None, map(torch.Tensor.data_ptr, values))  # a tensor without numbers has no address
    return True


def _array_of_bytes(column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(bytearray(column), dtype, math.prod(column.shape[:-1])).reshape(column.shape[:-1])


def _picture(mode: str, pixels: np.ndarray, size: np.ndarray, palette: Any = None) -> Any:
    from PIL import Image
    picture = Image.frombytes(mode, tuple(size.tolist()), pixels.tobytes())
    if palette is not None:
        picture.putpalette(palette.tobytes(), "RGB")
    return picture


def _find(path: str) -> Any:
    module, _, qualname = path.partition(":")
    value: Any = importlib.import_module(module)
    for word in qualname.split("."):
        value = getattr(value, word)
    return value


def same_columns(a: list[Any], b: list[Any]) -> bool:
    """Whether two samples of the same form hold the same bytes (a NaN equals itself)."""
    return len(a) == len(b) and all(
        type(x) is type(y) and (x == y or x != x and y != y) if not isinstance(x, np.ndarray)
        else x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b))


def to_text(form: Form) -> str:
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


def addresses(columns: list[Any]) -> list[int]:
    """Of the arrays among them."""
    return [column.__array_interface__["data"][0] for column in columns if type(column) is np.ndarray and column.size]


# ---- batches -------------------------------------------------------------------------------------------------------

_GATHERED = {"tensor", "array", "scalar", "int", "bool", "float"}


def batch_form(form: Form) -> Any:
    """The form with a column number at each place that a batch tensor can be gathered to, as default_collate would
    make it; None if it holds something else (text, pictures, None)."""
    return _batch(form, [0])


def _batch(form: Form, column: list[int]) -> Any:
    kind = form[0]
    if kind in _GATHERED:
        if kind == "tensor" and form[1] in ("bfloat16", "complex64", "complex128"):
            return None
        if kind in ("array", "scalar") and np.dtype(form[1]).byteorder == ">":
            return None  # default_collate refuses it, and so it shall
        column[0] += 1
        return column[0] - 1
    if kind in ("tuple", "list"):
        items = [_batch(item, column) for item in form[1:]]
        return None if None in items or not items else items  # default_collate makes a list of a tuple
    if kind == "dict":
        pairs = {key: _batch(item, column) for key, item in form[1:]}
        return None if None in pairs.values() or not pairs else pairs
    return None


def fill_batch(form: Any, make: Callable[[int], torch.Tensor]) -> Any:
    """Puts make(column) into each place of a batch form."""
    if isinstance(form, int):
        return make(form)
    if isinstance(form, list):
        return [fill_batch(item, make) for item in form]
    return {key: fill_batch(item, make) for key, item in form.items()}
