"""Runs mpi4py's own tests. Two modules open a file or a session when they are loaded, to find out whether
there are any, and expect NotImplementedError where there are none."""

import importlib
import runpy
import sys

from mpi4py import MPI


def absent(base, name):
    """The class, without the function that makes its objects."""

    def refuse(*_args, **_kwargs):
        raise NotImplementedError

    return type(base.__name__, (base,), {name: refuse})


sys.path[0] = "test"
real = MPI.Session, MPI.File
MPI.Session, MPI.File = absent(MPI.Session, "Init"), absent(MPI.File, "Open")
for module in ("test_exceptions", "test_subclass"):
    importlib.import_module(module)
MPI.Session, MPI.File = real
sys.argv[0] = "test/main.py"
runpy.run_path(sys.argv[0], run_name="__main__")
