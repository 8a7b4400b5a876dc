"""What arenero adds to an IPython kernel, out of sight of the user's namespace.

A request of the agent carries what concerns it in its content under "arenero":
env (for one cell), script (run the code as a script does), seed (after a restore).
"""
import builtins
import os
import sys

_input = builtins.input
_PIECE = 1 << 20  # characters a stream gathers before it waits for them to be sent


def configure(c):
    """Called by the configuration file, before any socket is open."""
    c.HistoryManager.enabled = False  # no SQLite file, no thread for it
    c.IPKernelApp.extensions = ["_arenero"]
    c.Kernel._execute_sleep = 0.0  # waits for output; we wait for the idle message instead
    _uncover()
    _patch_streams()
    _patch_iopub()


def load_ipython_extension(ip):
    """Called by IPython when its shell exists and no code has run."""
    import IPython.core.interactiveshell as shell_module
    from IPython.core.autocall import ZMQExitAutocall

    class Exit(ZMQExitAutocall):
        """exit(7) ends the cell with that status; the kernel lives on."""

        rewrite = False

        def __call__(self, code=None):
            raise SystemExit(code)

    ip.exiter = Exit(ip)
    for name in ("exit", "quit"):
        ip.user_ns[name] = ip.user_ns_hidden[name] = ip.exiter

    warn = shell_module.warn

    def quiet_warn(message, *args, **kwargs):
        if not str(message).startswith("To exit: use"):
            warn(message, *args, **kwargs)

    shell_module.warn = quiet_warn
    ip._showtraceback = lambda etype, evalue, stb: _show(ip, etype, evalue, stb)
    ip.events.register("pre_execute", _before)
    ip.events.register("post_execute", _after)
    ip.display_formatter.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", _chart)
    sys.meta_path.insert(0, _Finder)


# --- what is loaded late --------------------------------------------------------


def _uncover():
    """Ends the hiding of _arenero_python.py."""
    hidden = [name for name in ("debugpy", "jedi") if sys.modules.get(name, "") is None]
    for name in hidden:
        del sys.modules[name]
    if "debugpy" in hidden:
        _quiet_debugger()
    if "jedi" in hidden:
        _late_jedi()


def _quiet_debugger():
    """ipykernel warns at each start that it cannot be debugged."""
    import logging

    logging.getLogger("traitlets").addFilter(lambda r: "debugpy_stream undefined" not in r.getMessage())


def _late_jedi():
    """Gives completion its reader of source when it is first asked for."""
    from ipykernel.ipkernel import IPythonKernel

    complete = IPythonKernel.do_complete

    def do_complete(self, *args, **kwargs):
        IPythonKernel.do_complete = complete
        import IPython.core.completer as completer

        try:
            import jedi
            import jedi.api.classes
            import jedi.api.helpers
        except ImportError:
            pass
        else:
            jedi.settings.case_insensitive_completion = False
            completer.jedi, completer.JEDI_INSTALLED = jedi, True
            self.shell.Completer.use_jedi = True
        return complete(self, *args, **kwargs)

    IPythonKernel.do_complete = do_complete


# --- one request -------------------------------------------------------------

_saved_env = None


def _request():
    from IPython import get_ipython

    try:
        return get_ipython().parent_header["content"].get("arenero") or {}
    except Exception:
        return {}


def _before():
    global _saved_env
    env = _request().get("env")
    if env:
        _saved_env = {k: os.environ.get(k) for k in env}
        os.environ.update(env)


def _after():
    global _saved_env
    saved, _saved_env = _saved_env, None
    for k, v in (saved or {}).items():
        if v is None:
            os.environ.pop(k, None)
        else:
            os.environ[k] = v
    for stream in (sys.stdout, sys.stderr):
        settle = getattr(stream, "_arenero_settle", None)
        if settle:
            settle()


def _status(code):
    """The exit status of a SystemExit and what it says on stderr, as Python does."""
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code & 0xFF, ""
    return 1, str(code) + "\n"


