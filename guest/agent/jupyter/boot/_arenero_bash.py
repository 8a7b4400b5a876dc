"""A Jupyter kernel for bash.

One bash lives behind it and reads one short line a cell from a pipe, which sources
a file with the cell's code. So there is no terminal whose prompts could be
mistaken for output, standard output and error stay apart, what reads standard
input finds its end at once, and a cell's status is bash's own.
"""
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class BashKernel(Kernel):
    implementation = "arenero-bash"
    implementation_version = "1"
    banner = "bash"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh", "codemirror_mode": "shell"}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._folder = tempfile.mkdtemp(prefix="bash", dir=os.environ.get("JUPYTER_RUNTIME_DIR"))
        self._cells = 0
        self._start(None)

    def _start(self, folder):
        commands, self._commands = os.pipe()
        self._status, status = os.pipe()
        stderr = os.dup(2)
        # The descriptors keep their numbers in bash; it closes the status while a
        # cell runs, so that no child of the cell holds it.
        self._to = status
        # The kernel ignores interrupts between cells; bash must not inherit that.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            # -i makes an interrupt end the cell and nothing more. What it says about
            # the terminal it misses is nobody's business.
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "--noediting", "-i"],
                stdin=commands,
                stderr=subprocess.DEVNULL,
                pass_fds=(status, stderr),
                cwd=folder,
                env={**os.environ, "PS1": "", "PS2": "", "PAGER": "cat"},
            )
        finally:
            signal.signal(signal.SIGINT, before)
            for fd in (commands, status, stderr):
                os.close(fd)
        self._ask(
            f"exec 2>&{stderr} {stderr}>&-; set +H +m; PS1= PS2= BASH_ARGV0=bash; unset HISTFILE; "
            f"printf '%d\\n' 0 >&{status}\n"
        )

    def _ask(self, line):
        """Gives bash a line and returns the status it answers, None if it ended."""
        try:
            os.write(self._commands, line.encode())
        except OSError:
            return None
        answer = b""
        while not answer.endswith(b"\n"):
            try:
                # A child left behind may hold the pipe open: look after bash too.
                ready, _, _ = select.select([self._status], [], [], 0.2)
                if ready:
                    piece = os.read(self._status, 64)
                    if not piece:
                        return None
                    answer += piece
                elif self._bash.poll() is not None:
                    return None
            except KeyboardInterrupt:
                continue  # bash got it too and answers
        try:
            return int(answer.split()[-1])
        except (ValueError, IndexError):
            return None

    def _place(self):
        try:
            folder = os.readlink(f"/proc/{self._bash.pid}/cwd")
            return folder if os.path.isdir(folder) else None
        except OSError:
            return None

    def _restart(self):
        """The status of the bash that ended; a fresh one takes its place."""
        for fd in (self._commands, self._status):
            os.close(fd)
        try:
            code = self._bash.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            code = self._bash.wait()
        self._start(self._last)
        return code if code >= 0 else 128 - code

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **kwargs):
        self._cells += 1
        path = os.path.join(self._folder, "cell-%d" % self._cells)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as f:
            f.write(code.replace("\0", "") + "\n")
        parent = self.get_parent("shell")
        extra = parent.get("content", {}).get("arenero") or {}
        for stream in (sys.stdout, sys.stderr):
            stream.set_parent(parent)  # what bash writes to our descriptors is this cell's
        env = [f"{k}={shlex.quote(v)}" for k, v in (extra.get("env") or {}).items() if _NAME.match(k)]
        self._last = self._place()
        status = self._ask(
            " ".join([*env, ".", shlex.quote(path), f"</dev/null {self._to}>&-\nprintf '%d\\n' $? >&{self._to}\n"])
        )
        if status is None:
            status = self._restart()
        try:
            os.unlink(path)
        except OSError:
            pass
        for stream in (sys.stdout, sys.stderr):
            settle = getattr(stream, "_arenero_settle", None)
            if settle:
                settle()
            stream.flush()
        reply = {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        if status:
            reply.update(status="error", ename="", evalue=str(status), traceback=[])
        return reply

    def _lines(self, command):
        """What a command of bash prints, by lines."""
        path = os.path.join(self._folder, "answer")
        if self._ask(f"{{ {command}; }} >{shlex.quote(path)} 2>/dev/null </dev/null\nprintf '%d\\n' $? >&{self._to}\n") is None:
            self._last = None
            self._restart()
            return []
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().splitlines()

    def do_complete(self, code, cursor_pos):
        word = re.split(r"[\s;&|()<>=\"'`]", code[:cursor_pos])[-1]
        start = cursor_pos - len(word)
        if word.startswith("$"):
            found = ["$" + v for v in self._lines("compgen -A variable -- " + shlex.quote(word[1:]))]
        else:
            kinds = "-f" if "/" in word else "-A function -A alias -A builtin -A keyword -c -f"
            found = self._lines(f"compgen {kinds} -- " + shlex.quote(word))
        return {
            "status": "ok",
            "matches": sorted(set(found)),
            "cursor_start": start,
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    def do_inspect(self, code, cursor_pos, detail_level=0, omit_sections=()):
        before = re.split(r"[\s;&|()<>=\"'`$]", code[:cursor_pos])[-1]
        after = re.split(r"[\s;&|()<>=\"'`$]", code[cursor_pos:])[0]
        word = before + after
        lines = word and self._lines(f"type -- {shlex.quote(word)} || declare -p -- {shlex.quote(word)}")
        return {
            "status": "ok",
            "found": bool(lines),
            "data": {"text/plain": "\n".join(lines)} if lines else {},
            "metadata": {},
        }


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=BashKernel)
