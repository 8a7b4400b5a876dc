"""What programs do, timed inside: CPU, system calls, files, imports, processes. Prints JSON, seconds each."""
import json, os, subprocess, sys, time

d = sys.argv[1]
out = {}

def timed(name, f, n=3):
    best = []
    for _ in range(n):
        t = time.perf_counter()
        f()
        best.append(time.perf_counter() - t)
    out[name] = sorted(best)[n // 2]

def cpu():
    x = 0
    for i in range(3_000_000):
        x += i

def syscalls():
    for _ in range(100_000):
        os.getppid()

def stats():
    for _ in range(50_000):
        os.stat("/usr/bin/python3")

def small():
    for i in range(1500):
        with open(f"{d}/s{i}", "w") as f:
            f.write("x")
    for i in range(1500):
        os.unlink(f"{d}/s{i}")

def large():
    b = bytes(1 << 20)
    with open(f"{d}/large", "wb") as f:
        for _ in range(128):
            f.write(b)
    with open(f"{d}/large", "rb") as f:
        while f.read(1 << 20):
            pass
    os.unlink(f"{d}/large")

def imports():
    subprocess.run([sys.executable, "-c", "import numpy, pandas"], check=True)

def forks():
    for _ in range(30):
        subprocess.run(["/bin/true"], check=True)

timed("CPU: 3M additions", cpu)
timed("system calls: 100k getppid", syscalls)
timed("stat: 50k", stats)
timed("1,500 small files", small)
timed("128 MiB file, write and read", large)
timed("import numpy, pandas", imports)
timed("fork + exec /bin/true, 30", forks)
print(json.dumps(out))
