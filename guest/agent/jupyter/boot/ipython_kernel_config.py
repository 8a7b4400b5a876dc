# Read by every IPython kernel before it opens a socket. It loads _arenero.py from
# this folder without leaving the folder on sys.path.
c = get_config()  # noqa: F821


def _load(name, path):
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_load("_arenero", __file__.rpartition("/")[0] + "/_arenero.py").configure(c)