def _show(ip, etype, evalue, stb):
    """Sends an exception, with what its text alone does not tell."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    try:
        text = str(evalue)
    except Exception:
        text = "<exception str() failed>"
    content = {"ename": str(etype.__name__), "evalue": text, "traceback": list(stb)}
    extra = {}
    if issubclass(etype, SystemExit):
        extra["exit"], extra["stderr"] = _status(getattr(evalue, "code", None))
    elif issubclass(etype, OSError) and isinstance(getattr(evalue, "errno", None), int):
        extra["errno"] = evalue.errno
    elif issubclass(etype, MemoryError):
        extra["errno"] = 12
    content["arenero"] = extra
    hook = ip.displayhook
    topic = hook.topic.replace(b"execute_result", b"error") if hook.topic else None
    hook.session.send(hook.pub_socket, "error", content, hook.parent_header, ident=topic)
    ip._last_traceback = stb


# --- scripts -----------------------------------------------------------------


def script():
    """Runs the request's code the way python3 FILE does."""
    import base64
    import io
    import linecache
    import types

    from IPython import get_ipython

    ip = get_ipython()
    request = _request()["script"]
    name, code = request["file"], request["code"]
    main = types.ModuleType("__main__")
    main.__file__ = name
    main.__builtins__ = builtins

    def leave(code=None):
        raise SystemExit(code)

    saved = (sys.argv, sys.path, sys.stdin, sys.stdout, sys.stderr, sys.modules.get("__main__"), builtins.input)
    lines = code.splitlines(keepends=True)
    linecache.cache[name] = (len(code), None, lines, name)
    sys.argv = [name, *request["args"]]
    sys.path = [os.path.dirname(os.path.abspath(name)), *sys.path]
    sys.stdin = io.TextIOWrapper(io.BytesIO(base64.b64decode(request["stdin"])), encoding="utf-8", errors="surrogateescape")
    sys.modules["__main__"] = main
    builtins.input = _input
    builtins.exit = builtins.quit = leave
    try:
        exec(compile(code, name, "exec", dont_inherit=True), main.__dict__)
    except BaseException as e:
        # Our own frame is none of the reader's business.
        tb = e.__traceback__.tb_next if e.__traceback__ is not None else None
        e.__traceback__ = tb
        if isinstance(e, SystemExit):
            e.__cause__ = e.__context__ = None  # it is no error, whatever it was raised in
        sys.stdout, sys.stderr = saved[3:5]
        ip.showtraceback((type(e), e, tb), filename=name, tb_offset=0, exception_only=isinstance(e, SystemExit))
    finally:
        sys.argv, sys.path, sys.stdin, sys.stdout, sys.stderr = saved[:5]
        sys.modules["__main__"] = saved[5]
        builtins.input = saved[6]
        for extra in ("exit", "quit"):
            builtins.__dict__.pop(extra, None)
        linecache.cache.pop(name, None)


# --- before a snapshot ----------------------------------------------------------


def settle():
    """Leaves nothing in memory that a snapshot need not hold, since every sandbox
    restored from it pays for each page. What is left will stay, so that collections
    need not look at it again."""
    import ctypes
    import gc

    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # musl has none


# --- after a restore ---------------------------------------------------------


def wake():
    """Makes this process differ from others restored of the same snapshot."""
    import hashlib

    seed = _request()["seed"]
    entropy = bytes.fromhex(seed["entropy"]) + os.urandom(32)

    def fresh(use):
        return hashlib.sha256(use + entropy).digest()

    os.environ.update(seed["env"])
    if seed["dir"]:
        os.chdir(seed["dir"])
    loaded = sys.modules.get
    if m := loaded("random"):
        m.seed(fresh(b"random"))
    if m := loaded("numpy.random"):
        words = fresh(b"numpy")
        m.seed([int.from_bytes(words[i : i + 4], "little") for i in range(0, 32, 4)])
    if m := loaded("torch"):
        m.manual_seed(int.from_bytes(fresh(b"torch")[:8], "little"))
    if m := loaded("ssl"):
        m.RAND_add(fresh(b"ssl"), 32.0)  # OpenSSL keeps a generator of its own
    if m := loaded("uuid"):
        m._node = None
        m._last_timestamp = None
    if m := loaded("tempfile"):
        m._name_sequence = None
    if m := loaded("multiprocessing.process"):
        m.current_process().authkey = fresh(b"authkey")
    if "TZ" in seed["env"]:
        import time

        time.tzset()


