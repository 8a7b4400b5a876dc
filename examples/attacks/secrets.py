"""Looks for the host's secrets: files, environment, the memory of other processes, the cloud's metadata."""

import glob
import os
import sys

marker = sys.argv[1]  # what only a file of the host holds

found = []
for pattern in ("/root/**", "/root/.*/**", "/home/*/.ssh/*", "/etc/shadow", "/var/lib/arenero/**", "/var/run/docker.sock",
                "/proc/*/environ", "/proc/*/root/root/*", "/proc/*/root/tmp/*", "/tmp/**", "/host/**", "/mnt/**"):
    for name in glob.glob(pattern, recursive=True):
        try:
            with open(name, "rb") as f:
                found.append((name, f.read(1 << 16)))
        except OSError:
            pass
leaks = [name for name, content in found if marker.encode() in content]
names = [n for n in os.environ if "KEY" in n or "TOKEN" in n or "SECRET" in n]
print(f"{len(found)} files could be read, all of them the sandbox's own; with the host's secret: {leaks}")
print(f"keys in the environment: {names}")
print("processes in sight:", sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
if leaks or names:
    raise SystemExit(1)
