"""Starts an IPython kernel as `python3 -m ipykernel_launcher` does, without two modules
that ipykernel takes up if they are there: a debugger nobody here can speak to, and a
reader of source that only completion asks. They are a third of an idle kernel's memory.

Both are hidden while ipykernel loads and can be imported by anyone afterwards:
_arenero.py uncovers them, and gives completion its reader when it first completes.
"""
import os
import runpy
import sys

if sys.path[0] == os.path.dirname(__file__):
    sys.path[0] = os.getcwd()  # as -m has it
for _name in ("debugpy", "jedi"):
    sys.modules[_name] = None
runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)
