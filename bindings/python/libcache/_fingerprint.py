# SPDX-License-Identifier: Apache-2.0
"""fingerprint(value): 64 hex digits that change whenever what `value` does or holds changes.

It is what keys a cache: the data set object with its list of files and its parameters, each operation with its
arguments and, for functions and classes of the user, their code and the values they captured. Code of installed
packages counts as its name and its package's version. Nothing is looked up on disk: it costs no more than walking the
object. What cannot be walked (a lock, an open file, a generator of random numbers) is refused, never guessed.
"""
from __future__ import annotations

import dis
import enum
import functools
import hashlib
import io
import itertools
import marshal
import os
import random
import site
import sys
import sysconfig
import types
import weakref
from pathlib import PurePath
from typing import Any, Callable

import numpy as np

from ._errors import Error


class FingerprintError(Error, TypeError):
    """What makes the rows cannot be fingerprinted. The way out is a name of your own: key='imagenet-v3'."""


def fingerprint(value: Any, name: str = "value") -> str:
    """64 hex digits that are the same for what makes the same rows, in every process and run. `name` is what an error
    calls the value. Raises FingerprintError. A class may define __libcache_fingerprint__(self): what that returns is
    fingerprinted in place of the object's state."""
    return _Walker().digest(value, name).hex()


_PLAIN = {str, int, float, bytes, bool, type(None)}
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_REFUSED = (io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType,
            weakref.ReferenceType)
_CLASS_NOISE = {"__doc__", "__module__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "_abc_impl",
                "__abstractmethods__", "__parameters__", "__orig_bases__", "__firstlineno__", "__static_attributes__",
                "__slots__", "__match_args__", "__hash__"}
_CODE_PARTS = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
               "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_exceptiontable")


