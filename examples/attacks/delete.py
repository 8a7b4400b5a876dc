"""Deletes everything it can reach, as a program that went wrong might."""

import os
import shutil
import subprocess

failed = []
shutil.rmtree("/", onerror=lambda _f, path, exc: failed.append((path, exc[1])))
system = [p for p, _ in failed if p.startswith(("/usr", "/bin", "/etc", "/lib"))]
print(f"rm -rf / as {os.environ.get('USER', os.getuid())}: {len(system)} deletions refused below /usr, /bin, /etc and /lib")
print("first refusal:", next((f"{p}: {e.strerror}" for p, e in failed if p.startswith("/usr")), "none"))

for device in ("/dev/sda", "/dev/vda", "/dev/nvme0n1"):
    try:
        with open(device, "wb") as disk:
            disk.write(b"\0" * 512)
        print("overwrote", device)
        raise SystemExit(1)
    except OSError as e:
        print(f"{device}: {e.strerror}")
print("the system still works:", subprocess.run(["/bin/ls", "/usr"], capture_output=True, text=True).stdout.split())