# --- streams -----------------------------------------------------------------


_forked = False  # this is a child of the kernel's process: its streams go by way of the parent
def _after_fork():
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def _patch_iopub():
    """Sends output from the thread that made it. ipykernel hands every message to a
    thread of its own and waits for it when it flushes: ten switches of threads for
    a cell, the dearest thing there is where each wakes another through the Sentry.

    It also makes output wait for a slow reader. A PUB socket throws away what does
    not fit its queue, the message that ends the cell included."""
    import signal
    import threading

    import ipykernel.kernelbase as base
    import zmq
    from ipykernel.iostream import IOPubThread, OutStream
    from ipykernel.kernelapp import IPKernelApp

    init = IPKernelApp.init_iopub

    def init_iopub(self, context):
        init(self, context)
        try:
            self.iopub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1)
        except Exception:
            self.log.warning("no XPUB_NODROP", exc_info=True)

    IPKernelApp.init_iopub = init_iopub

    wire = threading.RLock()  # who may use the socket
    main = threading.main_thread().ident
    hand_over = IOPubThread.send_multipart

    late = []  # interrupts that came within a message

    def send_multipart(self, *args, **kwargs):
        if _forked or not self.thread.is_alive():
            return hand_over(self, *args, **kwargs)
        # A message that was begun is sent whole: half of one would spoil the next.
        mine = threading.get_ident() == main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if mine:
            signal.signal(signal.SIGINT, lambda signum, frame: late.append(signum))
        try:
            with wire:
                if not self.closed:
                    self.socket.send_multipart(*args, **kwargs)
        finally:
            if mine:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if mine and late:
            late.clear()
            raise KeyboardInterrupt

    IOPubThread.send_multipart = send_multipart

    flush, send_flush = OutStream.flush, OutStream._flush

    def flush_here(self):
        if _forked:
            return send_flush(self)
        with wire:  # what was taken from the buffer first is sent first
            send_flush(self)

    def flush_now(self):
        thread = self.pub_thread.thread if self.pub_thread else None
        if _forked or thread is None or not thread.is_alive():
            return flush(self)
        flush_here(self)

    OutStream.flush, OutStream._flush = flush_now, flush_here
    for cls in (IOPubThread, OutStream):
        cls._is_master_process = lambda self: not _forked

    async def no_queue(self):
        """Control requests have a thread of their own; a cell need not wait for it."""

    base.Kernel._flush_control_queue = no_queue

    publish_status = base.Kernel._publish_status

    def quiet_status(self, status, channel, parent=None):
        """Nobody waits to hear that the kernel is busy with what it was asked."""
        if status != "busy" or channel != "shell":
            publish_status(self, status, channel, parent)

    base.Kernel._publish_status = quiet_status


