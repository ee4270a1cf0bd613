"""Runs DeepSpeed's ds_to_universal where Megatron is not installed.

The args of a Megatron checkpoint name enumerations of its package; unpickling imports them. Any
name below `megatron` resolves to a class that takes what it is given. Arguments: those of
ds_to_universal.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _Anything:
    def __init__(self, *values):
        self.values = values

    def __reduce__(self):
        return type(self), self.values


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Anything,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Megatron(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "megatron":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        sys.modules[module.__name__] = module


sys.meta_path.append(_Megatron())  # here, so that worker processes have it too

if __name__ == "__main__":
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(ds_to_universal.parse_arguments())