@functools.lru_cache(maxsize=None)
def _library_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages(), [site.getusersitepackages()])
    folders.update(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    return tuple(folder + os.sep for folder in folders if folder)


@functools.lru_cache(maxsize=None)
def _library(module_name: str) -> Any:
    """(name, version) of an installed module; None for the user's own, whose code may change under the same name."""
    module = sys.modules.get(module_name)
    if module is None or module_name == "__main__":
        return None
    top = sys.modules.get(module_name.partition(".")[0], module)
    file = getattr(module, "__file__", None) or getattr(top, "__file__", None)
    own = module_name.partition(".")[0] == __name__.partition(".")[0]  # libcache, also where it runs from its tree
    if file is not None and not own and not file.startswith(_library_folders()):
        return None
    version = getattr(top, "__version__", None)
    return module_name, str(version if version is not None else sys.version_info[:2])


class _Walker:
    """Digests by value: equal parts give equal digests, however often and by whomever they are shared."""

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._kept: list[Any] = []  # so that an id is not used again for another object
        self._open: dict[int, int] = {}  # objects under way, by depth: a cycle is named by how far up it leads

    def digest(self, value: Any, where: str) -> bytes:
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value).encode("utf-8", "surrogatepass")
                         if type(value) is not bytes else value)
        key = id(value)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            return _hash("cycle", str(len(self._open) - self._open[key]).encode())
        self._open[key] = len(self._open)
        try:
            result = self._compound(value, where)
        except RecursionError:
            raise FingerprintError(f"{where} is nested too deeply to be fingerprinted; pass key='...'") from None
        finally:
            del self._open[key]
        self._done[key] = result
        self._kept.append(value)
        return result

    def _all(self, kind: str, values: Any, where: str) -> bytes:
        return _hash(kind, *[self.digest(value, f"{where}[{i}]") for i, value in enumerate(values)])

    def _compound(self, value: Any, where: str) -> bytes:
        kind = type(value)
        hook = getattr(kind, "__libcache_fingerprint__", None)
        if hook is not None:
            return _hash("hook", self.digest(kind, where), self.digest(hook(value), where))
        for kinds, method in self._METHODS:
            if isinstance(value, kinds):
                return method(self, value, where)
        torch = sys.modules.get("torch")
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(torch, value, where)
            if isinstance(value, (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)):
                return _hash("torch", repr(value).encode())
            if isinstance(value, torch.Generator):
                self._refuse_random(value, where)
        return self._object(value, where)

    # ---- containers -------------------------------------------------------------------------------------------------

    def _sequence(self, value: Any, where: str) -> bytes:
        if type(value) not in (list, tuple):
            return self._object(value, where)
        if (plain := _marshalled(value)) is not None:
            return _hash(f"plain {type(value).__name__}", plain)
        return self._all(type(value).__name__, value, where)

    def _dict(self, value: Any, where: str) -> bytes:
        if type(value) not in (dict, types.MappingProxyType):
            return self._object(value, where)
        items = [self.digest(key, f"a key of {where}") + self.digest(item, f"{where}[{key!r}]")
                 for key, item in value.items()]
        return _hash("dict", *sorted(items))

    def _set(self, value: Any, where: str) -> bytes:
        return _hash(type(value).__name__, *sorted(self.digest(item, f"an item of {where}") for item in value))

    def _array(self, value: Any, where: str) -> bytes:
        if value.dtype.hasobject:
            return self._all(f"array {value.shape}", value.ravel().tolist(), where)
        return _hash("array", value.dtype.str.encode(), repr(value.dtype.descr).encode(), repr(value.shape).encode(),
                     np.ascontiguousarray(value).view(np.uint8) if value.size else b"")

    def _tensor(self, torch: Any, value: Any, where: str) -> bytes:
        if value.layout is not torch.strided or value.is_quantized:
            raise FingerprintError(f"{where} is a {value.layout} tensor, which cannot be fingerprinted; pass key='...'")
        plain = value.detach().cpu().contiguous()
        data = plain.view(torch.uint8).numpy() if plain.dim() and plain.numel() else np.frombuffer(
            repr(plain.tolist()).encode(), np.uint8)
        return _hash("tensor", repr(value.dtype).encode(), repr(tuple(value.shape)).encode(), data)

    def _text(self, value: Any, where: str) -> bytes:
        return _hash(type(value).__name__, str(value).encode("utf-8", "surrogatepass"))

    def _enum(self, value: enum.Enum, where: str) -> bytes:
        return _hash("enum", self.digest(type(value), where), value.name.encode())

    # ---- code -------------------------------------------------------------------------------------------------------

    def _module(self, value: types.ModuleType, where: str) -> bytes:
        library = _library(value.__name__)
        if library is not None:
            return _hash("module", repr(library).encode())
        try:  # which of its parts are used, nobody can tell
            with open(value.__file__, "rb") as source:  # type: ignore[arg-type]
                return _hash("module", source.read())
        except (OSError, TypeError):
            raise FingerprintError(f"{where} is the module {value.__name__}, which has no file; "
                                   f"pass key='...'") from None

    def _code(self, value: types.CodeType, where: str) -> bytes:
        parts = [repr(getattr(value, name, None)).encode() for name in _CODE_PARTS]
        return _hash("code", *parts, self._all("consts", value.co_consts, where))

    def _function(self, value: types.FunctionType, where: str) -> bytes:
        library = _library(value.__module__ or "")
        if library is not None and "<locals>" not in value.__qualname__ and value.__name__ != "<lambda>":
            return _hash("function", repr(library).encode(), value.__qualname__.encode())
        name = value.__name__
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        captured = [_hash(word, self.digest(_cell(cell), f"{word}, captured by {name} in {where},"))
                    for word, cell in cells]
        used = [_hash(word, self.digest(value.__globals__[word], f"the global {word} of {name} in {where}"))
                for word in _globals_of(value.__code__) if word in value.__globals__]
        return _hash("function", self.digest(value.__code__, where), *captured, b"globals", *used,
                     self.digest(value.__defaults__, f"a default of {name} in {where}"),
                     self.digest(value.__kwdefaults__, f"a default of {name} in {where}"))

    def _method(self, value: types.MethodType, where: str) -> bytes:
        return _hash("method", self.digest(value.__func__, where), self.digest(value.__self__, where))

    def _builtin(self, value: Any, where: str) -> bytes:
        owner = getattr(value, "__self__", None)
        parts = [str(getattr(value, "__module__", "")).encode(), getattr(value, "__qualname__", repr(value)).encode()]
        if owner is not None and not isinstance(owner, types.ModuleType):
            parts.append(self.digest(owner, where))
        return _hash("builtin", *parts, repr(_library(getattr(value, "__module__", None) or "builtins")).encode())

    def _class(self, value: type, where: str) -> bytes:
        library = _library(value.__module__)
        if library is not None and "<locals>" not in value.__qualname__:
            return _hash("class", repr(library).encode(), value.__qualname__.encode())
        members = []
        for name, member in sorted(vars(value).items()):
            if name in _CLASS_NOISE or isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            members.append(_hash(name, self.digest(member, f"{value.__qualname__}.{name}")))
        return _hash("class", value.__qualname__.encode(), self._all("bases", value.__bases__, where), *members)

    def _wrapped(self, value: Any, where: str) -> bytes:
        return _hash(type(value).__name__, self.digest(value.__func__, where))

    def _property(self, value: property, where: str) -> bytes:
        return self._all("property", (value.fget, value.fset, value.fdel), where)

    def _partial(self, value: functools.partial, where: str) -> bytes:
        return self._all("partial", (value.func, value.args, value.keywords), where)

    def _alias(self, value: Any, where: str) -> bytes:
        return _hash("alias", repr(value).encode())

    # ---- everything else -------------------------------------------------------------------------------------------

    def _refuse(self, value: Any, where: str) -> bytes:
        raise FingerprintError(f"{where} is a {type(value).__qualname__}, which cannot be fingerprinted; pass "
                               f"key='...' with a name of your own that changes when the rows do")

    def _refuse_random(self, value: Any, where: str) -> bytes:
        raise FingerprintError(f"{where} is a {type(value).__qualname__}: rows that depend on random numbers cannot be "
                               f"cached; move what is random behind the cache (transform=), or pass key='...'")

    def _object(self, value: Any, where: str) -> bytes:
        """The state that pickle would store."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise FingerprintError(f"{where} is a {type(value).__qualname__}, which cannot be fingerprinted ({error}); "
                                   f"pass key='...' with a name of your own that changes when the rows do") from error
        if isinstance(reduced, str):
            return _hash("named", self.digest(type(value), where), reduced.encode())
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [self.digest(make, where), self._all("arguments", arguments, where), self._state(state, where)]
        parts += [self._all("items", [] if items is None else items, where),
                  self._all("pairs", [] if pairs is None else pairs, where)]
        return _hash("object", *parts)

    def _state(self, state: Any, where: str) -> bytes:
        if not (type(state) is dict and all(type(key) is str for key in state)):
            return self.digest(state, where)
        return _hash("state", *[_hash(key, self.digest(item, f"{where}.{key}")) for key, item in sorted(state.items())])

    _METHODS: list[tuple[Any, Callable[..., bytes]]] = [
        ((list, tuple), _sequence), ((dict, types.MappingProxyType), _dict), ((set, frozenset), _set),
        (np.ndarray, _array), (np.generic, lambda self, value, where: self._array(np.asarray(value), where)),
        (enum.Enum, _enum), (type, _class), (types.ModuleType, _module), (types.FunctionType, _function),
        (types.CodeType, _code), (types.MethodType, _method), (functools.partial, _partial),
        ((staticmethod, classmethod), _wrapped), (property, _property),
        ((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
          types.ClassMethodDescriptorType, np.ufunc), lambda self, value, where: self._builtin(value, where)),
        ((types.GenericAlias, types.UnionType) if hasattr(types, "UnionType") else types.GenericAlias, _alias),
        (PurePath, _text), ((complex, bytearray, np.dtype, type(Ellipsis), type(NotImplemented)),
                            lambda self, value, where: _hash(type(value).__name__, repr(value).encode())),
        (_RANDOM, _refuse_random), (_REFUSED, _refuse),
    ]


def _hash(kind: str, *parts: Any) -> bytes:
    state = hashlib.blake2b(digest_size=32)
    state.update(kind.encode())
    for part in parts:
        state.update(b"\0%d\0" % memoryview(part).nbytes)
        state.update(part)
    return state.digest()


def _marshalled(values: Any) -> Any:
    """The bytes of a list of plain values, or of tuples of them, at C speed: a list of files may have millions.
    Version 2 of marshal's format does not depend on which strings are the same object. None: other things are in it."""
    kinds = set(map(type, values))
    if kinds <= {tuple, list}:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    return marshal.dumps(values, 2) if kinds <= _PLAIN else None


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _globals_of(code: types.CodeType) -> list[str]:
    """Names of the globals that a function and the functions within it use."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(_globals_of(const))
    return sorted(names)