def _patch_streams():
    import fcntl
    import io
    import select
    import struct
    import termios
    import threading
    import time

    from ipykernel.iostream import OutStream

    OutStream.flush_interval = 0.05
    OutStream.flush_timeout = 3600  # as long as the reader takes, as with a pipe
    write = OutStream.write

    def clean(string):
        try:
            string.encode("utf-8", "surrogateescape")
            return string
        except UnicodeEncodeError:
            return string.encode("utf-8", "surrogatepass").decode("utf-8", "replace")

    last = [None]  # the stream that was written to last

    def put(self, string):
        """Writes, in order with the other stream and never far ahead of the reader."""
        before, last[0] = last[0], self
        if before is not self and before is not None and getattr(before, "_arenero_held", 0):
            before._arenero_held = 0
            before.flush()
        for i in range(0, len(string), _PIECE):
            piece = string[i : i + _PIECE]
            write(self, piece)
            self._arenero_held = getattr(self, "_arenero_held", 0) + len(piece)
            if self._arenero_held >= _PIECE:
                self._arenero_held = 0
                self.flush()

    def bounded_write(self, string):
        if not isinstance(string, str) or _forked:
            return write(self, string)
        if not string.isascii():
            string = clean(string)
        # What a child process wrote before this comes before this. It took a while
        # to start, so a tight loop of prints need not look each time.
        now = time.monotonic()
        if now - getattr(self, "_arenero_looked", 0) > 0.0005:
            settle(self)
            self._arenero_looked = time.monotonic()
        put(self, string)
        return len(string)

    OutStream.write = bounded_write

    def watch(self):
        """Brings what child processes write to the real file descriptor. The
        original dies of a byte that is not UTF-8, or of half a character."""
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        while self._should_watch:
            poll.poll()
            with self._arenero_lock:
                data = os.read(self._fid, 65536)
                if not data:
                    return
                put(self, data.decode("utf-8", "surrogateescape"))
                self._arenero_read += len(data)

    def settle(self):
        """Waits until what is in the pipe now has become output of this cell."""
        lock = getattr(self, "_arenero_lock", None)
        if lock is None or _forked or threading.current_thread() is self.watch_fd_thread:
            return
        with lock:
            waiting = struct.unpack("i", fcntl.ioctl(self._fid, termios.FIONREAD, b"\0\0\0\0"))[0]
            goal = self._arenero_read + waiting
        # No further than this: a child may write for ever.
        while self._arenero_read < goal and self.watch_fd_thread.is_alive():
            time.sleep(0.0005)

    redirect = OutStream._setup_stream_redirects

    def setup(self, name):
        self._arenero_lock = threading.Lock()
        self._arenero_read = 0
        redirect(self, name)

    OutStream._watch_pipe_fd = watch
    OutStream._setup_stream_redirects = setup
    OutStream._arenero_settle = settle

    class Raw(io.RawIOBase):
        """sys.stdout.buffer: bytes come out as they went in."""

        def __init__(self, stream):
            self._stream = stream

        def writable(self):
            return True

        def write(self, data):
            data = bytes(data)
            self._stream.write(data.decode("utf-8", "surrogateescape"))
            return len(data)

        def flush(self):
            self._stream.flush()

        def fileno(self):
            return self._stream.fileno()

    def buffer(self):
        raw = self.__dict__.get("_arenero_raw")
        if raw is None:
            raw = self.__dict__["_arenero_raw"] = Raw(self)
        return raw

    OutStream.buffer = property(buffer)


# --- charts ------------------------------------------------------------------


def _charts():
    module = sys.modules.get("_arenero_chart")
    if module is None:
        import importlib.util

        path = os.path.join(os.path.dirname(__file__), "_arenero_chart.py")
        spec = importlib.util.spec_from_file_location("_arenero_chart", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["_arenero_chart"] = module
    return module


def _chart(figure, include=None, exclude=None):
    try:
        text = _charts().describe(figure)
    except Exception:
        text = None
    return {"application/vnd.arenero.chart+json": text} if text else {}


class _Finder:
    """Waits for matplotlib to be imported and costs nothing before: box plots and
    pies are drawn from numbers that the drawing does not keep."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "matplotlib.axes":
            return None
        import importlib.util

        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader_exec = spec.loader.exec_module

        def exec_module(module):
            loader_exec(module)
            try:
                _charts().watch(module.Axes)
            except Exception:
                pass

        spec.loader.exec_module = exec_module
        return spec
